package lockmgr

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"

	"github.com/lockfs/lockfs/internal/boottime"
	"github.com/lockfs/lockfs/renew"
)

// Hold is one reference to the locks of one owner: an open file's, or a
// system call's for its length. It may be used by many goroutines.
type Hold struct {
	m        *Manager
	owner    Owner
	unlocked bool // constant; see Unlocked

	// sessions are those of its locks, now or once: one, but for files that were
	// renamed or linked. nil of a hold that is Unlocked, and before it is granted.
	sessions atomic.Pointer[[]*session]

	lost atomic.Pointer[error] // why this hold is void, for ever; nil while it is not

	locks    []*lock // GUARDED_BY(m.mu)
	closing  bool    // GUARDED_BY(m.mu); a close() of the file was seen
	released bool    // GUARDED_BY(m.mu)
	onLost   func()  // GUARDED_BY(m.mu); see OnLost
}

// Check says whether what the hold guards may be written at this instant: nil,
// ErrSuspended (the service has not answered for too long; see Await),
// or ErrSessionLost or ErrLockLost, which are final. It costs one clock read.
func (h *Hold) Check() error {
	if h.Unlocked() || h.lost.Load() == nil && h.valid() {
		return nil
	}
	return h.state()
}

func (h *Hold) state() error {
	if err := h.why(); err != nil {
		return err
	}
	if h.valid() {
		return nil
	}
	return ErrSuspended
}

func (h *Hold) valid() bool {
	sessions := h.relied()
	for _, s := range sessions {
		if !s.renewal.Valid() {
			return false
		}
	}
	return len(sessions) > 0
}

// relied returns the sessions that the hold is as good as.
func (h *Hold) relied() []*session {
	if p := h.sessions.Load(); p != nil {
		return *p
	}
	return nil
}

// rely makes the hold as good as s is, too, for ever: what is lost with s does not
// become good again because its lock was given up meanwhile. m.mu is held.
func (h *Hold) rely(s *session) {
	sessions := h.relied()
	if !slices.Contains(sessions, s) {
		sessions = append(slices.Clone(sessions), s)
		h.sessions.Store(&sessions)
		s.holds++
	}
}

// Await waits while the session is suspended. It returns nil when the hold
// may be written again, ErrSessionLost or ErrLockLost, or ctx's error.
func (h *Hold) Await(ctx context.Context) error {
	for _, s := range h.relied() {
		if err := s.renewal.Await(ctx); err != nil {
			return cmp.Or(h.why(), err)
		}
	}
	return h.state()
}

// Troubled reports whether the hold may soon be suspended: what is written
// under it has to reach the volume now, while it may.
func (h *Hold) Troubled() bool { return !h.Unlocked() && h.anySession((*renew.Session).Troubled) }

func (h *Hold) anySession(is func(*renew.Session) bool) bool {
	return slices.ContainsFunc(h.relied(), func(s *session) bool { return is(s.renewal) })
}

// Owner tells whose hold this is.
func (h *Hold) Owner() Owner { return h.owner }

// Deadline returns until when Check answers nil if the lock service does not answer
// again, an instant long past when a session is lost. Nobody else has the lock
// before renew.Config's Guard has passed as well. The hold is not Unlocked.
func (h *Hold) Deadline() boottime.Instant {
	sessions := h.relied()
	deadline := sessions[0].renewal.Deadline()
	for _, s := range sessions[1:] {
		deadline = min(deadline, s.renewal.Deadline())
	}
	return deadline
}

// Token returns the fencing token of k, 0 if the hold does not have it.
func (h *Hold) Token(k Key) int64 { return h.Grant(k).Token }

// Grant returns what the service granted for k; the zero Grant if the hold does
// not have it.
func (h *Hold) Grant(k Key) Grant {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if i := h.find(k); i >= 0 {
		return h.locks[i].grant
	}
	return Grant{}
}

// OnLost sets what is called, once a lock, when a lock of the hold is lost. If
// it was broken, nobody else gets it before f has returned.
func (h *Hold) OnLost(f func()) {
	h.m.mu.Lock()
	h.onLost = f
	h.m.mu.Unlock()
}

// Closing notes that a close() of the file was seen: a request that does not
// wait gives this hold a moment to go.
func (h *Hold) Closing() {
	h.m.mu.Lock()
	h.closing = true
	h.m.mu.Unlock()
}

// Release gives the hold up. It returns at once; a lock that nobody else of
// its owner holds is deleted from the service in the background, after its
// token was compared. Release may be called more than once.
func (h *Hold) Release() {
	m := h.m
	m.mu.Lock()
	defer m.mu.Unlock()
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

// Share makes h keep k, which via holds, as well: the file has got one more name,
// or is about to. It reports whether h has it now and had it not. What is not
// void, and of via's owner, gets it: nobody else may have what via holds.
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
	return true
}

// Drop makes h give up k: the file has lost that name. A hold without keys
// still ends with its session.
func (h *Hold) Drop(k Key) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if i := h.find(k); i >= 0 {
		l := h.locks[i]
		h.locks = slices.Delete(h.locks, i, i+1)
		h.m.drop(l, h)
	}
}

// Keep makes h give up all keys but those.
func (h *Hold) Keep(keys []Key) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	kept := make([]*lock, 0, len(keys))
	for _, l := range h.locks {
		if slices.Contains(keys, l.grant.Key) {
			kept = append(kept, l)
		} else {
			h.m.drop(l, h)
		}
	}
	h.locks = kept
}

func (h *Hold) find(k Key) int {
	return slices.IndexFunc(h.locks, func(l *lock) bool { return l.grant.Key == k })
}
