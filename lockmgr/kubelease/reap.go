package kubelease

import (
	"errors"
	"math"
	"math/rand/v2"
	"time"
)

const (
	// reapLook is how often the sessions are looked through, at least.
	reapLook = time.Second
	// reapSpread is how far apart the mounts ask for the end of a dead session:
	// most of them see that another has done so.
	reapSpread = 300 * time.Millisecond
)

// reap ends sessions that were not renewed in time, by this mount's clock: from
// when it last saw one change, by the session's own duration. A renewal that it
// has not seen makes the request fail, so that it need not see all; one that comes
// later fails itself.
//
// While the server answers nobody, nobody can renew. So it is asked for a session
// when a quarter of its time is left, in which a mount that lives does renew; if
// that is not answered, all have their whole time again once something is.
func (b *Backend) reap() {
	var asked *object // what was last asked for, and answered
	away := false
	for b.ctx.Err() == nil {
		left, o := b.mirror.due()
		var err error
		switch {
		case o == nil:
			b.pause(reapLook)
		case left > o.duration()/4:
			b.pause(min(left-o.duration()/4, reapLook))
		case o != asked:
			if err = b.confirm(o); err == nil && away {
				away = false
				b.mirror.startOver()
			} else if err == nil {
				asked = o
			}
		case left > 0:
			b.pause(min(left, reapLook))
		default:
			b.pause(rand.N(reapSpread))
			if b.mirror.at(o.name) == o {
				err = b.endSession(o)
			}
		}
		if err != nil && b.ctx.Err() == nil {
			b.log.Warn("cannot end a session that is not renewed", "session", o.sessionID(), "err", err)
			asked, away = nil, true
			b.pause(reapLook)
		}
	}
}

// confirm brings the mirror up to what the server has of a session.
func (b *Backend) confirm(o *object) error {
	now, err := b.getUrgent(b.ctx, o.name)
	if err == nil && now == nil {
		b.mirror.bury(o.name)
	}
	return err
}

// pause ends early when the backend is closed.
func (b *Backend) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-b.ctx.Done():
	}
}

// due returns the session that has the least time left, unless there is none.
func (m *mirror) due() (left time.Duration, o *object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now()
	left = math.MaxInt64
	for _, s := range m.objects {
		if s.kind != kindSession {
			continue
		}
		if l := s.duration() - now.Sub(max(s.seen, m.answered)); l < left {
			left, o = l, s
		}
	}
	return left, o
}

// startOver gives all sessions their whole time from now on.
func (m *mirror) startOver() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.answered = m.clock.Now()
}

// endSession deletes the Lease of a session if it is as it was seen, and with it
// all the session has locked. nil says that it is gone, or was renewed.
func (b *Backend) endSession(o *object) error {
	found, err := b.remove(b.ctx, b.urgent(), o.name, o)
	if errors.Is(err, errMoved) {
		return b.confirm(o)
	}
	if err == nil {
		b.mirror.bury(o.name)
	}
	if found {
		b.log.Info("ended a session that was not renewed", "session", o.sessionID(), "duration", o.duration(), "info", o.lease.Annotations[noteInfo])
	}
	return err
}
