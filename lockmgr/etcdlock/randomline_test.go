package etcdlock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockfs/lockfs/internal/longtest"
	"github.com/lockfs/lockfs/lockmgr"
)

// Many stand in one line, give up at any time, and are not told what became of what
// they asked. No two have at one time what conflicts, and tokens rise: nobody is
// passed by one that came later.
func TestRandomLine(t *testing.T) {
	t.Parallel()
	mounts, rounds := 3, 3
	if longtest.For(t) > 0 {
		rounds = 60
	}
	const waiters = 16 // on each mount
	name := newName()
	var mu sync.Mutex
	held := make(map[int64]lockmgr.Mode) // by token
	var newest, newestWriter int64
	granted := func(g lockmgr.Grant) {
		mu.Lock()
		defer mu.Unlock()
		for token, mode := range held {
			if mode.Conflicts(g.Mode) {
				t.Errorf("token %d is granted while %d is held", g.Token, token)
			}
		}
		if g.Token <= newestWriter || g.Mode == lockmgr.Exclusive && g.Token <= newest {
			t.Errorf("token %d is granted after %d, of writers %d", g.Token, newest, newestWriter)
		}
		newest = max(newest, g.Token)
		if g.Mode == lockmgr.Exclusive {
			newestWriter = max(newestWriter, g.Token)
		}
		held[g.Token] = g.Mode
	}
	var working sync.WaitGroup
	var lossy atomic.Bool
	begin := make(chan struct{})
	for range mounts {
		client := dial(t)
		onTxn(client, func(txn *txn) (*clientv3.TxnResponse, error) {
			fate := rand.N(6)
			if !lossy.Load() {
				return txn.send()
			}
			if fate == 0 {
				return nil, status.Error(codes.Unavailable, "not sent")
			}
			resp, err := txn.send()
			if fate == 1 {
				return nil, status.Error(codes.Unavailable, "the answer was lost")
			}
			return resp, err
		})
		b := newBackend(t, client, name)
		for range waiters { // a session each: else one that is not answered keeps others from asking
			s := open(t, b)
			working.Go(func() {
				<-begin
				for range rounds {
					ctx, cancel := context.WithTimeout(within(t, patience), 10*time.Millisecond+rand.N(4*time.Second))
					ask := request
					if rand.N(4) == 0 {
						ask = shared
					}
					grants, err := s.Acquire(ctx, ask(lockmgr.Queue, file("f")))
					cancel()
					switch {
					case err == nil:
						granted(grants[0])
						<-time.After(rand.N(5 * time.Millisecond))
						mu.Lock()
						delete(held, grants[0].Token)
						mu.Unlock()
						if err = s.Release(within(t, patience), grants[0]); errors.Is(err, lockmgr.ErrUnavailable) {
							for errors.Is(err, lockmgr.ErrUnavailable) {
								err = s.Release(within(t, patience), grants[0])
							}
							if errors.Is(err, lockmgr.ErrNotHeld) { // the first was carried out
								err = nil
							}
						}
						if err != nil {
							t.Errorf("Release: %v", err)
						}
					case !errors.Is(err, context.DeadlineExceeded):
						t.Errorf("Acquire: %v", err)
					}
				}
			})
		}
	}
	lossy.Store(true)
	close(begin)
	working.Wait()
	lossy.Store(false)
	eventually(t, "nothing is left", func() bool { return len(entries(t, newBackend(t, dial(t), name))) == 0 })
}
