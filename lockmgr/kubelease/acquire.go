package kubelease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// Acquire is lockmgr.Session's. A request is refused with ErrInvalidKey if it has no keys, or
// queues for a directory or shares it. One that queues for several keys stands in line for
// one after the other, in an order that all mounts share.
func (s *Session) Acquire(ctx context.Context, req lockmgr.AcquireRequest) ([]lockmgr.Grant, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	req.Holder.Session = s.id
	a := s.newAcquisition(req)
	defer s.b.mirror.unlisten(a.changes)
	defer a.endRecall()
	s.claims.add(a.claimed()...)
	if err := a.run(ctx); err != nil {
		if lockmgr.HandsOn(ctx) && a.standsInLine() {
			return nil, lockmgr.ErrStands
		}
		err = s.life.Outcome(ctx, err, a.metHolder)
		a.discard()
		return nil, err
	}
	return a.grants(), nil
}

// acquisition is one Acquire on its way.
type acquisition struct {
	s       *Session
	req     lockmgr.AcquireRequest
	places  []*place
	changes *listener
	retrier retry.Retrier
	ahead   []obstacle // the entries that were in the way last
	noted   []*noted   // our recalls
	resumed bool       // resume has looked for the entry
}

// place is where a part of an acquisition has its entries: a Lease.
type place struct {
	name   string
	keys   []lockmgr.Key // one, or several directories
	token  int64         // of our entries there; 0: none is known to stand
	unsure bool          // a write that puts them may have been carried out, or may yet be
	base   int64         // if unsure: the revision that the write replaces; 0: it creates the Lease
	passed []string      // if unsure: the sessions whose delegations were known to be over before the write was sent
	inTime bool          // look has found that our entries were not put too late
}

// sent notes that a write that replaces o is about to be sent, and which delegations are known to
// be over by now. Of two writes that may both arrive, passed is the first one's.
func (p *place) sent(o *object, passed []string) {
	if !p.unsure {
		p.passed = passed
	}
	p.unsure, p.base = true, o.revision()
}

// met notes that the Lease was found to be o, without our entries: a write that
// wanted to replace another version is void.
func (p *place) met(o *object) { p.unsure = p.unsure && o.revision() == p.base }

// newAcquisition sorts the places: all requests for several Leases take them in one order,
// so that no two wait for each other. The Lease of the directories comes last: its entries
// are in the way of all others.
func (s *Session) newAcquisition(req lockmgr.AcquireRequest) *acquisition {
	a := &acquisition{s: s, req: req}
	names := []string{s.b.names.tree()}
	for _, k := range req.Keys {
		name := s.b.names.lock(k)
		i := slices.IndexFunc(a.places, func(p *place) bool { return p.name == name })
		if i < 0 {
			i, a.places = len(a.places), append(a.places, &place{name: name})
			names = append(names, name)
		}
		a.places[i].keys = append(a.places[i].keys, k)
	}
	rank := map[lockmgr.Kind]int{lockmgr.File: 0, lockmgr.Inode: 1, lockmgr.Tree: 2}
	slices.SortFunc(a.places, func(x, y *place) int {
		return cmp.Or(cmp.Compare(rank[x.keys[0].Kind], rank[y.keys[0].Kind]), cmp.Compare(x.name, y.name))
	})
	a.changes = s.b.mirror.listen(names...)
	return a
}

// entry is ours for k.
func (a *acquisition) entry(k lockmgr.Key) entry {
	e := entry{Holder: a.req.Holder, Keep: a.req.Keep, Mode: modeName(a.req.Mode), Upgrades: a.req.UpgradeIDs(k), key: k}
	if k.Kind == lockmgr.Tree {
		e.Dir = escape(k.Path)
	}
	return e
}

// run returns nil when the keys are held.
func (a *acquisition) run(ctx context.Context) error {
	if a.req.Wait == lockmgr.Queue {
		return a.queue(ctx)
	}
	for {
		err := a.try(ctx)
		late := errors.Is(err, errLate)
		noWait := a.req.Wait == lockmgr.NoWait
		if !late && (!errors.Is(err, lockmgr.ErrContended) || a.req.Mode == lockmgr.Delegated || a.deadlocked() || noWait && !a.mayTryRecall()) {
			return err
		}
		// No other request must queue behind one that does not queue itself.
		if err := a.withdraw(ctx); err != nil {
			return err
		}
		if late {
			continue
		}
		if noWait {
			if !a.tryRecall(ctx) {
				return err
			}
			continue
		}
		if err := a.awaitGone(ctx, a.inTheWay); err != nil {
			return err
		}
	}
}

// queue stands in line. It begins anew when it got there too late.
func (a *acquisition) queue(ctx context.Context) error {
	if a.req.Again {
		if err := a.retrier.Do(ctx, func() error { return a.resume(ctx) }); err != nil {
			return err
		}
	}
	for {
		if a.places[0].token == 0 {
			if err := a.awaitGone(ctx, a.delegations); err != nil {
				return err
			}
		}
		err := a.standInLine(ctx)
		if !errors.Is(err, errLate) {
			return err
		}
		if err := a.withdraw(ctx); err != nil {
			return err
		}
	}
}

