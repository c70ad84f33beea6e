package kubelease

import (
	"context"
	"errors"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/lockfs/lockfs/lockmgr"
)

// Release removes the grant's entry, after comparing owner and token, and leaves
// the Lease. Errors: ErrNotHeld, ErrNotOwner, ErrUnavailable, wrapping ctx's if
// that ended the call.
//
// After ErrUnavailable the entry may be gone or not. The caller releases again,
// and takes ErrNotHeld for success then: the first request may have been carried
// out. A request that was carried out may be sent again on its way, and is refused then.
// So an entry that is gone after a request counts as released.
func (s *Session) Release(ctx context.Context, g lockmgr.Grant) error {
	sent := false
	_, err := s.b.change(ctx, s.b.names.lock(g.Key), false, func(o *object) (*coordinationv1.Lease, error) {
		i := o.find(g)
		switch {
		case s.life.Ended(), i < 0 && !sent:
			return nil, fmt.Errorf("%w: %s, token %d", lockmgr.ErrNotHeld, g.Key, g.Token)
		case i < 0:
			return nil, nil
		}
		// A Lease that was written by hand has a later token than was granted.
		if have := o.entries[i].Token; have < g.Token {
			return nil, fmt.Errorf("%w: %s has token %d, not %d", lockmgr.ErrNotOwner, g.Key, have, g.Token)
		}
		kept := s.b.living(o, func(e *entry) bool { return e.of(g) })
		sent = true
		return s.b.names.lockLease(o, g.Key, kept, false)
	})
	if err == nil || errors.Is(err, lockmgr.ErrNotHeld) {
		s.claims.drop(claimOf(g))
	}
	if err != nil {
		return fmt.Errorf("releasing %s: %w", g.Key, err)
	}
	return nil
}

// Held reads all Leases of the volume, at once, and past the limit: it is a part of a
// renewal. Errors: ErrUnavailable, wrapping
// ctx's if that ended the call.
func (s *Session) Held(ctx context.Context, grants []lockmgr.Grant) ([]bool, error) {
	held := make([]bool, len(grants))
	if len(grants) == 0 {
		return held, nil
	}
	st, err := s.b.snapshot(ctx, s.b.client.sessions)
	if err != nil {
		return nil, fmt.Errorf("reading what session %s holds: %w", s.id, err)
	}
	for i, g := range grants {
		held[i] = st.has(g)
		if !held[i] {
			s.claims.drop(claimOf(g))
		}
	}
	return held, nil
}

// has reports whether g's entry stands.
func (s *state) has(g lockmgr.Grant) bool {
	o := s.objects[s.names.lock(g.Key)]
	i := o.find(g)
	return i >= 0 && o.entries[i].Token >= g.Token && s.lives(&o.entries[i])
}

// AwaitGone is lockmgr.Breaker's. It asks the server nothing: the watch shows the
// entry, and then that it is gone, or its session.
func (b *Backend) AwaitGone(ctx context.Context, g lockmgr.Grant) error {
	if err := b.mirrored(ctx); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	m := b.mirror
	e := m.listen(b.names.lock(g.Key))
	defer m.unlisten(e)
	for {
		m.mu.Lock()
		gone := m.asOf >= g.Token && !m.has(g)
		m.mu.Unlock()
		if gone {
			return nil
		}
		select {
		case <-e.ch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
