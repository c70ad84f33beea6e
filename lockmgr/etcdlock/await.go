package etcdlock

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// AwaitGone implements lockmgr.Breaker with one watch, and a read now and then.
func (b *Backend) AwaitGone(ctx context.Context, g lockmgr.Grant) error {
	var r retry.Retrier
	return r.Do(ctx, func() error { return b.awaitGone(ctx, g) })
}

func (b *Backend) awaitGone(ctx context.Context, g lockmgr.Grant) error {
	entry := b.keys.granted(g)
	watch, err := b.watchDeletes(ctx, entry)
	if err != nil {
		return err
	}
	defer watch.stop()
	stands := clientv3.Compare(clientv3.CreateRevision(entry), "=", g.Token)
	for {
		// The Get makes the answer linearizable: bare comparisons are answered by any member.
		resp, err := b.txn(ctx, []clientv3.Cmp{stands}, []clientv3.Op{clientv3.OpGet(entry, clientv3.WithKeysOnly())}, nil)
		if err != nil || !resp.Succeeded {
			return err
		}
		gone, err := watch.next(ctx, refreshInterval)
		if err != nil || len(gone) > 0 { // only this key has the prefix
			return err
		}
	}
}
