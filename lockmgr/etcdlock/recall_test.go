package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
)

// A try gets a directory below which many kept files are idle.
func TestTryOfADirectoryWithManyKeptLocks(t *testing.T) {
	t.Parallel()
	b, _ := newVolume(t, dial(t))
	mine, theirs := open(t, b), open(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(map[lockmgr.AcquisitionID]lockmgr.Grant)
	for i := range 100 {
		req := request(lockmgr.NoWait, file(fmt.Sprintf("d/%03d", i)))
		req.Keep = true
		g := acquire(t, mine, req)[0]
		kept[g.AcquisitionID] = g
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		b.WatchRecalls(ctx, func(r lockmgr.Recall) {
			for _, id := range r.Entries {
				if g, ok := kept[id]; ok {
					delete(kept, id)
					if err := mine.Release(t.Context(), g); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}()
	defer func() { cancel(); <-over }()
	if _, err := theirs.Acquire(within(t, patience), request(lockmgr.NoWait, tree("d"))); err != nil {
		t.Error(err)
	}
}

// A recall that is put after its request is over does not stand.
func TestLateRecall(t *testing.T) {
	client, kv := flawed(t)
	b, _ := newVolume(t, client)
	mine, theirs := open(t, b), open(t, b)
	req := request(lockmgr.Queue, file("f"))
	req.Keep = true
	kept := acquire(t, mine, req)
	kv.next(0, lateRequest) // the entry, and the recall
	got := start(within(t, patience), theirs, request(lockmgr.Queue, file("f")))
	standing := func() int {
		recalls, err := b.Recalls(within(t, patience))
		if err != nil {
			t.Fatal(err)
		}
		return len(recalls)
	}
	eventually(t, "it is recalled", func() bool { return standing() == 1 })
	release(t, mine, kept...)
	if a := await(t, got); a.Err != nil {
		t.Fatal(a.Err)
	}
	eventually(t, "the recall is deleted", func() bool { return standing() == 0 })
	kv.deliver(t)
	if n := standing(); n > 0 {
		t.Errorf("%d recalls stand", n)
	}
}

// A mount is told of the recalls of its own locks alone: those of others grow with the square
// of the mounts. A request that waits for locks of two mounts recalls both.
func TestRecallsAreForAMount(t *testing.T) {
	first, etcd := newVolume(t, dial(t))
	second, third := newBackend(t, dial(t), etcd.name), newBackend(t, dial(t), etcd.name)
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	told := make(map[*etcdlock.Backend]chan lockmgr.Recall)
	for _, b := range []*etcdlock.Backend{first, second, third} {
		ch := make(chan lockmgr.Recall, 100)
		told[b] = ch
		watching.Go(func() { b.WatchRecalls(ctx, func(r lockmgr.Recall) { ch <- r }) })
	}
	kept := make(map[*etcdlock.Backend][]lockmgr.Grant)
	sessions := make(map[*etcdlock.Backend]lockmgr.Session)
	for i, b := range []*etcdlock.Backend{first, second} {
		sessions[b] = open(t, b)
		req := request(lockmgr.NoWait, file(fmt.Sprint("d/", i)))
		req.Keep = true
		kept[b] = acquire(t, sessions[b], req)
	}
	s := open(t, third)
	answer := start(within(t, patience), s, request(lockmgr.Retry, file("d/0"), file("d/1")))
	for b, grants := range kept {
		select {
		case r := <-told[b]:
			if len(r.Entries) != 1 || r.Entries[0] != grants[0].AcquisitionID {
				t.Errorf("told of %v, holds %v", r, grants)
			}
		case <-time.After(patience):
			t.Fatal("not told of a recall")
		}
		if standing, err := b.Recalls(within(t, patience)); err != nil || len(standing) != 1 {
			t.Errorf("%v, %v", standing, err)
		}
		records, err := etcd.Get(t.Context(), etcd.admin("recall/"), clientv3.WithPrefix())
		if err != nil || slices.ContainsFunc(records.Kvs, func(kv *mvccpb.KeyValue) bool { return kv.Lease != int64(leaseOf(t, s)) }) {
			t.Errorf("does not end with the session that waits: %v, %v", records, err)
		}
	}
	if standing, err := third.Recalls(within(t, patience)); err != nil || len(standing) > 0 {
		t.Errorf("to one who holds nothing: %v, %v", standing, err)
	}
	for b, grants := range kept {
		release(t, sessions[b], grants...)
	}
	a := await(t, answer)
	if a.Err != nil {
		t.Fatal(a.Err)
	}
	release(t, s, a.Grants...)
	if len(told[third]) > 0 {
		t.Errorf("one who holds nothing is told of %v", <-told[third])
	}
	eventually(t, "no recall stands", func() bool {
		left, err := etcd.Get(t.Context(), etcd.admin("recall/"), clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && left.Count == 0
	})
}

// A request that ends before it is told that its recall was put takes that back, put or not.
func TestRecallOfARequestThatEnds(t *testing.T) {
	for name, f := range map[string]flaw{"lost reply": lostReply, "late request": lateRequest} {
		t.Run(name, func(t *testing.T) {
			client, kv := flawed(t)
			b, etcd := newVolume(t, client)
			mine, theirs := open(t, b), open(t, b)
			req := request(lockmgr.Queue, file("f"))
			req.Keep = true
			kept := acquire(t, mine, req)
			ctx, cancel := context.WithCancel(within(t, patience))
			kv.then(cancel)
			kv.next(0, f) // the entry, and the recall
			if _, err := theirs.Acquire(ctx, request(lockmgr.Queue, file("f"))); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			fenced(t, etcd, theirs)
			if f == lateRequest {
				kv.deliver(t)
			}
			eventually(t, "no recall stands", func() bool {
				recalls, err := b.Recalls(within(t, patience))
				return err == nil && len(recalls) == 0
			})
			release(t, mine, kept...)
		})
	}
}

// A kept lock that is given back before the one who tries for it watches it is taken.
func TestTryOfAKeptLockThatIsGivenBack(t *testing.T) {
	client := dial(t)
	b, etcd := newVolume(t, dial(t))
	mine := open(t, b)
	req := request(lockmgr.NoWait, file("f"))
	req.Keep = true
	kept := acquire(t, mine, req)
	give := sync.OnceFunc(func() { release(t, mine, kept...) })
	beforeWatches(client, func(key string) {
		if key == "/locks/test/"+etcd.name+"/f//" {
			give()
		}
	})
	must(t, open(t, newBackend(t, client, etcd.name)), lockmgr.NoWait, file("f"))
}

// An entry that goes while locks are described keeps no other from being described.
func TestDescribeBesideARelease(t *testing.T) {
	client := dial(t)
	b, etcd := newVolume(t, client)
	var armed atomic.Bool
	onTxn(client, func(x *txn) (*clientv3.TxnResponse, error) {
		resp, err := x.send()
		if len(x.then) == 2 && strings.HasPrefix(string(x.then[0].KeyBytes()), etcd.file("a")) && x.then[0].IsGet() && armed.CompareAndSwap(true, false) {
			if _, err := etcd.Delete(x.ctx, etcd.file("a"), clientv3.WithPrefix()); err != nil {
				t.Error(err)
			}
		}
		return resp, err
	})
	s := open(t, b)
	var news []lockmgr.Entry
	for _, path := range []string{"a", "b"} {
		g := must(t, s, lockmgr.NoWait, file(path))[0]
		news = append(news, lockmgr.Entry{Key: g.Key, Holder: lockmgr.Holder{AcquisitionID: g.AcquisitionID, Comm: "second"}, Token: g.Token})
	}
	armed.Store(true)
	if err := b.Describe(within(t, patience), news); err != nil {
		t.Error(err)
	}
	if list := entries(t, b); len(list) != 1 || list[0].Key != file("b") || list[0].Holder.Comm != "second" {
		t.Errorf("%+v", list)
	}
}

// A description that comes late, just before the next one, is not taken for it.
func TestLateDescription(t *testing.T) {
	client, kv := flawed(t)
	b, etcd := newVolume(t, client)
	var armed atomic.Bool
	onTxn(client, func(x *txn) (*clientv3.TxnResponse, error) {
		resp, err := x.send()
		if len(x.then) == 1 && x.then[0].IsGet() && strings.HasPrefix(string(x.then[0].KeyBytes()), etcd.file("a")) && armed.CompareAndSwap(true, false) {
			kv.deliver(t)
		}
		return resp, err
	})
	s := open(t, b)
	g := must(t, s, lockmgr.NoWait, file("a"))[0]
	describe := func(comm string) error {
		h := lockmgr.Holder{AcquisitionID: g.AcquisitionID, Comm: comm}
		return b.Describe(within(t, patience), []lockmgr.Entry{{Key: g.Key, Holder: h, Token: g.Token}})
	}
	kv.next(lateRequest)
	if err := describe("first"); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Fatal(err)
	}
	armed.Store(true)
	if err := describe("second"); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Errorf("while the first has taken its place: %v", err)
	}
	if list := entries(t, b); len(list) != 1 || list[0].Holder.Comm != "first" {
		t.Errorf("%+v", list)
	}
}
