package lockmgr

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/lockfs/lockfs/lockmgr/advisory"
)

// Advisory locks are handed on with the session of their mount's rows. The owners stay what they
// are: the new process has the mount's name. It reads each table again. A lock that is in no row
// any more is lost. A request that waits keeps its row, and its place on this mount.

// AdvisoryState is what an Advisory hands on.
type AdvisoryState struct {
	Mount   string
	Tables  []TableState // those of Export's first, in their order
	Tickets int64        // of requests that waited in tables of this mount only
}

// TableState is one table.
type TableState struct {
	Key     Key
	Local   bool
	Keep    time.Duration
	Session int // index in State; -1: none
	Row     RowState
	Rows    map[string]int64 // those of requests, by name, and the revisions of their last puts
	Private bool
	Locks   []advisory.Lock
	Waits   []WaitState // in order
	Lost    bool        // it had locks, and they are lost
}

// RowState is the mount's row; no Value: it does not stand, or its process has died.
type RowState struct {
	Value            []byte
	Created, Changed int64
}

// WaitState is a request that waits.
type WaitState struct {
	ID     AcquisitionID
	Lock   advisory.Lock
	Ticket int64
	Met    time.Time // since when another owner is in its way; zero: none is known
	Told   bool      // the log says that it waits long
}

var errAdvisoryBusy = errors.New("flock and fcntl locks are being taken or given back")

// handOn fails all requests with a *HandedOnError, now and until goOn. Those that wait are parked:
// they stay in line, and get nothing, until they are claimed by LockAgain, here or in another process.
func (a *Advisory) handOn() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.handing = true
	a.pauses++
	for _, t := range a.tables {
		for _, r := range t.requests {
			switch {
			case r.over, r.parked:
			case r.waits:
				r.given <- r.handedOn()
				r.given, r.parked = make(chan error, 1), true
			default: // a try is made anew, by whichever process serves the mount next
				r.over = true
				r.given <- &HandedOnError{Resume{Since: r.lock.Since}}
			}
		}
		t.ask()
	}
}

// goOn ends handOn.
func (a *Advisory) goOn() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.handing, a.paused = false, false
	for _, t := range a.tables {
		t.ask()
	}
	a.forsakeLate()
}

// forsakeLate ends the parked requests that do not come back within forsakenAfter. mu is held.
func (a *Advisory) forsakeLate() {
	pauses := a.pauses
	time.AfterFunc(forsakenAfter, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.pauses != pauses {
			return // handOn was called again
		}
		for _, t := range a.tables {
			for _, r := range t.requests {
				if r.parked {
					r.forsake()
				}
			}
			t.ask()
		}
	})
}

// forsake is Manager.Forsake, and reports whether the request was one for an advisory lock.
func (a *Advisory) forsake(at Resume) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.tables {
		if r := t.parked(at.ID); r != nil {
			r.forsake()
			t.ask()
			return true
		}
	}
	return false
}

func (r *advisoryRequest) handedOn() error {
	return &HandedOnError{Resume{ID: r.waitID, Since: r.lock.Since}}
}

// forsake ends a parked request. The caller calls t.ask.
func (r *advisoryRequest) forsake() { r.parked, r.over = false, true }

// parked returns the parked request with an id. mu is held.
func (t *AdvisoryTable) parked(id AcquisitionID) *advisoryRequest {
	if id.IsZero() {
		return nil
	}
	if r := t.named[rowOf(id)]; r != nil && r.parked {
		return r
	}
	return nil
}

// Quiet returns when no request for flock and fcntl locks is under way to the service. None begins
// until GoOn. Errors: ctx's.
func (m *Manager) Quiet(ctx context.Context) error {
	m.mu.Lock()
	a := m.advisory
	m.mu.Unlock()
	for a != nil && !a.pause() {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return errors.Join(errAdvisoryBusy, ctx.Err())
		}
	}
	return nil
}

// pause keeps all from working on the tables, unless somebody does.
func (a *Advisory) pause() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.tables {
		if t.working {
			return false
		}
	}
	a.paused = true
	return true
}

