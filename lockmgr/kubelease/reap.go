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
	// reapInterval is how often the pulses are looked through, at least.
	reapInterval = time.Second
	// reapSpread is how far apart the keepers ask for the end of a dead session:
	// most of them see that another has done so.
	reapSpread = 300 * time.Millisecond
)

// keeper ends sessions whose pulse was not renewed in time, by this mount's clock:
// from when it last saw that change, by the session's own duration. A renewal that it
// has not seen makes the request fail, so that it need not see all; one that comes
// later fails itself.
//
// While the server answers nobody, nobody can renew. So it is asked for a pulse
// when a quarter of its time is left, in which a mount that lives does renew. If a
// request fails, whatever the answer, no time counts from when the server was last
// heard of before to when it is next: it may have done nothing for anybody.
type keeper struct {
	b      *Backend
	pulses *mirror

	// Of run alone.
	asked map[string]*object // pulses as they were when the server was last asked for them, and answered
	gaps  []gap              // in order; those that matter to the pulses there are
}

// gap is a time in which the server was not heard of.
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

// failed notes that a request was, and that the server did not do what was asked.
func (k *keeper) failed() {
	k.updateGaps()
	if !k.deaf() {
		k.gaps = append(k.gaps, gap{from: k.pulses.lastHeard()})
	}
}

// deaf reports whether a gap lasts.
func (k *keeper) deaf() bool { return len(k.gaps) > 0 && k.gaps[len(k.gaps)-1].to == 0 }

// updateGaps ends the gap that lasts, if the server was heard of since it began, and
// forgets those that were before all pulses.
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

// round asks for the pulses that have a quarter of their time left, ends what has
// none, and returns when to look again. The order is another for each keeper: they
// share the work.
func (k *keeper) round(ctx context.Context) (next time.Duration, err error) {
	next = reapInterval
	pulses := k.pulses.of(kindPulse) // a map's order
	k.updateGaps()
	if k.deaf() && len(pulses) > 0 { // there may be nobody else who asks
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

// end deletes a pulse if it is as it was seen, and then the session: with it all
// the session has locked. nil says that it is gone, or was renewed.
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

// bury ends the sessions whose pulse is gone: whoever deleted it has died since, or
// was not answered.
func (k *keeper) bury(ctx context.Context) error {
	for _, o := range k.b.mirror.of(kindSession) {
		pulse := k.b.names.pulse(o.sessionID())
		if !k.pulses.gone(pulse, o.rev) {
			continue
		}
		// One that the watch does not show, for its label was changed, is there.
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
