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

// Advisory locks in the records of a mount (docs/adr/0070): its name, its tables, and the locks of
// its owners. What an owner gets is recorded when the service has it, and before its program is
// told. What it gives back is recorded before the service is told. So no record names a lock that
// another mount may have by now. The exception is while the mount's row changes: so recover
// compares the records with the row.
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

type rangeRecord struct {
	_          struct{} `cbor:",toarray"`
	Table      uint64
	Kind       advisory.Kind
	Owner      uint64
	Start, End uint64
	Exclusive  bool
	PID        int
	Comm       string
	Since      time.Time
}

// lockName names a lock in a table.
type lockName struct {
	owner advisory.Owner
	start uint64
}

// The methods below need a.mu.

// number returns the number of a new record.
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

// noteLocks is called before a change of an owner's locks in a range, and the function that it
// returns after the change, which it records. A lock next to the range may have been merged with
// one in it.
func (t *AdvisoryTable) noteLocks(o advisory.Owner, start, end uint64) (after func()) {
	part := t.a.m.cfg.Record
	if !part.Keeps() {
		return func() {}
	}
	start, end = max(start, 1)-1, end+1
	before := t.mine.Touching(o, start, end)
	return func() {
		now := t.mine.Touching(o, start, end)
		// From right to left: the part that is cut off a range gets its own record before the
		// range's record becomes smaller. So no part is ever unrecorded.
		for _, l := range slices.Backward(now) {
			if slices.Contains(before, l) {
				continue
			}
			name := lockName{o, l.Start}
			number, had := t.records[name]
			if !had {
				number = t.a.number()
				t.records[name] = number
			}
			part.Put(recordRange, number, rangeRecord{
				Table: t.record, Kind: o.Kind, Owner: o.ID, Start: l.Start, End: l.End, Exclusive: l.Exclusive, PID: l.PID, Comm: l.Comm, Since: l.Since,
			})
		}
		for _, l := range before {
			if name := (lockName{o, l.Start}); !slices.ContainsFunc(now, func(n advisory.Lock) bool { return n.Start == l.Start }) {
				part.Delete(recordRange, t.records[name])
				delete(t.records, name)
			}
		}
	}
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
	ranges, err := journal.All[rangeRecord](r, recordRange)
	if err != nil {
		return nil, err
	}
	st := &AdvisoryState{Mount: mounts[0]}
	locks := make(map[uint64][]advisory.Lock)
	for _, l := range ranges {
		locks[l.Table] = append(locks[l.Table], advisory.Lock{
			Owner: advisory.Owner{Mount: st.Mount, Kind: l.Kind, ID: l.Owner},
			Start: l.Start, End: l.End, Exclusive: l.Exclusive, PID: l.PID, Comm: l.Comm, Since: l.Since,
		})
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
	rows, err := t.readAfterFormer(ctx)
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
		t.awaitWrites() // this process may have allowed some by now
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

// readAfterFormer reads the table when nothing that a dead process has sent can come late.
func (t *AdvisoryTable) readAfterFormer(ctx context.Context) (AdvisoryRows, error) {
	select {
	case <-t.sess.formerOver:
		return t.a.service.AdvisoryRows(ctx, t.key)
	default: // RemoveUnclaimed is late, or cannot remove all
		rows, _, err := t.putter().PutAdvisory(ctx, AdvisoryPut{Table: t.key, Void: true})
		return rows, err
	}
}

// limit takes from the mount's owners what its row does not name. mu is held.
func (t *AdvisoryTable) limit(named []advisory.Lock) {
	var row advisory.Locks
	for _, n := range named {
		row.Set(n)
	}
	for _, l := range t.mine.All() {
		beside := row.Touching(l.Owner, l.Start, l.End)
		if l.Owner.Kind == advisory.Flock && len(beside) == 0 { // one shared flock is named for all
			beside = slices.DeleteFunc(slices.Clone(named), func(n advisory.Lock) bool { return n.Owner.Kind != advisory.Flock || n.Exclusive })
		}
		if len(beside) == 1 && beside[0].Start <= l.Start && l.End <= beside[0].End && (beside[0].Exclusive || !l.Exclusive) {
			continue
		}
		t.clear(l.Owner, l.Start, l.End)
		for _, n := range beside {
			stays := l
			stays.Start, stays.End = max(l.Start, n.Start), min(l.End, n.End)
			stays.Exclusive = l.Exclusive && n.Exclusive
			t.set(stays)
		}
	}
}
