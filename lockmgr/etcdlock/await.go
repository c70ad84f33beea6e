package etcdlock

import (
	"context"

	"github.com/lockfs/lockfs/lockmgr"
)

// AwaitGone is lockmgr.Session's: one watch of the entry, and one read when it
// stands.
func (s *Session) AwaitGone(ctx context.Context, g lockmgr.Grant) error {
	var r retrier
	return r.do(ctx, func() error { return s.awaitGone(ctx, g) })
}

// awaitGone fails with ErrUnavailable when the watch ends.
func (s *Session) awaitGone(ctx context.Context, g lockmgr.Grant) error {
	watch, err := s.b.watchDeletes(ctx, s.b.keys.granted(g))
	if err != nil {
		return err
	}
	defer watch.stop()
	held, err := s.Held(ctx, []lockmgr.Grant{g})
	if err != nil || !held[0] {
		return err
	}
	if _, err = watch.next(ctx); err == nil { // the key is unique: whatever is deleted is it
		s.claims.drop(s.b.keys.granted(g))
	}
	return err
}
