package etcdlock_test

import (
	"context"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
)

// laggingWatcher has the watches of a member that is behind: it has seen no revision
// after at, and what happened since arrives later. 0 leaves them alone.
type laggingWatcher struct {
	clientv3.Watcher
	at atomic.Int64
}

func (w *laggingWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	at := w.at.Load()
	if at == 0 {
		return w.Watcher.Watch(ctx, key, opts...)
	}
	in, out := w.Watcher.Watch(ctx, key, append(opts, clientv3.WithRev(at+1))...), make(chan clientv3.WatchResponse)
	go func() {
		defer close(out)
		for resp := range in {
			if resp.Created {
				resp.Header.Revision = at
			}
			select {
			case out <- resp:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

// Who stands far back in line knows of the last ones before it only. When these
// have left, the holder is still there. So it is also when the watch is behind: the
// member that told of them may have died, and the next one not have seen it yet.
func TestAllThatIsKnownOfALongLineLeaves(t *testing.T) {
	for name, lags := range map[string]bool{"one member": false, "a member lags": true} {
		t.Run(name, func(t *testing.T) {
			client := dial(t)
			watcher := &laggingWatcher{Watcher: client.Watcher}
			client.Watcher = watcher
			b, etcd := newVolume(t, dial(t))
			s := open(t, b)
			held := must(t, s, lockmgr.Queue, file("f"))
			var line []<-chan lockmgrtest.Answer
			var leave []func()
			for i := range 12 {
				ctx, cancel := context.WithCancel(within(t, patience))
				defer cancel()
				line = append(line, start(ctx, s, request(lockmgr.Queue, file("f"))))
				eventually(t, "it is in line", func() bool { return len(entries(t, b)) == i+2 })
				leave = append(leave, cancel)
			}
			behind := open(t, newBackend(t, client, etcd.name))
			if lags {
				resp, err := etcd.Get(t.Context(), "none")
				if err != nil {
					t.Fatal(err)
				}
				watcher.at.Store(resp.Header.Revision + 1) // that of its entry
			}
			last := start(within(t, patience), behind, request(lockmgr.Queue, file("f")))
			eventually(t, "it is in line", func() bool { return len(entries(t, b)) == 14 })
			// Those from the first that is known on; then who turns out to be ahead of them.
			for n, i := range []int{7, 6, 5, 8, 9, 10, 11, 4, 3, 2, 1} {
				leave[i]()
				await(t, line[i])
				eventually(t, "it has left", func() bool { return len(entries(t, b)) == 13-n })
			}
			release(t, s, held...)
			next := await(t, line[0])
			if next.Err != nil {
				t.Fatal(next.Err)
			}
			if len(last) > 0 {
				t.Fatalf("while another has it: %v", <-last)
			}
			release(t, s, next.Grants...)
			if a := await(t, last); a.Err != nil {
				t.Fatal(a.Err)
			}
		})
	}
}
