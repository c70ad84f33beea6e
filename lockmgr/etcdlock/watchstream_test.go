package etcdlock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
)

// stuckWatcher answers no watch on the stream of its first one. So does the client of etcd, for ever,
// after etcd has refused a watch just when the last other one of its stream ended.
type stuckWatcher struct {
	clientv3.Watcher
	mu    sync.Mutex
	stuck string // GUARDED_BY(mu)
}

func (w *stuckWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	md, _ := metadata.FromOutgoingContext(ctx)
	stream := md.Get("lockfs-stream")[0]
	w.mu.Lock()
	if w.stuck == "" {
		w.stuck = stream
	}
	stuck := w.stuck == stream
	w.mu.Unlock()
	if !stuck {
		return w.Watcher.Watch(ctx, key, opts...)
	}
	<-ctx.Done()
	never := make(chan clientv3.WatchResponse)
	close(never)
	return never
}

// A mount whose stream of watches is stuck waits for locks by another one.
func TestStuckWatchStream(t *testing.T) {
	client := dial(t)
	client.Watcher = &stuckWatcher{Watcher: client.Watcher}
	name := newName()
	b := newBackend(t, client, name, func(cfg *etcdlock.Config) { cfg.RequestTimeout = time.Second })
	other := open(t, newBackend(t, dial(t), name))
	held := must(t, other, lockmgr.NoWait, file("f"))[0]
	next := start(within(t, patience), open(t, b), request(lockmgr.Queue, file("f")))
	eventually(t, "it stands in line", func() bool { return len(entries(t, b)) == 2 })
	release(t, other, held)
	if a := lockmgrtest.Await(t, next); a.Err != nil {
		t.Error(a.Err)
	}
}
