package lockmgr

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/lockfs/lockfs/internal/journal"
	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr/advisory"
)

// Advisory locks in the records of a mount (docs/adr/0070): its name, its tables, and what each owner
// has. What an owner gets is recorded when the service has it, and before its program is told. What
// it gives back is recorded before the service is told. So no lock is recorded that others may have
// had since, except while the mount's row changes: recover compares.
//
// Requests that wait are not recorded. They come again, and stand in line anew.

type tableRecord struct {
	_       struct{} `cbor:",toarray"`
	Kind    Kind
	Path    string
	Local   bool
	Keep    time.Duration
	Session string // "": it has none
	Created int64  // of the mount's row; 0: it does not stand
}

type ownerRecord struct {
	_     struct{} `cbor:",toarray"`
	Table uint64
	Kind  advisory.Kind
	ID    uint64
	Locks []rangeRecord
}

type rangeRecord struct {
	_          struct{} `cbor:",toarray"`
	Start, End uint64
	Exclusive  bool
	PID        int
	Comm       string
	Since      time.Time
}

// The methods below need a.mu.

// number begins a record.
func (a *Advisory) number() uint64 {
	a.records++
	return a.records
}

// note records what there is of a table besides locks.
func (t *AdvisoryTable) note() {
	part := t.a.m.cfg.Record
	if !part.Keeps() {
		return
	}
	if t.record == 0 {
		t.record = t.a.number()
	}
	r := tableRecord{Kind: t.key.Kind, Path: t.key.Path, Local: t.local, Keep: t.private.keep}
	if t.sess != nil {
		r.Session = t.sess.backend.ID()
	}
	if t.value != nil || t.recovering {
		r.Created = t.created
	}
	part.Put(recordTable, t.record, r)
}

// unnote ends the record of a table that is forgotten.
func (t *AdvisoryTable) unnote() { t.a.m.cfg.Record.Delete(recordTable, t.record) }

// noteOwner records what an owner has.
func (t *AdvisoryTable) noteOwner(o advisory.Owner) {
	part := t.a.m.cfg.Record
	if !part.Keeps() {
		return
	}
	locks := t.mine.Of(o)
	number, had := t.owners[o]
	switch {
	case len(locks) == 0:
		part.Delete(recordOwner, number)
		delete(t.owners, o)
		return
	case !had:
		number = t.a.number()
		t.owners[o] = number
	}
	r := ownerRecord{Table: t.record, Kind: o.Kind, ID: o.ID, Locks: make([]rangeRecord, len(locks))}
	for i, l := range locks {
		r.Locks[i] = rangeRecord{Start: l.Start, End: l.End, Exclusive: l.Exclusive, PID: l.PID, Comm: l.Comm, Since: l.Since}
	}
	part.Put(recordOwner, number, r)
}

// Record returns the number by which Recovered finds the table.
func (t *AdvisoryTable) Record() uint64 {
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	return t.record
}

// recoveredAdvisory returns the tables that a dead process has left: first those with the numbers.
// sessions are indexes in State, by id.
func recoveredAdvisory(r *journal.Records, numbers []uint64, sessions map[string]int) (*AdvisoryState, error) {
	mounts, err := journal.All[string](r, recordMount)
	if err != nil || len(mounts) == 0 {
		return nil, err
	}
	tables, err := journal.All[tableRecord](r, recordTable)
	if err != nil {
		return nil, err
	}
	owners, err := journal.All[ownerRecord](r, recordOwner)
	if err != nil {
		return nil, err
	}
	st := &AdvisoryState{Mount: mounts[0]}
	locks := make(map[uint64][]advisory.Lock)
	for _, o := range owners {
		owner := advisory.Owner{Mount: st.Mount, Kind: o.Kind, ID: o.ID}
		for _, l := range o.Locks {
			locks[o.Table] = append(locks[o.Table], advisory.Lock{
				Owner: owner, Start: l.Start, End: l.End, Exclusive: l.Exclusive, PID: l.PID, Comm: l.Comm, Since: l.Since,
			})
		}
	}
	others := maps.Clone(tables)
	for _, number := range numbers {
		delete(others, number)
	}
	for _, number := range slices.Concat(numbers, slices.Sorted(maps.Keys(others))) {
		t, ok := tables[number]
		if !ok {
			return nil, errState
		}
		s := TableState{Key: Key{t.Kind, t.Path}, Local: t.Local, Keep: t.Keep, Session: -1, Locks: locks[number], Row: RowState{Created: t.Created}}
		if i, ok := sessions[t.Session]; ok {
			s.Session = i
		} else if !t.Local { // it was lost
			s.Lost, s.Locks, s.Row = len(s.Locks) > 0, nil, RowState{}
		}
		st.Tables = append(st.Tables, s)
	}
	return st, nil
}

// recover reads what a dead process has made of a table, when no more can come of it. Locks that the
// mount's row does not name others may have: while it changes, it names what stays.
func (t *AdvisoryTable) recover(ctx context.Context) error {
	a := t.a
	sent := time.Now()
	rows, err := t.readSettled(ctx)
	a.m.outage.note(sent, err)
	if err != nil {
		return err
	}
	a.mu.Lock()
	recorded, stands := t.created, false
	var row advisoryValue
	var named []advisory.Lock
	for _, r := range rows.Rows {
		if r.Table != t.key {
			continue
		}
		v, locks, err := r.parse()
		switch {
		case err != nil:
			a.mu.Unlock()
			return retry.Refused(err)
		case v.Mount != a.mount:
			continue
		case r.Name == t.row:
			t.value, t.created, stands = r.Value, r.Created, true
			row, named = v, locks
		}
		t.rows[r.Name] = r.Changed // those of requests are nobody's, and deleted
	}
	lost := !t.mine.Empty() && !(stands && t.created == recorded)
	a.mu.Unlock()
	if lost {
		t.bereave(errDeleted)
	}
	a.mu.Lock()
	switch {
	case lost:
		t.forget()
	case !row.Private:
		t.limit(named)
	}
	t.recovering = false
	t.isPrivate(row.Private)
	t.private.listed, t.private.changed = row.Private, row.Private // people may be told of what was
	t.note()
	a.mu.Unlock()
	return t.learn(rows, sent)
}

// readSettled reads the table when nothing that a dead process has sent can come late.
func (t *AdvisoryTable) readSettled(ctx context.Context) (AdvisoryRows, error) {
	select {
	case <-t.sess.settled:
		return t.a.service.AdvisoryRows(ctx, t.key)
	default: // RemoveUnclaimed is late, or cannot remove all
		rows, _, err := t.putter().PutAdvisory(ctx, AdvisoryPut{Table: t.key, Void: true})
		return rows, err
	}
}

// limit takes from the mount's owners what its row does not name. mu is held.
func (t *AdvisoryTable) limit(named []advisory.Lock) {
	for _, l := range t.mine.All() {
		t.change(func() {
			t.mine.Clear(l.Owner, l.Start, l.End)
			for _, n := range named {
				// One shared flock is named for all.
				if n.Owner.Kind != l.Owner.Kind || n.Owner != l.Owner && (n.Exclusive || n.Owner.Kind == advisory.Posix) {
					continue
				}
				if stays := l; n.Start <= l.End && l.Start <= n.End {
					stays.Start, stays.End = max(l.Start, n.Start), min(l.End, n.End)
					stays.Exclusive = l.Exclusive && n.Exclusive
					t.mine.Set(stays)
				}
			}
		}, l.Owner)
	}
}
