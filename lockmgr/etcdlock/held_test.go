package etcdlock_test

import (
	"bytes"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
)

// After a suspension a renewal counts only once the locks were read, and has an
// eighth of the TTL for that. The reads of thousands of locks take as long as one.
func TestHeldIsOneRoundOfReads(t *testing.T) {
	const reads = 20
	client := dial(t)
	arrived, all := make(chan struct{}, reads), make(chan struct{})
	go func() {
		for range reads {
			<-arrived
		}
		close(all)
	}()
	onTxn(client, func(x *txn) (*clientv3.TxnResponse, error) {
		if len(x.then) == 128 {
			arrived <- struct{}{}
			select {
			case <-all:
			case <-x.ctx.Done():
				return nil, x.ctx.Err()
			}
		}
		return x.send()
	})
	b, err := etcdlock.New(etcdlock.Config{Client: client, Namespace: "test", Name: newName(), RequestTimeout: patience}) // no read is doubted
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, b)
	grants := must(t, s, lockmgr.NoWait, file("f"))
	for len(grants) < reads*128 {
		grants = append(grants, lockmgr.Grant{Key: file("g"), AcquisitionID: lockmgr.NewAcquisitionID(), Token: 1})
	}
	held, err := s.Held(within(t, patience), grants)
	if err != nil {
		t.Fatalf("each read waits for the one before: %v", err)
	}
	for i, ok := range held {
		if ok != (i == 0) {
			t.Fatalf("of %v: %v", grants[i], ok)
		}
	}
}

// The reads that a renewal waits for pass all that a mount has under way: those of
// its waiters, on a service that is slow to answer, would keep it suspended.
func TestHeldPassesAllOthers(t *testing.T) {
	client := dial(t)
	const others = 100
	arrived, let := make(chan struct{}, others), make(chan struct{})
	onTxn(client, func(x *txn) (*clientv3.TxnResponse, error) {
		if len(x.then) > 0 && bytes.Contains(x.then[0].KeyBytes(), []byte("/slow")) {
			arrived <- struct{}{}
			<-let
		}
		return x.send()
	})
	b, _ := newVolume(t, client)
	s := open(t, b)
	grants := must(t, s, lockmgr.NoWait, file("f"))
	var running sync.WaitGroup
	defer running.Wait()
	defer close(let)
	for range others {
		running.Go(func() { _, _ = b.Rivals(within(t, patience), file("slow")) })
	}
	for range 32 { // as many as may be under way
		select {
		case <-arrived:
		case <-time.After(patience):
			t.Fatal("the others do not arrive")
		}
	}
	if held, err := s.Held(within(t, patience/5), grants); err != nil || !held[0] {
		t.Fatalf("beside others that are not answered: %v, %v", held, err)
	}
}
