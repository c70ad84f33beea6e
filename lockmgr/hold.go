package lockmgr

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lockfs/lockfs/internal/boottime"
)

// Hold is one reference to the locks of one owner: an open file's, or a system call's. It is safe
// for concurrent use.
type Hold struct {
	m        *Manager
	owner    Owner
	unlocked bool // constant; see Unlocked

	// sessions are those of its present and former locks. nil if Unlocked, and before the grant.
	sessions atomic.Pointer[[]*session]

	lost atomic.Pointer[error] // why this hold is lost for ever; nil: it is not

	changes changes

	locks       []*lock // GUARDED_BY(m.mu)
	closing     bool    // GUARDED_BY(m.mu); a close() of the file was seen
	released    bool    // GUARDED_BY(m.mu)
	surrendered bool    // GUARDED_BY(m.mu); it is lost, and its locks are given back
	record      uint64  // GUARDED_BY(m.mu); its number; 0: it has none
	onLost      func()  // GUARDED_BY(m.mu); see OnLost
}

// Check returns nil if the file may be written now. It only reads the clock. Errors: ErrSuspended
// (see Await); ErrSessionLost and ErrLockLost, which are final.
func (h *Hold) Check() error {
	sessions := h.relied()
	good := h.lost.Load() == nil && len(sessions) > 0
	for _, s := range sessions {
		good = good && s.renewal.Valid()
	}
	if good || h.Unlocked() {
		return nil
	}
	return cmp.Or(h.why(), ErrSuspended)
}

func (h *Hold) relied() []*session {
	if p := h.sessions.Load(); p != nil {
		return *p
	}
	return nil
}

// rely makes the hold depend on s for ever, even if it gives up its lock of s. m.mu is held.
func (h *Hold) rely(s *session) {
	sessions := h.relied()
	if !slices.Contains(sessions, s) {
		sessions = append(slices.Clone(sessions), s)
		h.sessions.Store(&sessions)
		s.holds++
	}
}

// Await waits while the session is suspended. Errors: ErrSessionLost, ErrLockLost, ctx's.
func (h *Hold) Await(ctx context.Context) error {
	for _, s := range h.relied() {
		if err := s.renewal.Await(ctx); err != nil {
			return cmp.Or(h.why(), err)
		}
	}
	return h.Check()
}

// Troubled reports whether the hold may soon be suspended: writes must reach the volume now.
func (h *Hold) Troubled() bool {
	return slices.ContainsFunc(h.relied(), func(s *session) bool { return s.renewal.Troubled() })
}

// Owner returns the hold's owner.
func (h *Hold) Owner() Owner { return h.owner }

// Deadline returns the instant until which Check returns nil if the service does not answer any
// more; long past if a session is lost. Another owner gets the lock a Margin after that at the
// earliest. The hold must not be Unlocked.
func (h *Hold) Deadline() boottime.Instant {
	sessions := h.relied()
	deadline := sessions[0].renewal.Deadline()
	for _, s := range sessions[1:] {
		deadline = min(deadline, s.renewal.Deadline())
	}
	return deadline
}

// Token returns the fencing token of k; 0: the hold does not have k.
func (h *Hold) Token(k Key) int64 {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if i := h.find(k); i >= 0 {
		return h.locks[i].token()
	}
	return 0
}

// Grant returns the grant of k; zero: the hold does not have k.
func (h *Hold) Grant(k Key) Grant {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if i := h.find(k); i >= 0 {
		return h.locks[i].grant
	}
	return Grant{}
}

// Undisturbed reports whether nobody can have locked a directory at or above k between the token
// from and the grant of k. from is the token of a lock of this mount, in one of these directories.
func (h *Hold) Undisturbed(from int64, k Key) bool {
	h.m.mu.Lock()
	i := h.find(k)
	if i < 0 {
		h.m.mu.Unlock()
		return false
	}
	l := h.locks[i]
	to, moved := l.token(), h.m.movedSince(k, from)
	h.m.mu.Unlock()
	return !moved && l.sess.backend.Undisturbed(k, from, to)
}

