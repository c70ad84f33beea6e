package etcdlock

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

var _ lockmgr.Delegator = (*Session)(nil)

// Delegate is lockmgr.Delegator's, in one Txn.
func (s *Session) Delegate(ctx context.Context, k lockmgr.Key, h lockmgr.Holder) (lockmgr.Grant, error) {
	if _, few := s.b.keys.around(k); k.Kind != lockmgr.Tree || !few {
		return lockmgr.Grant{}, fmt.Errorf("%w: %s cannot be delegated", lockmgr.ErrInvalidKey, k)
	}
	grants, err := s.acquire(ctx, lockmgr.AcquireRequest{
		Keys: []lockmgr.Key{k}, Mode: lockmgr.Delegated, Holder: h, Wait: lockmgr.NoWait, Keep: true,
	})
	if err != nil {
		return lockmgr.Grant{}, err
	}
	return grants[0], nil
}

// mine holds when there are entries below the directory, and all are the session's.
func (a *acquisition) mine() clientv3.Cmp {
	below := a.s.b.keys.rivals(a.req.Keys[0], a.req.Mode)
	return clientv3.Compare(clientv3.LeaseValue(below).WithPrefix(), "=", a.s.lease)
}

// barrier returns the entry of a directory that keeps the request from the line, or nil.
func (a *acquisition) barrier() *blocker {
	if a.req.Wait != lockmgr.Queue || a.known.token != 0 {
		return nil
	}
	for i, b := range a.known.ahead {
		g, ok := a.s.b.keys.parse(b.entry)
		if ok && (g.Mode == lockmgr.Delegated || g.Key.Kind == lockmgr.Tree && !a.few) {
			return &a.known.ahead[i]
		}
	}
	return nil
}
