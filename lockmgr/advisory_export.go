package lockmgr

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/lockfs/lockfs/lockmgr/advisory"
)

// Advisory locks are handed on with the session of their mount's rows. The owners stay what they
// are: the new process has the mount's name. It reads each table anew, and what is not in a row any
// more is lost, as ever. Requests that wait are not handed on.

// AdvisoryState is what an Advisory hands on.
type AdvisoryState struct {
	Mount  string
	Tables []TableState // those of Export's first, in their order
}

// TableState is one table.
type TableState struct {
	Key     Key
	Local   bool
	Keep    time.Duration
	Session int // index in State; -1: none
	Row     RowState
	Private bool
	Locks   []advisory.Lock
}

// RowState is the mount's row; no Value: it does not stand.
type RowState struct {
	Value            []byte
	Created, Changed int64
}

var (
	errAdvisoryWaits = errors.New("programs wait for flock or fcntl locks")
	errAdvisoryBusy  = errors.New("flock and fcntl locks are being taken or given back")
)

// waits reports whether there are requests.
func (a *Advisory) waits() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.tables {
		if len(t.requests) > 0 {
			return true
		}
	}
	return false
}

// Quiet returns when no request for flock and fcntl locks is under way to the service, if there will
// be no new ones. Errors: ctx's.
func (m *Manager) Quiet(ctx context.Context) error {
	m.mu.Lock()
	a := m.advisory
	m.mu.Unlock()
	if a == nil {
		return nil
	}
	for {
		a.mu.Lock()
		busy := false
		for _, t := range a.tables {
			busy = busy || t.working
		}
		a.mu.Unlock()
		if !busy {
			return nil
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return errors.Join(errAdvisoryBusy, ctx.Err())
		}
	}
}

func (a *Advisory) export(first []*AdvisoryTable, sessions map[*session]int) (*AdvisoryState, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := slices.Clone(first)
	for _, t := range a.tables {
		if !slices.Contains(first, t) && (len(t.rows) > 0 || !t.mine.Empty()) {
			all = append(all, t)
		}
	}
	st := &AdvisoryState{Mount: a.mount}
	for _, t := range all {
		if len(t.requests) > 0 {
			return nil, errAdvisoryWaits
		}
		if t.working || t.sent != nil || t.private.ending || t.vacates || len(t.broken) > 0 {
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
		if t.value != nil {
			s.Row = RowState{t.value, t.created, t.rows[t.row]}
		}
		st.Tables = append(st.Tables, s)
	}
	return st, nil
}

// adopt makes the tables of another process this one's. Nobody works on them before resume.
func (a *Advisory) adopt(st *AdvisoryState, sessions []*session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mount = st.Mount
	for _, s := range st.Tables {
		t := a.table(s.Key, s.Local)
		t.private.keep = s.Keep
		if s.Session >= 0 {
			t.use(sessions[s.Session])
		}
		if s.Row.Value != nil {
			t.value, t.created = s.Row.Value, s.Row.Created
			t.rows[t.row] = s.Row.Changed
		}
		for _, l := range s.Locks {
			t.change(func() { t.mine.Set(l) }, l.Owner)
		}
		if !t.mine.Empty() && !t.local {
			t.relied.Store(t.sess)
		}
		t.private.used = time.Now()
		t.isPrivate(s.Private)
		t.private.listed, t.private.changed = s.Private, s.Private // people may be told of what was
		a.adopted = append(a.adopted, t)
	}
}

// Adopted returns a table that was handed on, by its number in Export's, as Open does.
func (a *Advisory) Adopted(i int) *AdvisoryTable {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i < 0 || i >= len(a.adopted) {
		return nil
	}
	a.adopted[i].users++
	return a.adopted[i]
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
}
