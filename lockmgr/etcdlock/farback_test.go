package etcdlock_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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

// A waiter far back in line knows only the last ones before it. When these have left, the holder is
// still there. The same holds when the watch is behind: the member that told of them may have died,
// and the next member might not have seen it yet.
func TestAllThatIsKnownOfALongLineLeaves(t *testing.T) {
	for _, name := range []string{"one member", "a member lags", "a member lags, and a refresh fails"} {
		t.Run(name, func(t *testing.T) {
			lags := name != "one member"
			client := dial(t)
			var looks atomic.Int64
			failing := int64(-1)
			if name == "a member lags, and a refresh fails" {
				failing = 1
			}
			onTxn(client, func(txn *txn) (*clientv3.TxnResponse, error) {
				if len(txn.cmps) == 0 && len(txn.then) > 1 && looks.Add(1) == failing {
					return nil, status.Error(codes.Unavailable, "the connection broke")
				}
				return txn.send()
			})
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
			// Those from the first that is known on, then any that turn out to be ahead of them.
			for n, i := range []int{7, 6, 5, 8, 9, 10, 11, 4, 3, 2, 1} {
				leave[i]()
				await(t, line[i])
				eventually(t, "it has left", func() bool { return len(entries(t, b)) == 13-n })
			}
			eventually(t, "it has checked, or has the lock", func() bool { return looks.Load() > failing || len(last) > 0 })
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

// A request that is in line, and was not told so, asks again. Its entry is put once more where it
// stands. Only the end of the line is read then, and all entries there are behind its own.
func TestAskedAgainWithALineBehind(t *testing.T) {
	for name, ask := range map[string]func(lockmgr.Wait, ...lockmgr.Key) lockmgr.AcquireRequest{"exclusive": request, "shared": shared} {
		t.Run(name, func(t *testing.T) {
			client := dial(t)
			var armed atomic.Bool
			var sent, looks atomic.Int64
			lost, again := make(chan struct{}), make(chan struct{})
			onTxn(client, func(txn *txn) (*clientv3.TxnResponse, error) {
				switch puts := len(txn.cmps) > 0 || slices.ContainsFunc(txn.then, clientv3.Op.IsTxn); {
				case !armed.Load():
				case !puts:
					looks.Add(1)
				case sent.Add(1) == 1:
					if _, err := txn.send(); err != nil {
						return nil, err
					}
					close(lost)
					return nil, status.Error(codes.Unavailable, "the connection broke")
				case sent.Load() == 2:
					<-again
				}
				return txn.send()
			})
			b, etcd := newVolume(t, dial(t))
			others, s := open(t, b), open(t, newBackend(t, client, etcd.name))
			held := must(t, others, lockmgr.Queue, file("f"))
			armed.Store(true)
			waits := start(within(t, patience), s, ask(lockmgr.Queue, file("f")))
			<-lost
			var line []<-chan lockmgrtest.Answer
			for i := range 8 {
				line = append(line, start(within(t, patience), others, request(lockmgr.Queue, file("f"))))
				eventually(t, "it is in line", func() bool { return len(entries(t, b)) == i+3 })
			}
			close(again)
			eventually(t, "it has checked, or has the lock", func() bool { return looks.Load() > 0 || len(waits) > 0 })
			if len(waits) > 0 {
				t.Fatalf("while another has it: %+v", <-waits)
			}
			release(t, others, held...)
			a := await(t, waits)
			if a.Err != nil {
				t.Fatal(a.Err)
			}
			if len(line[0]) > 0 {
				t.Fatal("who came after it has the lock, too")
			}
			release(t, s, a.Grants...)
			for _, next := range line {
				a := await(t, next)
				if a.Err != nil {
					t.Fatal(a.Err)
				}
				release(t, others, a.Grants...)
			}
		})
	}
}
