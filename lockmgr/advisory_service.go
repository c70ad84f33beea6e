package lockmgr

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/lockfs/lockfs/lockmgr/advisory"
)

// AdvisoryBackend is a Backend that keeps flock(2) and fcntl(2) locks as well, in one table a
// file. The key of a table is an Inode key. Its rows are the mounts': one for all that a mount
// holds there, and one for each of its requests that stands in line.
type AdvisoryBackend interface {
	Backend

	// AdvisoryRows returns the rows of some tables, or of all if none is named, as they are at
	// one moment. Errors: ErrUnavailable.
	AdvisoryRows(ctx context.Context, tables ...Key) (AdvisoryRows, error)

	// WatchAdvisory calls changed for each table that has changed, with the revision of the
	// change, until ctx ends. With the zero Key any may have changed, whenever.
	WatchAdvisory(ctx context.Context, changed func(table Key, rev int64))
}

// AdvisorySession is a Session of an AdvisoryBackend. Its rows end with it.
type AdvisorySession interface {
	Session

	// PutAdvisory changes rows of one table, all or none, and returns the rows as they are then.
	// done: the change is made, at their Revision; otherwise it never will be. Errors:
	// ErrUnavailable, after which the change may be made, now or later; ErrSessionLost.
	PutAdvisory(ctx context.Context, p AdvisoryPut) (rows AdvisoryRows, done bool, err error)
}

// AdvisoryPut is a change of rows.
type AdvisoryPut struct {
	Table Key
	// Since: nothing is changed if a row was put after this revision, whoever put it.
	// AnyRevision does not care.
	Since int64
	// Stand are rows, by name, that must stand as they were put at a revision.
	Stand  map[string]int64
	Put    map[string][]byte
	Delete []string
	// Void voids earlier puts on the session that had no answer. Nothing is put or deleted, and the
	// rows are returned.
	Void bool
}

// AnyRevision, as AdvisoryPut.Since, makes a change whatever rows others have put.
const AnyRevision int64 = -1

// AdvisoryRow is one row of a table.
type AdvisoryRow struct {
	Table            Key
	Name             string // unique in the table
	Value            []byte
	Created, Changed int64 // revisions
}

// AdvisoryRows are rows at a revision.
type AdvisoryRows struct {
	Revision int64
	Rows     []AdvisoryRow
}

// advisoryValue is the value of a row. It is put whole for each change, and may have thousands of
// ranges: a range is as short as it can be.
type advisoryValue struct {
	Mount   string          `json:"mount"`
	Node    string          `json:"node"`
	Session string          `json:"session"`
	Waits   bool            `json:"waits,omitempty"`
	Tries   bool            `json:"tries,omitempty"`   // it waits for what another mount has to itself
	Private bool            `json:"private,omitempty"` // the mount has the table to itself, see advisoryPrivate
	Since   time.Time       `json:"since,omitzero"`    // of a private row
	Owners  []advisoryOwner `json:"owners"`            // if it is private, those of some time ago
}

// advisoryOwner are ranges of one owner, by the process that asked for them.
type advisoryOwner struct {
	Kind  string          `json:"kind"`
	Owner string          `json:"owner"` // hexadecimal
	PID   int             `json:"pid,omitempty"`
	Comm  string          `json:"comm,omitempty"`
	Since time.Time       `json:"since"` // the first request
	Read  []advisoryRange `json:"r,omitempty"`
	Write []advisoryRange `json:"w,omitempty"`
}

// advisoryRange is the first byte and the last one.
type advisoryRange [2]uint64

// add adds a lock to the row.
func (v *advisoryValue) add(l advisory.Lock) {
	by := advisoryOwner{Kind: l.Owner.Kind.String(), Owner: strconv.FormatUint(l.Owner.ID, 16), PID: l.PID, Comm: l.Comm, Since: l.Since}
	i := len(v.Owners) - 1 // an owner's come one after the other
	if i < 0 || !v.Owners[i].is(by) {
		i, v.Owners = i+1, append(v.Owners, by)
	}
	o, r := &v.Owners[i], advisoryRange{l.Start, l.End}
	if l.Since.Before(o.Since) {
		o.Since = l.Since
	}
	if l.Exclusive {
		o.Write = append(o.Write, r)
	} else {
		o.Read = append(o.Read, r)
	}
}

func (o *advisoryOwner) is(by advisoryOwner) bool {
	return o.Kind == by.Kind && o.Owner == by.Owner && o.PID == by.PID && o.Comm == by.Comm
}

