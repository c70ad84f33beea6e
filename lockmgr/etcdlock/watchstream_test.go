package etcdlock_test

import (
	"context"
	"errors"
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
	refuses bool // etcd refuses them: the login of the stream has expired

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
	last := make(chan clientv3.WatchResponse, 1)
	if w.refuses {
		last <- clientv3.WatchResponse{Canceled: true}
	} else {
		<-ctx.Done()
	}
	close(last)
	return last
}

// A mount whose stream of watches is stuck, or refused, waits for locks by another one.
func TestStuckWatchStream(t *testing.T) {
	for name, refuses := range map[string]bool{"stuck": false, "refused": true} {
		t.Run(name, func(t *testing.T) {
			client := dial(t)
			client.Watcher = &stuckWatcher{Watcher: client.Watcher, refuses: refuses}
			name := newName()
			b := newBackend(t, client, name, func(cfg *etcdlock.Config) { cfg.RequestTimeout = time.Second })
			other := open(t, newBackend(t, dial(t), name))
			held := must(t, other, lockmgr.NoWait, file("f"))[0]
			next := start(within(t, patience), open(t, hasty{b, time.Second}), request(lockmgr.Queue, file("f")))
			eventually(t, "it stands in line", func() bool { return len(entries(t, b)) == 2 })
			release(t, other, held)
			if a := lockmgrtest.Await(t, next); a.Err != nil {
				t.Error(a.Err)
			}
		})
	}
}

// unclosedWatcher closes no feed, and shows nothing on one whose watch was cancelled. So does the
// client of etcd if the goroutine of the watches' stream waits for ever.
type unclosedWatcher struct{ clientv3.Watcher }

func (w unclosedWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	feed, shown := w.Watcher.Watch(ctx, key, opts...), make(chan clientv3.WatchResponse)
	go func() {
		for resp := range feed {
			select {
			case shown <- resp:
			case <-ctx.Done():
			}
		}
	}()
	return shown
}

// Whoever waits by a watch that is never closed can give up all the same.
func TestFeedThatIsNeverClosed(t *testing.T) {
	client := dial(t)
	client.Watcher = unclosedWatcher{client.Watcher}
	name := newName()
	b := newBackend(t, client, name)
	other := open(t, newBackend(t, dial(t), name))
	must(t, other, lockmgr.NoWait, file("f"), file("g"))
	ctx, giveUp := context.WithCancel(t.Context())
	waits := start(ctx, open(t, b), request(lockmgr.Queue, file("f"), file("g"))) // by two watches
	var watching sync.WaitGroup
	begun := make(chan struct{}, 100)
	watching.Go(func() { b.WatchAdvisory(ctx, func(lockmgr.Key, int64) { begun <- struct{}{} }) })
	<-begun
	eventually(t, "it stands in line", func() bool { return len(entries(t, b)) > 2 })
	giveUp()
	if a := lockmgrtest.Await(t, waits); !errors.Is(a.Err, context.Canceled) {
		t.Error(a.Err)
	}
	ended := make(chan struct{})
	go func() { watching.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the watch of advisory locks does not end")
	}
}