func (a *Advisory) export(first []*AdvisoryTable, sessions map[*session]int) (*AdvisoryState, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := slices.Clone(first)
	for _, t := range a.tables {
		if !slices.Contains(first, t) && (len(t.rows) > 0 || !t.mine.Empty() || len(t.requests) > 0) {
			all = append(all, t)
		}
	}
	st := &AdvisoryState{Mount: a.mount, Tickets: a.tickets}
	for _, t := range all {
		if t.working || t.sent != nil || t.recovering || t.private.ending || t.vacates || len(t.broken) > 0 {
			return nil, errAdvisoryBusy
		}
		s := TableState{Key: t.key, Local: t.local, Keep: t.private.keep, Session: -1, Private: t.private.row, Locks: t.mine.All()}
		if t.sess != nil {
			i, ok := sessions[t.sess]
			if !ok {
				return nil, errAdvisoryBusy
			}
			s.Session = i
		}
		s.Rows = maps.Clone(t.rows)
		if t.value != nil {
			s.Row = RowState{t.value, t.created, t.rows[t.row]}
			delete(s.Rows, t.row)
		}
		for _, r := range t.requests {
			switch {
			case r.parked:
				s.Waits = append(s.Waits, WaitState{r.waitID, r.lock, r.ticket, r.met, r.told})
			case !r.over:
				return nil, errAdvisoryBusy
			}
		}
		st.Tables = append(st.Tables, s)
	}
	return st, nil
}

// adopt makes the tables of another process this one's. Nobody works on them before resume.
func (a *Advisory) adopt(st *AdvisoryState, sessions []*session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mount, a.tickets = st.Mount, st.Tickets
	for _, s := range st.Tables {
		t := a.table(s.Key, s.Local)
		t.private.keep = s.Keep
		t.bereft = s.Lost
		if s.Session >= 0 && sessions[s.Session] == nil { // it ended while no process served the mount
			t.bereft, s.Locks = len(s.Locks) > 0, nil
		} else if s.Session >= 0 {
			t.created, t.recovering = s.Row.Created, a.m.died
			t.use(sessions[s.Session])
		}
		maps.Copy(t.rows, s.Rows)
		if s.Row.Value != nil {
			t.value = s.Row.Value
			t.rows[t.row] = s.Row.Changed
		}
		t.note()
		for _, l := range s.Locks {
			t.set(l)
		}
		if !t.mine.Empty() && !t.local {
			t.relied.Store(t.sess)
		}
		t.private.used = time.Now()
		t.isPrivate(s.Private)
		t.private.listed, t.private.changed = s.Private, s.Private // people may be told of what was
		for _, w := range s.Waits {
			r := &advisoryRequest{
				lock: w.Lock, waits: true, id: rowOf(w.ID), waitID: w.ID, given: make(chan error, 1),
				parked: true, ticket: w.Ticket, met: w.Met, told: w.Told,
			}
			r.stood.Store(w.Ticket != 0)
			t.requests = append(t.requests, r)
			t.named[r.id] = r
		}
		a.adopted = append(a.adopted, t)
	}
}

// check returns an error if the state contradicts itself. sessions is how many there are.
func (st *AdvisoryState) check(sessions int) error {
	tables, waits := make(map[Key]bool), make(map[AcquisitionID]bool)
	good := func(l advisory.Lock) bool {
		return l.Owner.Mount == st.Mount && l.Start <= l.End && l.End <= advisory.EOF
	}
	for _, t := range st.Tables {
		rows := t.Row.Value != nil || t.Row.Created != 0 || len(t.Rows) > 0
		if t.Session < -1 || t.Session >= sessions || t.Session == -1 && (rows || !t.Local && len(t.Locks) > 0) || t.Private && t.Row.Value == nil || tables[t.Key] {
			return errState
		}
		tables[t.Key] = true
		for _, l := range t.Locks {
			if !good(l) {
				return errState
			}
		}
		for _, w := range t.Waits {
			if !good(w.Lock) || w.ID.IsZero() || waits[w.ID] {
				return errState
			}
			waits[w.ID] = true
		}
	}
	return nil
}

// Adopted returns a table that was handed on, by its number in Export's, as Open does; nil: there is
// none. lost: this mount's locks there are lost.
func (a *Advisory) Adopted(i int) (t *AdvisoryTable, lost bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i < 0 || i >= len(a.adopted) {
		return nil, false
	}
	t = a.adopted[i]
	t.users++
	return t, t.bereft
}

// resume looks at all that was adopted.
func (a *Advisory) resume() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.adopted) == 0 {
		return
	}
	a.began.Do(a.begin)
	for _, t := range a.adopted {
		t.stale, t.doubted = true, !t.local
		t.ask()
	}
	a.adopted = nil
	a.forsakeLate()
}