// OnLost sets the function that is called for each lost lock, at once if the hold is lost already. A
// lock that is broken afterwards is not released before f has returned.
func (h *Hold) OnLost(f func()) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	h.onLost = f
	if h.Lost() && h.m.begun && !h.m.closed { // an adopted Manager calls it in Begin
		h.m.wg.Go(f)
	}
}

// Change makes a change to the files that the hold is for. It does not call Check. A broken lock is not
// released before change has returned.
func (h *Hold) Change(change func() error) error {
	h.changes.begin()
	defer h.changes.end()
	return change()
}

// Landed waits until the changes under way have returned.
func (h *Hold) Landed() { h.landed(context.Background()) }

// landed waits until ctx ends, and reports whether the changes have returned.
func (h *Hold) landed(ctx context.Context) bool {
	ended := h.changes.ended()
	select {
	case <-ended: // also if ctx has ended
		return true
	default:
	}
	select {
	case <-ended:
		return true
	case <-ctx.Done():
		return false
	}
}

// changes counts those under way.
type changes struct {
	mu    sync.Mutex
	count int           // GUARDED_BY(mu)
	none  chan struct{} // closed when count is 0; nil: nobody waits for that. GUARDED_BY(mu)
}

func (c *changes) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
}

func (c *changes) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count--; c.count == 0 && c.none != nil {
		close(c.none)
		c.none = nil
	}
}

// ended returns a channel that is closed when none is under way.
func (c *changes) ended() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.none == nil {
		c.none = make(chan struct{})
	}
	none := c.none
	if c.count == 0 {
		close(none)
		c.none = nil
	}
	return none
}

// Closing notes a close() of the file: requests that do not wait give this hold CloseGrace.
func (h *Hold) Closing() {
	h.m.mu.Lock()
	h.closing = true
	h.m.mu.Unlock()
}

// InUse reports whether no close() of the file was seen yet.
func (h *Hold) InUse() bool {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	return !h.closing
}

// Release gives the hold up and returns at once. Locks without other holds are released in the
// background. Repeated calls do nothing.
func (h *Hold) Release() {
	m := h.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.record != 0 {
		m.cfg.Record.Delete(recordHold, h.record)
		h.record = 0
	}
	for _, l := range h.locks {
		m.drop(l, h)
	}
	h.locks = nil
	if !h.released {
		for _, s := range h.relied() {
			s.holds--
		}
	}
	h.released = true
}

// Share gives h the lock of k that via has, for a new name of the file, and reports success. h
// must be of via's owner, and neither lost nor released.
func (h *Hold) Share(k Key, via *Hold) bool {
	m := h.m
	m.mu.Lock()
	defer m.mu.Unlock()
	i := via.find(k)
	if i < 0 || h.owner != via.owner || h.released || h.Lost() || via.Lost() || h.Unlocked() || h.find(k) >= 0 {
		return false
	}
	h.join(via.locks[i])
	h.rely(via.locks[i].sess)
	h.write()
	return true
}

// Drop gives up k, because the file has lost that name. The hold is still lost with its session.
func (h *Hold) Drop(k Key) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if i := h.find(k); i >= 0 {
		l := h.locks[i]
		h.locks = slices.Delete(h.locks, i, i+1)
		h.write()
		h.m.drop(l, h)
	}
}

// Keep gives up all keys except keys.
func (h *Hold) Keep(keys []Key) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	all := h.locks
	h.locks = slices.DeleteFunc(slices.Clone(all), func(l *lock) bool { return !slices.Contains(keys, l.grant.Key) })
	h.write()
	for _, l := range all {
		if !slices.Contains(h.locks, l) {
			h.m.drop(l, h)
		}
	}
}

func (h *Hold) find(k Key) int {
	return slices.IndexFunc(h.locks, func(l *lock) bool { return l.grant.Key == k })
}
