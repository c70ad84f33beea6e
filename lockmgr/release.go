package lockmgr

import (
	"errors"
	"log/slog"
	"time"

	"github.com/lockfs/lockfs/internal/retry"
)

// drop takes h off l, and gives l back after its last hold. m.mu is held.
func (m *Manager) drop(l *lock, h *Hold) {
	delete(l.holds, h)
	if len(l.holds) > 0 {
		return
	}
	if l.releasing || !l.stands() || m.keep(l) {
		return // lost meanwhile: nothing to give back
	}
	m.table.giveUp(l)
	m.giveBack(l)
}

// giveBack releases a lock in the background, and then voids it. m.mu is held.
func (m *Manager) giveBack(l *lock) {
	if m.closed {
		m.void(l) // the whole session is being ended
		return
	}
	held := time.Since(l.since)
	if l.below != nil {
		if l.left = l.putting; !l.left {
			m.observe(LockReleased{Held: held})
			m.debug("lock released", l, slog.Duration("held", held))
			m.void(l)
		}
		return
	}
	m.wg.Go(func() {
		m.release(l)
		if !l.observed {
			m.observe(LockReleased{Held: held})
		}
		m.debug("lock released", l, slog.Duration("held", held))
		m.mu.Lock()
		defer m.mu.Unlock()
		m.void(l)
	})
}

// leftover treats the entries that a failed request has left as locks being released. Otherwise
// this mount's next request would take them for another owner's. m.mu is held.
func (m *Manager) leftover(err error, req AcquireRequest, owner Owner, places []*place, sess *session) {
	var left *LeftoverError
	if !errors.As(err, &left) || m.closed {
		return
	}
	var locks []*lock
	for _, p := range places {
		l := &lock{grant: req.Grant(p.slot.key, 0), holder: req.Holder, owner: owner, sess: sess}
		m.table.add(p.slot, l)
		m.table.giveUp(l)
		locks = append(locks, l)
	}
	m.wg.Go(func() {
		select {
		case <-left.Gone:
		case <-m.ctx.Done():
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, l := range locks {
			m.void(l)
		}
	})
}

// release tries until the entry is gone: by our delete, or with its session.
func (m *Manager) release(l *lock) {
	sess, g := l.sess, l.grant
	unsure := false // an unanswered attempt may have deleted the entry
	for r := (retry.Retrier{}); ; {
		sent := time.Now()
		err := sess.backend.Release(m.ctx, g)
		m.outage.note(sent, err)
		switch {
		case err == nil:
			m.unreleased.Store(0)
			return
		case errors.Is(err, ErrSessionLost):
			return
		case errors.Is(err, ErrNotHeld) && unsure:
			return
		case errors.Is(err, ErrNotHeld), errors.Is(err, ErrNotOwner):
			select {
			case <-sess.renewal.Lost(): // which is reported
			case <-m.ctx.Done():
			case <-time.After(m.cfg.AnswerTimeout): // the renewal may hear of it after us
				m.lockLog(l).Error("released a lock that was not ours any more", slog.Any("error", err))
			}
			return
		}
		unsure = true
		if m.ctx.Err() != nil {
			return // Close ends the session
		}
		level := slog.LevelWarn
		failures := m.unreleased.Add(1)
		if failures&(failures-1) != 0 { // log less and less often during an outage
			level = slog.LevelDebug
		}
		m.lockLog(l).Log(m.ctx, level, "cannot release a lock; trying again", slog.Any("error", err), slog.Int64("failures", failures))
		select {
		case <-time.After(r.Delay()):
		case <-sess.renewal.Lost():
			return
		case <-m.ctx.Done():
			return
		}
	}
}
