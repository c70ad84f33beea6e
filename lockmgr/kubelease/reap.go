package kubelease

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lockfs/lockfs/internal/boottime"
)

const (
	// reapInterval is how often the pulses are checked, at least.
	reapInterval = time.Second
	// reapSpread is how long a keeper waits, at most, before it ends a dead session: most
	// keepers see then that another has.
	reapSpread = 300 * time.Millisecond
)

// keeper ends a session when, by this mount's clock, it has not seen the pulse change for the
// session's own duration. It need not see all renewals: after a renewal that it has not seen, its
// request to delete the pulse fails; a renewal that comes after the request fails itself.
//
// While the server answers no mount, no mount can renew. So the keeper reads a pulse when a quarter
// of its duration is left: a mount that is alive renews in that time. If such a request fails, for
// whatever reason, the time from the server's last answer to its next one does not count, because
// in that time it may have answered no mount.
type keeper struct {
	b      *Backend
	pulses *mirror

	// Used by run alone.
	asked map[string]*object // pulses as they were when the server last answered for them
	gaps  []gap              // in order, without those that ended before any pulse was last seen to change
}

// gap is a time in which nothing was heard of the server.
type gap struct {
	from, to boottime.Instant // to is 0 while it lasts
}

// run looks at the pulses until ctx ends. It sends one request at a time.
func (k *keeper) run(ctx context.Context) {
	select {
	case <-k.pulses.synced:
	case <-ctx.Done():
		return
	}
	for ctx.Err() == nil {
		next, err := k.round(ctx)
		if err != nil && ctx.Err() == nil {
			k.b.log.Warn("cannot end a session that is not renewed", "error", err)
			k.failed()
			next = reapInterval + rand.N(reapInterval)
		}
		k.b.pause(ctx, next)
	}
}

// failed notes that a request has failed.
func (k *keeper) failed() {
	k.updateGaps()
	if !k.deaf() {
		k.gaps = append(k.gaps, gap{from: k.pulses.lastHeard()})
	}
}

// deaf reports whether a gap lasts.
func (k *keeper) deaf() bool { return len(k.gaps) > 0 && k.gaps[len(k.gaps)-1].to == 0 }

// updateGaps ends the last gap if the server was heard of since the gap began. It forgets the gaps
// that ended before any pulse was last seen to change.
func (k *keeper) updateGaps() {
	if last := len(k.gaps) - 1; k.deaf() && k.pulses.lastHeard() > k.gaps[last].from {
		k.gaps[last].to = k.pulses.lastHeard()
	}
	oldest := k.pulses.clock.Now()
	for _, o := range k.pulses.of(kindPulse) {
		oldest = min(oldest, o.seen)
	}
	k.gaps = slices.DeleteFunc(k.gaps, func(g gap) bool { return g.to != 0 && g.to <= oldest })
}

// round reads the pulses that have a quarter of their time left, ends the sessions of those that
// have none left, and returns when to check again. The order of the pulses differs from keeper to
// keeper, so that they share the work.
func (k *keeper) round(ctx context.Context) (next time.Duration, err error) {
	next = reapInterval
	pulses := k.pulses.of(kindPulse) // a map's order
	k.updateGaps()
	if k.deaf() && len(pulses) > 0 { // perhaps no other request of this round would end the gap
		soonest := slices.MinFunc(pulses, func(a, b *object) int { return cmp.Compare(k.left(a), k.left(b)) })
		if err := k.confirm(ctx, soonest.name); err != nil {
			return 0, err
		}
		k.updateGaps()
	}
	var over []*object
	for _, o := range pulses {
		left := k.left(o)
		switch {
		case left > o.duration()/4:
			next = min(next, left-o.duration()/4)
			continue
		case k.asked[o.name] != o:
			if err := k.confirm(ctx, o.name); err != nil {
				return 0, err
			}
			k.asked[o.name] = o
			left = k.left(o)
			next = min(next, max(left, 0))
		case left > 0:
			next = min(next, left)
		default:
			over = append(over, o)
		}
	}
	for name := range k.asked {
		if k.pulses.at(name) == nil {
			delete(k.asked, name)
		}
	}
	if len(over) > 0 {
		k.b.pause(ctx, rand.N(reapSpread))
		next = 0
	}
	for _, o := range over {
		if k.pulses.at(o.name) != o {
			continue
		}
		if err := k.end(ctx, o); err != nil {
			return 0, err
		}
	}
	return next, k.bury(ctx)
}

// left is how much time a session has left.
func (k *keeper) left(o *object) time.Duration {
	now := k.pulses.clock.Now()
	left := o.duration() - now.Sub(o.seen)
	for _, g := range k.gaps {
		if g.to == 0 {
			g.to = now
		}
		left += max(0, g.to.Sub(max(g.from, o.seen)))
	}
	return left
}

// confirm brings the mirror up to what the server has of a pulse.
func (k *keeper) confirm(ctx context.Context, name string) error {
	now, err := k.b.getUrgent(ctx, name)
	if err != nil {
		return err
	}
	k.pulses.hear()
	if now == nil {
		k.pulses.bury(name)
		return nil
	}
	_, era := k.pulses.newest()
	_, err = k.pulses.learn(era, now.lease)
	return err
}

// end deletes a pulse if it is as it was seen, and then the session, which frees its locks.
// nil says that the pulse is gone, or was renewed.
func (k *keeper) end(ctx context.Context, pulse *object) error {
	found, err := k.b.remove(ctx, k.b.urgent(), pulse.name, pulse)
	if errors.Is(err, errMoved) {
		return k.confirm(ctx, pulse.name)
	}
	if err != nil {
		return err
	}
	k.pulses.hear()
	k.pulses.bury(pulse.name)
	id := pulse.sessionID()
	if found {
		info := ""
		if o := k.b.mirror.at(k.b.names.session(id)); o != nil {
			info = o.lease.Annotations[noteInfo]
		}
		k.b.log.Info("ended a session that was not renewed", "session", id, "duration", pulse.duration(), "info", info)
	}
	return k.b.endSession(ctx, id)
}

// bury ends the sessions whose pulse is gone: the keeper that deleted it has died since, or
// was not answered.
func (k *keeper) bury(ctx context.Context) error {
	for _, o := range k.b.mirror.of(kindSession) {
		pulse := k.b.names.pulse(o.sessionID())
		if !k.pulses.gone(pulse, o.rev) {
			continue
		}
		// The watch does not show a pulse whose label was changed.
		if now, err := k.b.getUrgent(ctx, pulse); err != nil {
			return err
		} else if now != nil {
			continue
		}
		if err := k.b.endSession(ctx, o.sessionID()); err != nil {
			return err
		}
	}
	return nil
}

// gone reports whether a Lease that was put before rev has been removed.
func (m *mirror) gone(name string, rev int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asOf >= rev && m.objects[name] == nil
}

// endSession deletes the Lease of a session whose pulse is gone.
func (b *Backend) endSession(ctx context.Context, id string) error {
	name := b.names.session(id)
	if _, err := b.remove(ctx, b.urgent(), name, nil); err != nil {
		return err
	}
	b.mirror.bury(name)
	return nil
}
