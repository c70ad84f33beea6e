package kubelease

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"time"

	"github.com/lockfs/lockfs/internal/boottime"
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
func (b *Backend) reap() {
	for {
		due, dead := b.mirror.due()
		if dead == nil {
			select {
			case <-time.After(min(due, reapLook)):
				continue
			case <-b.ctx.Done():
				return
			}
		}
		select {
		case <-time.After(rand.N(reapSpread)):
		case <-b.ctx.Done():
			return
		}
		if b.mirror.at(dead.name) != dead {
			continue
		}
		if err := b.endSession(b.ctx, dead); err != nil && b.ctx.Err() == nil {
			b.log.Warn("cannot end a session that is not renewed", "session", dead.sessionID(), "err", err)
			select {
			case <-time.After(reapLook):
			case <-b.ctx.Done():
			}
		}
	}
}

// due returns a session that is over, or how long there will be none.
func (m *mirror) due() (left time.Duration, dead *object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now()
	left = math.MaxInt64
	for _, o := range m.objects {
		if o.kind != kindSession {
			continue
		}
		if l := o.left(now); l < left {
			left, dead = l, o
		}
	}
	if left > 0 {
		return left, nil
	}
	return 0, dead
}

// left is how long a session has, unless it is renewed.
func (o *object) left(now boottime.Instant) time.Duration { return o.duration() - now.Sub(o.seen) }

// endSession deletes the Lease of a session if it is as it was seen, and with it
// all the session has locked. nil says that it is gone, or was renewed.
func (b *Backend) endSession(ctx context.Context, o *object) error {
	err := b.remove(ctx, b.urgent(), o.name, o)
	if errors.Is(err, errMoved) {
		now, err := b.getUrgent(ctx, o.name)
		if err == nil && now == nil {
			b.mirror.bury(o.name)
		}
		return err
	}
	if err == nil {
		b.mirror.bury(o.name)
		b.log.Info("ended a session that was not renewed", "session", o.sessionID(), "duration", o.duration(), "info", o.lease.Annotations[noteInfo])
	}
	return err
}
