package lockmgr

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"

	"github.com/lockfs/lockfs/internal/boottime"
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

// Check returns nil if the file may be written at this instant. Errors: ErrSuspended (the
// service has not answered for too long, see Await); ErrSessionLost and ErrLockLost, which
// are final. It costs one reading of the clock.
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

// relied returns the sessions that the hold depends on.
func (h *Hold) relied() []*session {
	if p := h.sessions.Load(); p != nil {
		return *p
	}
	return nil
}

// rely makes the hold depend on s, for ever: if s is lost, so is the hold, even if it gave
// up its lock of s before. m.mu is held.
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
	return h.Check()
}

// Troubled reports whether the hold may soon be suspended: what is written
// under it has to reach the volume now, while it may.
func (h *Hold) Troubled() bool {
	return slices.ContainsFunc(h.relied(), func(s *session) bool { return s.renewal.Troubled() })
}

// Owner tells whose hold this is.
func (h *Hold) Owner() Owner { return h.owner }

// Deadline returns until when Check answers nil if the lock service does not answer again:
// an instant long past when a session is lost. No other owner gets the lock before
// renew.Config's Margin has passed as well. The hold must not be Unlocked.
func (h *Hold) Deadline() boottime.Instant {
	sessions := h.relied()
	deadline := sessions[0].renewal.Deadline()
	for _, s := range sessions[1:] {
		deadline = min(deadline, s.renewal.Deadline())
	}
	return deadline
}

// Token returns the fencing token of k, 0 if the hold does not have it.
func (h *Hold) Token(k Key) int64 {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if i := h.find(k); i >= 0 {
		return h.locks[i].token()
	}
	return 0
}

// Grant returns the grant of k, the zero Grant if the hold does not have it.
func (h *Hold) Grant(k Key) Grant {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if i := h.find(k); i >= 0 {
		return h.locks[i].grant
	}
	return Grant{}
}

// Undisturbed reports whether nobody is known to have locked a directory between the grant with
// the token from and that of k.
func (h *Hold) Undisturbed(from int64, k Key) bool {
	h.m.mu.Lock()
	i := h.find(k)
	if i < 0 {
		h.m.mu.Unlock()
		return false
	}
	l := h.locks[i]
	h.m.mu.Unlock()
	return l.sess.backend.Undisturbed(from, l.grant.Token)
}

// OnLost sets the function that is called, once a lock, when a lock of the hold is lost. If
// the lock was broken, no other owner gets it before f has returned.
func (h *Hold) OnLost(f func()) {
	h.m.mu.Lock()
	h.onLost = f
	h.m.mu.Unlock()
}

// Closing notes that a close() of the file was seen: a request that does not wait gives
// this hold CloseGrace to be released.
func (h *Hold) Closing() {
	h.m.mu.Lock()
	h.closing = true
	h.m.mu.Unlock()
}

// Release gives the hold up, and returns at once. A lock without other holds is deleted from
// the service in the background, after its token was compared. Release may be called more
// than once.
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

// Share gives h the lock of k that via has: the file has got one more name, or is about to.
// It reports whether h has got it. h must be of via's owner, and neither lost nor released.
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

// Drop makes h give up k: the file has lost that name. A hold without keys is still lost
// with its session.
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