// parse returns the locks of a row.
func (r AdvisoryRow) parse() (v advisoryValue, locks []advisory.Lock, err error) {
	if err := json.Unmarshal(r.Value, &v); err != nil {
		return v, nil, fmt.Errorf("row %s of %s: %w", r.Name, r.Table, err)
	}
	for _, o := range v.Owners {
		id, err := strconv.ParseUint(o.Owner, 16, 64)
		if err != nil {
			return v, nil, fmt.Errorf("row %s of %s: %w", r.Name, r.Table, err)
		}
		owner := advisory.Owner{Mount: v.Mount, ID: id}
		switch o.Kind {
		case advisory.Flock.String():
			owner.Kind = advisory.Flock
		case advisory.Posix.String():
		default:
			return v, nil, fmt.Errorf("row %s of %s: %q is no kind of lock", r.Name, r.Table, o.Kind)
		}
		for i, r := range slices.Concat(o.Write, o.Read) {
			locks = append(locks, advisory.Lock{
				Owner: owner, Start: r[0], End: r[1], Exclusive: i < len(o.Write),
				PID: o.PID, Comm: o.Comm, Since: o.Since,
			})
		}
	}
	return v, locks, nil
}

// Entries lists the locks of the rows by file: first those that are held, then those that wait.
func (rs AdvisoryRows) Entries() (entries []Entry, err error) {
	for _, r := range rs.Rows {
		v, locks, err := r.parse()
		if err != nil {
			return nil, err
		}
		for _, l := range locks {
			e := Entry{
				Key: r.Table, Mode: Shared, Token: r.Created, Held: !v.Waits,
				Holder: Holder{Session: v.Session, Node: v.Node, PID: l.PID, Comm: l.Comm, Since: l.Since},
				Range:  &Range{Kind: l.Owner.Kind, Start: l.Start, End: l.End},
			}
			if l.Exclusive {
				e.Mode = Exclusive
			}
			entries = append(entries, e)
		}
		if v.Private && len(locks) == 0 {
			entries = append(entries, Entry{
				Key: r.Table, Mode: Exclusive, Token: r.Created, Held: true,
				Holder: Holder{Session: v.Session, Node: v.Node, Since: v.Since, Kept: true},
				Range:  &Range{End: advisory.EOF},
			})
		}
	}
	slices.SortStableFunc(entries, func(a, b Entry) int {
		if c := cmp.Compare(a.Key.Path, b.Key.Path); c != 0 || a.Held == b.Held {
			return cmp.Or(c, cmp.Compare(a.Token, b.Token))
		}
		if a.Held {
			return -1
		}
		return 1
	})
	return entries, nil
}

// advisoryFile is a table, as a mount finds it.
type advisoryFile struct {
	advisory.File
	// Of other mounts:
	private bool // one has the table to itself
	rows    bool // there are any
}

// files returns the tables as mount sees them. What others have in a private table is not known.
func (rs AdvisoryRows) files(mount string) (map[Key]advisoryFile, error) {
	files := make(map[Key]advisoryFile)
	for _, r := range rs.Rows {
		v, locks, err := r.parse()
		if err != nil {
			return nil, err
		}
		f := files[r.Table]
		if v.Mount != mount {
			f.rows = true
			f.private = f.private || v.Private
		}
		for _, l := range locks {
			if v.Waits {
				f.Line = append(f.Line, advisory.Waiter{ID: r.Name, Lock: l, Ticket: r.Created, Tries: v.Tries})
			} else if !v.Private {
				f.Held = append(f.Held, l)
			}
		}
		files[r.Table] = f
	}
	for _, f := range files {
		slices.SortFunc(f.Line, func(a, b advisory.Waiter) int { return cmp.Compare(a.Ticket, b.Ticket) })
	}
	return files, nil
}

// find returns the row with a name.
func (rs AdvisoryRows) find(name string) (AdvisoryRow, bool) {
	i := slices.IndexFunc(rs.Rows, func(r AdvisoryRow) bool { return r.Name == name })
	if i < 0 {
		return AdvisoryRow{}, false
	}
	return rs.Rows[i], true
}

// landed reports whether the rows show that p was made.
func (rs AdvisoryRows) landed(p AdvisoryPut) bool {
	for name, value := range p.Put {
		if r, ok := rs.find(name); !ok || !bytes.Equal(r.Value, value) {
			return false
		}
	}
	return !slices.ContainsFunc(p.Delete, func(name string) bool { _, ok := rs.find(name); return ok })
}
