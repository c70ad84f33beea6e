package etcdlock

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// AwaitGone is lockmgr.Breaker's: one watch of the entry, one read when it
// stands, and one now and then.
func (b *Backend) AwaitGone(ctx context.Context, g lockmgr.Grant) error {
	var r retry.Retrier
	return r.Do(ctx, func() error { return b.awaitGone(ctx, g) })
}

// awaitGone fails with ErrUnavailable when the watch ends.
func (b *Backend) awaitGone(ctx context.Context, g lockmgr.Grant) error {
	entry := b.keys.granted(g)
	watch, err := b.watchDeletes(ctx, entry)
	if err != nil {
		return err
	}
	defer watch.stop()
	stands := clientv3.Compare(clientv3.CreateRevision(entry), "=", g.Token)
	for {
		// With the Get the answer is up to date: any member answers comparisons alone from
		// what it has seen so far.
		resp, err := b.txn(ctx, []clientv3.Cmp{stands}, []clientv3.Op{clientv3.OpGet(entry, clientv3.WithKeysOnly())}, nil)
		if err != nil || !resp.Succeeded {
			return err
		}
		gone, err := watch.next(ctx, refreshInterval)
		if err != nil || len(gone) > 0 { // the key is unique: whatever is deleted is it
			return err
		}
	}
}
