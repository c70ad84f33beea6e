package kubelease

import (
	"context"
	"slices"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// checkFree returns ErrContended if a key is not free. For a request that does not wait, it
// asks the server: the mirror may still show what is gone.
func (a *acquisition) checkFree(ctx context.Context) error {
	var asked []string
	for {
		if a.ahead = a.inTheWay(); len(a.ahead) == 0 {
			return nil
		}
		first := a.ahead[0]
		if a.req.Wait != lockmgr.NoWait || slices.Contains(asked, first.object) {
			return a.contended(nil)
		}
		asked = append(asked, first.object)
		if err := a.verify(ctx, first); err != nil {
			return err
		}
	}
}

// inTheWay returns the entries that would be in the way of ours if ours were put now, in the order
// of our keys.
func (a *acquisition) inTheWay() (found []obstacle) {
	m := a.s.b.mirror
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range a.req.Keys {
		e := a.entry(k)
		if o := m.objects[m.names.lock(k)]; o != nil {
			found = append(found, m.inLine(o, len(o.entries), &e)...)
		}
		found = append(found, m.across(&e)...)
	}
	return a.heeded(found)
}

// heeded returns the obstacles that count. It leaves out entries of this mount that it has given up
// or that nobody claims, and entries of others that were put too late, behind a delegation of this
// session. mirror.mu is held.
func (a *acquisition) heeded(found []obstacle) []obstacle {
	return slices.DeleteFunc(found, func(o obstacle) bool {
		if a.s.b.unwanted(&o.entry) {
			return true
		}
		d := a.own(o.entry.key)
		return d != nil && o.entry.Session != a.s.id && o.entry.Token > d.Token
	})
}

// verify updates the mirror with what the server has of an obstacle.
func (a *acquisition) verify(ctx context.Context, o obstacle) error {
	b := a.s.b
	if _, err := b.get(ctx, o.object); err != nil {
		return err
	}
	session, err := b.get(ctx, b.names.session(o.entry.Session))
	if err == nil && session == nil {
		b.mirror.bury(b.names.session(o.entry.Session))
	}
	return err
}

// await returns when there are no obstacles any more. Errors: those of obstacles,
// ErrUnavailable with ctx's.
func (a *acquisition) await(ctx context.Context, obstacles func() ([]obstacle, error)) error {
	for {
		a.s.b.mirror.mu.Lock()
		ahead, err := obstacles()
		a.s.b.mirror.mu.Unlock()
		if a.ahead = ahead; err != nil || len(ahead) == 0 {
			return err
		}
		a.req.Waiting()
		select {
		case <-a.changes.ch:
		case <-ctx.Done():
			return retry.Ended(ctx)
		}
	}
}

// awaitGone returns when obstacles returns none. It recalls what may be kept of them.
func (a *acquisition) awaitGone(ctx context.Context, obstacles func() []obstacle) error {
	for {
		if a.ahead = obstacles(); len(a.ahead) == 0 {
			return nil
		}
		a.req.Waiting()
		if err := a.retrier.Do(ctx, func() error { return a.recall(ctx) }); err != nil {
			return err
		}
		if err := a.awaitChange(ctx, a.ahead[0].object, obstacles); err != nil {
			return err
		}
	}
}

// awaitChange returns when the Lease of that name has changed since it was found
// in the way.
func (a *acquisition) awaitChange(ctx context.Context, name string, obstacles func() []obstacle) error {
	m := a.s.b.mirror
	e := m.listen(name)
	defer m.unlisten(e)
	if !slices.ContainsFunc(obstacles(), func(o obstacle) bool { return o.object == name }) {
		return nil
	}
	select {
	case <-e.ch:
		return nil
	case <-ctx.Done():
		return retry.Ended(ctx)
	}
}

// discard removes, in the background, the entries that a failed acquisition put or may have
// put.
func (a *acquisition) discard() {
	s := a.s
	if !slices.ContainsFunc(a.places, func(p *place) bool { return p.unsure || p.token != 0 }) {
		s.claims.drop(a.claimed()...)
		return
	}
	s.claims.giveUp(a.claimed()...)
	s.life.Discard(a.req.Holder.AcquisitionID, a.withdraw, func() { s.claims.drop(a.claimed()...) })
}

// withdraw removes our entries, and makes void a write that may be on its way: after the
// Lease was written again, no earlier request can replace it.
func (a *acquisition) withdraw(ctx context.Context) error {
	for _, p := range a.places {
		if !p.unsure && p.token == 0 {
			continue
		}
		var r retry.Retrier
		if err := r.Do(ctx, func() error { return a.leave(ctx, p) }); err != nil {
			return err
		}
	}
	return nil
}

func (a *acquisition) leave(ctx context.Context, p *place) error {
	_, err := a.s.b.change(ctx, p.name, p.unsure, func(o *object) (*coordinationv1.Lease, error) {
		var kept []entry
		ours := 0
		if err := a.s.b.names.fits(o, p.keys[0]); err != nil {
			return nil, err
		}
		if o != nil {
			kept = a.s.b.living(o, func(e *entry) bool { return e.AcquisitionID == a.req.Holder.AcquisitionID })
			ours = len(o.entries) - len(kept)
		}
		if ours == 0 {
			if p.met(o); !p.unsure {
				return nil, nil
			}
		}
		lease, err := a.s.b.names.lockLease(o, p.keys[0], kept, false)
		if err == nil && ours == 0 {
			// Not the same twice: the server does not write an Update that changes nothing.
			lease.Annotations[noteFence] = uuid.NewString()
		}
		return lease, err
	})
	if err == nil {
		p.unsure, p.token, p.inTime = false, 0, false
	}
	return err
}

// living returns the entries of o, without those to be left out and those of sessions that
// have ended.
func (b *Backend) living(o *object, without func(*entry) bool) []entry {
	b.mirror.mu.Lock()
	defer b.mirror.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(o.entries), func(e entry) bool { return without(&e) || !b.mirror.lives(&e) })
}
