package lockmgr

import (
	"errors"
	"log/slog"
	"time"

	"github.com/lockfs/lockfs/renew"
)

// drop takes h off l, and gives l back to the service when h was the last.
// m.mu is held.
func (m *Manager) drop(l *lock, h *Hold) {
	delete(l.holds, h)
	if len(l.holds) > 0 {
		return
	}
	s := m.slots[l.grant.Key]
	if !s.has(l) {
		return // lost meanwhile: there is nothing to give back
	}
	l.unwatch()
	l.dying = true
	m.changed(s)
	m.giveBack(l.sess, l.grant, func() {
		s.void(l)
		m.changed(s)
	})
}

// giveBack deletes a grant from the service in the background and calls done
// under m.mu when it is gone, one way or the other. m.mu is held.
func (m *Manager) giveBack(sess *session, g Grant, done func()) {
	if m.closed {
		done() // the whole session is being ended
		return
	}
	m.wg.Go(func() {
		m.release(sess, g)
		m.mu.Lock()
		defer m.mu.Unlock()
		done()
	})
}

// release tries until the entry is gone: by our hand, or with its session.
func (m *Manager) release(sess *session, g Grant) {
	log := m.log.With(slog.String("path", g.Key.String()),
		slog.String("owner", g.Owner.String()), slog.Int64("token", g.Token))
	unsure := false // an attempt without an answer may have deleted the entry
	for delay := retryMin; ; delay = min(2*delay, retryMax) {
		err := sess.backend.Release(m.ctx, g)
		switch {
		case err == nil, errors.Is(err, ErrSessionLost):
			return
		case errors.Is(err, ErrNotHeld) && unsure:
			return
		case errors.Is(err, ErrNotHeld), errors.Is(err, ErrNotOwner):
			if sess.renewal.State() != renew.Lost { // else it was reported
				log.Error("released a lock that was not ours any more", slog.Any("error", err))
			}
			return
		}
		unsure = true
		select {
		case <-time.After(delay):
			log.Warn("cannot release a lock; trying again", slog.Any("error", err))
		case <-sess.renewal.Lost():
			return
		case <-m.ctx.Done():
			return // Close ends the session
		}
	}
}
