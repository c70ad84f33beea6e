// Package lockmgrtest helps to test locks. It has a lock service in memory, the conformance
// suite that every lockmgr.Backend passes, and helpers for tests of backends.
package lockmgrtest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/lockmgr"
)

// Memory is a lockmgr.Backend in memory, with the semantics of etcdlock. Its
// sessions end by Close and by Expire only: no clock runs in it.
type Memory struct {
	mu       sync.Mutex
	rev      int64
	tree     int64    // the token of the last Tree key
	entries  []*entry // in order of token
	sessions int      // opened so far
	open     map[string]*memorySession
	breaks   []lockmgr.Break
	recalls  map[uuid.UUID]lockmgr.Recall
	rows     []*advisoryRow
	rowsRead int // see RowsRead
	down     bool
	slow     time.Duration // of releases
	losing   time.Duration // how long unanswered entries stand; 0: all requests are answered
	changed  chan struct{} // closed and replaced at each change that a wait may depend on
}

// entry is held or waits.
type entry struct {
	lockmgr.Grant
	holder   lockmgr.Holder
	upgrades []lockmgr.AcquisitionID
	session  *memorySession
	keep     bool
}

var _ lockmgr.Backend = (*Memory)(nil)

// NewMemory returns a lock service without locks.
func NewMemory() *Memory {
	return &Memory{open: make(map[string]*memorySession), recalls: make(map[uuid.UUID]lockmgr.Recall), changed: make(chan struct{})}
}

// OpenSession is lockmgr.Backend's; info is not kept.
func (m *Memory) OpenSession(ctx context.Context, _ lockmgr.SessionInfo, ttl time.Duration) (lockmgr.Session, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.answers(ctx); err != nil {
		return nil, err
	}
	m.sessions++
	s := &memorySession{m: m, id: fmt.Sprintf("memory-%d", m.sessions), ttl: ttl, over: make(chan struct{})}
	m.open[s.id] = s
	return s, nil
}

// Entries is lockmgr.Backend's.
func (m *Memory) Entries(ctx context.Context, prefix string) ([]lockmgr.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.answers(ctx); err != nil {
		return nil, err
	}
	return lockmgr.Listing(m.list(), prefix), nil
}

// Rivals is lockmgr.Backend's.
func (m *Memory) Rivals(ctx context.Context, k lockmgr.Key) ([]lockmgr.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.answers(ctx); err != nil {
		return nil, err
	}
	return lockmgr.Rivals(m.list(), k), nil
}

func (m *Memory) list() (entries []lockmgr.Entry) {
	for _, e := range m.entries {
		entries = append(entries, lockmgr.Entry{Key: e.Key, Mode: e.Mode, Holder: e.holder, Token: e.Token, Held: m.held(e)})
	}
	return entries
}

// Disconnect makes the service unreachable: requests fail with ErrUnavailable,
// waits go on and fail so when they end.
func (m *Memory) Disconnect() { m.setDown(true) }

// Connect undoes Disconnect.
func (m *Memory) Connect() { m.setDown(false) }

// SlowReleases makes each release, also of advisory rows, take d before it is carried out.
func (m *Memory) SlowReleases(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slow = d
}

// LoseAnswers makes the service grant without an answer. It removes such entries after d.
// With 0 it answers again.
func (m *Memory) LoseAnswers(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.losing = d
}

func (m *Memory) setDown(down bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = down
	m.wake()
}

// Expire ends s as the service does when it has not heard of it for its TTL.
func (m *Memory) Expire(s lockmgr.Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.end(s.(*memorySession))
}

// StartEmpty ends all sessions and forgets all else, the revision too, as a service does that is set up anew.
func (m *Memory) StartEmpty() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.open {
		m.end(s)
	}
	m.rev, m.tree, m.breaks = 0, 0, nil
	clear(m.recalls)
}

// Delete removes the entry of g behind its owner's back, and reports whether
// there was one.
func (m *Memory) Delete(g lockmgr.Grant) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.remove(func(e *entry) bool { return e.Grant == g })
}

// Count returns how many entries there are, held and waiting.
func (m *Memory) Count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.entries)
}

// The methods below are called with m.mu held.

func (m *Memory) answers(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", lockmgr.ErrUnavailable, err)
	}
	if m.down {
		return lockmgr.ErrUnavailable
	}
	return nil
}

func (m *Memory) wake() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// ahead returns the entries before e that conflict with it, the oldest first.
func (m *Memory) ahead(e *entry) []*entry {
	var list []*entry
	for _, o := range m.entries {
		if o.Token < e.Token && o.Blocks(e.Grant, e.upgrades) {
			list = append(list, o)
		}
	}
	return list
}

// held reports whether e is granted. A delegation was when it was put, and nothing that came
// later waits for it.
func (m *Memory) held(e *entry) bool {
	return e.Mode == lockmgr.Delegated ||
		!slices.ContainsFunc(m.ahead(e), func(o *entry) bool { return o.Mode != lockmgr.Delegated })
}

func (m *Memory) remove(which func(*entry) bool) bool {
	before := len(m.entries)
	m.entries = slices.DeleteFunc(m.entries, which)
	if len(m.entries) == before {
		return false
	}
	m.wake()
	return true
}

func (m *Memory) end(s *memorySession) {
	m.finish(s)
	delete(m.open, s.id)
	m.remove(func(e *entry) bool { return e.session == s })
	m.removeRows(func(r *advisoryRow) bool { return r.session == s })
}

// finish ends s for its own mount; its entries stand until the service knows.
func (m *Memory) finish(s *memorySession) {
	if !s.ended() {
		close(s.over)
		m.wake()
	}
}
