package etcdlock_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
)

// asked counts the requests of a client.
type asked struct {
	clientv3.Lease
	times   atomic.Int64 // for what is attached to a lease
	txns    atomic.Int64
	watches atomic.Int64
}

func count(client *clientv3.Client) *asked {
	a := &asked{Lease: client.Lease}
	client.Lease = a
	onTxn(client, func(t *txn) (*clientv3.TxnResponse, error) {
		a.txns.Add(1)
		return t.send()
	})
	client.Watcher = countedWatcher{client.Watcher, a}
	return a
}

func (a *asked) TimeToLive(ctx context.Context, id clientv3.LeaseID, opts ...clientv3.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error) {
	a.times.Add(1)
	return a.Lease.TimeToLive(ctx, id, opts...)
}

type countedWatcher struct {
	clientv3.Watcher
	a *asked
}

func (w countedWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	w.a.watches.Add(1)
	return w.Watcher.Watch(ctx, key, opts...)
}

// However many locks a session has, to see that they stand takes one request; and
// a read more when some of them do not.
func TestHeldLocksAreOneRequest(t *testing.T) {
	t.Parallel()
	client := dial(t)
	a := count(client)
	etcd := raw{dial(t), newName()}
	s := open(t, newBackend(t, client, etcd.name, func(c *etcdlock.Config) { c.JanitorInterval = time.Hour }))
	eventually(t, "the mount has its watches", func() bool { return a.watches.Load() == 3 && a.txns.Load() >= 2 })
	var grants []lockmgr.Grant
	for dir := range 8 {
		var keys []lockmgr.Key
		for i := range 50 {
			keys = append(keys, file(fmt.Sprintf("%d/%d", dir, i)))
		}
		grants = append(grants, must(t, s, lockmgr.NoWait, keys...)...)
	}
	ctx, cancel := context.WithCancel(within(t, patience))
	txns, watches := a.txns.Load(), a.watches.Load()
	missed := make(chan lockmgr.Grant, len(grants))
	over := make(chan struct{})
	go func() {
		defer close(over)
		s.Watch(ctx, func() []lockmgr.Grant { return grants }, func(g lockmgr.Grant) { missed <- g })
	}()
	eventually(t, "it has checked", func() bool { return a.times.Load() > 0 })
	if n := a.txns.Load() - txns; n > 0 {
		t.Errorf("%d Txns for %d locks that stand", n, len(grants))
	}
	gone := grants[123]
	if _, err := etcd.Delete(t.Context(), etcd.file(gone.Key.Path), clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	if g := <-missed; g != gone {
		t.Errorf("missed %v, not %v", g, gone)
	}
	cancel()
	<-over
	if n := len(missed); n > 0 {
		t.Errorf("%d more are missed", n)
	}
	if n := a.txns.Load() - txns; n != 1 {
		t.Errorf("%d Txns for one lock that does not stand", n)
	}
	if n := a.watches.Load() - watches; n > 0 {
		t.Errorf("%d watches", n)
	}
}

// A session that holds nothing does not look every few seconds: there may be many
// mounts that do nothing.
func TestIdleSessionDoesNotLook(t *testing.T) {
	client := dial(t)
	a := count(client)
	b, err := etcdlock.New(etcdlock.Config{
		Client: client, Namespace: "test", Name: newName(), RequestTimeout: patience,
		CheckInterval: time.Millisecond, JanitorInterval: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, b)
	ctx, cancel := context.WithCancel(within(t, patience))
	turns := 0
	s.Watch(ctx, func() []lockmgr.Grant {
		if turns++; turns == 20 {
			cancel()
		}
		return nil
	}, func(lockmgr.Grant) {})
	if n := a.times.Load(); turns < 20 || n > 0 {
		t.Errorf("checked %d times in %d turns", n, turns)
	}
}