// standInLine stands in the lines of the keys, one after the other. Errors: errLate.
func (a *acquisition) standInLine(ctx context.Context) error {
	for _, p := range a.places {
		if err := a.retrier.Do(ctx, func() error { return a.put(ctx, p) }); err != nil {
			return err
		}
		if err := a.awaitMirror(ctx); err != nil {
			return err
		}
		if err := a.look(); err != nil {
			return err
		}
		if err := a.await(ctx, func() ([]obstacle, error) { return a.standing(p) }); err != nil {
			return err
		}
	}
	return a.await(ctx, a.across)
}

// try puts the entries only where nothing is in their way. Errors: ErrContended, errLate.
func (a *acquisition) try(ctx context.Context) error {
	if err := a.checkFree(ctx); err != nil {
		return err
	}
	for _, p := range a.places {
		put := func() error { return a.put(ctx, p) }
		var err error
		if a.req.Wait == lockmgr.NoWait {
			err = put()
		} else {
			err = a.retrier.Do(ctx, put)
		}
		if err != nil {
			return err
		}
	}
	if err := a.awaitMirror(ctx); err != nil {
		return err
	}
	if err := a.look(); err != nil {
		return err
	}
	a.s.b.mirror.mu.Lock()
	defer a.s.b.mirror.mu.Unlock()
	found, err := a.across()
	for _, p := range a.places {
		if err == nil {
			var ahead []obstacle
			ahead, err = a.standing(p) // what came after a delegation of ours was passed
			found = append(found, ahead...)
		}
	}
	if err != nil || len(found) == 0 {
		return err
	}
	a.ahead = found
	return a.contended(nil)
}

// mostDelegated is how long the directories' entries may become by a delegation, a quarter of what the
// server allows. The rest is for renames, which must not fail, and for recalls.
const mostDelegated = 64 << 10

// put puts our entries in p, at the end of the line. Unless we queue, an entry ahead means
// ErrContended.
func (a *acquisition) put(ctx context.Context, p *place) error {
	b := a.s.b
	fresh := p.unsure // the answer to that is not in the mirror
	o, err := b.change(ctx, p.name, fresh, func(o *object) (*coordinationv1.Lease, error) {
		if err := b.names.fits(o, p.keys[0]); err != nil {
			return nil, err
		}
		if o.find(a.req.Grant(p.keys[0], 0)) >= 0 && (p.unsure || p.token != 0 || a.req.Again) {
			return nil, nil
		}
		p.met(o)
		b.mirror.mu.Lock()
		defer b.mirror.mu.Unlock()
		stand, over := a.delegated(p.keys)
		if len(stand) > 0 && a.req.Wait == lockmgr.Queue {
			return nil, errLate
		}
		var entries []entry
		if o != nil {
			entries = slices.DeleteFunc(slices.Clone(o.entries), func(e entry) bool {
				return !b.mirror.lives(&e) || b.unwanted(&e) || a.has(p, &e)
			})
		}
		a.ahead = stand
		for _, k := range p.keys {
			e := a.entry(k)
			if o != nil {
				a.ahead = append(a.ahead, a.heeded(b.mirror.inLine(o, len(o.entries), &e))...)
			}
			entries = append(entries, e)
		}
		if len(a.ahead) > 0 && (a.req.Wait != lockmgr.Queue || a.deadlocked()) {
			return nil, a.contended(nil)
		}
		lease, err := b.names.lockLease(o, p.keys[0], entries, true)
		if err == nil && a.req.Mode == lockmgr.Delegated && len(lease.Annotations[noteEntries]) > mostDelegated {
			return nil, fmt.Errorf("%w: too many directories of the volume are delegated", lockmgr.ErrContended)
		}
		p.sent(o, over)
		return lease, err
	})
	if err != nil {
		if errors.Is(err, lockmgr.ErrContended) && a.deadlocked() && a.req.Wait == lockmgr.Queue {
			return fmt.Errorf("%w: %v", lockmgr.ErrDeadlock, err)
		}
		return err
	}
	i := o.find(a.req.Grant(p.keys[0], 0))
	if i < 0 {
		return fmt.Errorf("%w: %s was written without our entry", lockmgr.ErrUnavailable, p.name)
	}
	p.token, p.unsure = o.entries[i].Token, false
	return nil
}

// has reports whether e is an entry that we put in p. If we have sent none yet, a process that died has
// put it: it may be on its way out, and is put anew.
func (a *acquisition) has(p *place, e *entry) bool {
	return slices.ContainsFunc(p.keys, func(k lockmgr.Key) bool { return e.of(a.req.Grant(k, 0)) })
}

// awaitMirror returns when the mirror shows everything that was put before our newest entry.
// Later requests find ours.
func (a *acquisition) awaitMirror(ctx context.Context) error {
	var newest int64
	for _, p := range a.places {
		newest = max(newest, p.token)
	}
	reach := func() error { return a.s.b.reach(ctx, newest, a.changes) }
	if a.req.Wait == lockmgr.NoWait {
		return reach()
	}
	return a.retrier.Do(ctx, reach)
}
