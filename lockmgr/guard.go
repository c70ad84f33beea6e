package lockmgr

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// guardAfter is how long a lock is held before its entry is watched. Most are
// gone by then, and cost the service nothing more.
const guardAfter = time.Second

// guard watches that the entry of a lock which is held for long stands in the
// service. Nobody is to remove it, but somebody may; the next owner is granted
// the key at once. m.mu is held.
func (m *Manager) guard(l *lock) {
	timer := time.AfterFunc(guardAfter, func() { m.watchEntry(l) })
	l.unwatch = func() { timer.Stop() }
}

func (m *Manager) watchEntry(l *lock) {
	m.mu.Lock()
	if m.closed || !m.slots[l.grant.Key].has(l) {
		m.mu.Unlock()
		return
	}
	ctx, cancel := context.WithCancel(m.ctx)
	defer cancel()
	l.unwatch = cancel
	m.wg.Add(1)
	m.mu.Unlock()
	defer m.wg.Done()
	if l.sess.backend.AwaitGone(ctx, l.grant) == nil && ctx.Err() == nil {
		m.lockLost(l, fmt.Errorf("%w: its entry was deleted from the lock service", ErrLockLost))
	}
}

// void takes a lock out of its slot: it is given back, or lost. m.mu is held.
func (s *slot) void(l *lock) {
	l.unwatch()
	if i := slices.Index(s.locks, l); i >= 0 {
		s.locks = slices.Delete(s.locks, i, i+1)
		l.sess.locks--
	}
}

// has reports whether l is a lock of the slot that can still be lost. m.mu is held.
func (s *slot) has(l *lock) bool { return s != nil && !l.dying && slices.Contains(s.locks, l) }
