package etcdlock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/lockfs/lockfs/lockmgr"
)

// hookedWatcher calls a function before each watch begins.
type hookedWatcher struct {
	clientv3.Watcher
	before func(ctx context.Context, key string)
}

func (w hookedWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	w.before(ctx, key)
	return w.Watcher.Watch(ctx, key, opts...)
}

// beforeWatches has do called with what the client is about to watch. No session of it is open yet.
func beforeWatches(client *clientv3.Client, do func(key string)) {
	client.Watcher = hookedWatcher{client.Watcher, func(_ context.Context, key string) { do(key) }}
}

// crowd puts so many entries for a file that who waits for them looks by itself only after more than
// patience. All leave at once.
func crowd(t *testing.T, etcd raw, path string) (leave func()) {
	t.Helper()
	lease, err := etcd.Grant(t.Context(), 3600)
	if err != nil {
		t.Fatal(err)
	}
	var puts []clientv3.Op
	for range 320 {
		puts = append(puts, clientv3.OpPut(etcd.file(path)+uuid.NewString(), "{}", clientv3.WithLease(lease.ID)))
	}
	for some := range slices.Chunk(puts, 100) {
		if _, err := etcd.Txn(t.Context()).Then(some...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	return sync.OnceFunc(func() {
		if _, err := etcd.Revoke(t.Context(), lease.ID); err != nil {
			t.Error(err)
		}
	})
}

// What goes before the watches of a waiter begin, or between the first and the second of them, is not
// waited for.
func TestGoneBeforeTheWatch(t *testing.T) {
	for name, at := range map[string]string{"before the first": "f", "between two": "g"} {
		t.Run(name, func(t *testing.T) {
			client := dial(t)
			b, etcd := newVolume(t, client)
			leaveF, leaveG := crowd(t, etcd, "f"), crowd(t, etcd, "g")
			beforeWatches(client, func(key string) {
				if strings.HasSuffix(key, "/"+at+"//") {
					leaveG()
					leaveF()
				}
			})
			must(t, open(t, b), lockmgr.Retry, file("f"), file("g"))
		})
	}
}

// Who stands at the end of a long line is told if its own entry is deleted.
func TestRemovedFromTheEndOfALongLine(t *testing.T) {
	client := dial(t)
	watcher := watchFlawed(client)
	b, etcd := newVolume(t, client)
	s := open(t, b)
	eventually(t, "the mount has its watches", func() bool { return watcher.stood.Load() >= 3 })
	crowd(t, etcd, "f")
	req := request(lockmgr.Queue, file("f"))
	last := start(within(t, patience), s, req)
	eventually(t, "it watches its landmark and its entry", func() bool { return watcher.stood.Load() >= 5 })
	if _, err := etcd.Delete(t.Context(), etcd.file("f")+req.Holder.AcquisitionID.String()); err != nil {
		t.Fatal(err)
	}
	if a := await(t, last); !errors.Is(a.Err, lockmgr.ErrLockLost) {
		t.Errorf("got %+v", a)
	}
}

// Every watch asks its member to end it when the member has no leader: one that is cut off from the
// others shows nothing.
func TestWatchesNeedALeader(t *testing.T) {
	client := dial(t)
	var mu sync.Mutex
	needs := make(map[string]bool) // GUARDED_BY(mu); by what is watched
	b, etcd := newVolume(t, client)
	client.Watcher = hookedWatcher{client.Watcher, func(ctx context.Context, key string) {
		md, _ := metadata.FromOutgoingContext(ctx)
		mu.Lock()
		defer mu.Unlock()
		needs[key] = slices.Equal(md.Get(rpctypes.MetadataRequireLeaderKey), []string{rpctypes.MetadataHasLeader})
	}}
	s := open(t, b)
	held := must(t, s, lockmgr.NoWait, file("f"))
	ctx, cancel := context.WithCancel(within(t, patience))
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() { b.WatchAdvisory(ctx, func(lockmgr.Key, int64) {}) })
	next := start(ctx, s, request(lockmgr.Queue, file("f")))
	for _, what := range []string{etcd.line("f"), etcd.admin("advisory/"), etcd.admin("break/"), etcd.admin("recall/"), etcd.admin("session/")} {
		eventually(t, what+" is watched", func() bool {
			mu.Lock()
			defer mu.Unlock()
			for key, needed := range needs {
				if strings.HasPrefix(key, what) {
					if !needed {
						t.Fatalf("%s is watched without a leader", key)
					}
					return true
				}
			}
			return false
		})
	}
	release(t, s, held...)
	release(t, s, await(t, next).Grants...)
}
