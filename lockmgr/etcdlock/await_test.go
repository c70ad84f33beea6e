package etcdlock_test

import (
	"context"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

// idleKV counts the Txns without an operation. Any member answers those from what
// it has seen so far: one that lags has not seen an entry that stands.
type idleKV struct {
	clientv3.KV
	idle, sent atomic.Int64
}

func (kv *idleKV) Txn(ctx context.Context) clientv3.Txn { return &idleTxn{Txn: kv.KV.Txn(ctx), kv: kv} }

type idleTxn struct {
	clientv3.Txn
	kv  *idleKV
	ops int
}

func (t *idleTxn) If(cs ...clientv3.Cmp) clientv3.Txn { t.Txn = t.Txn.If(cs...); return t }
func (t *idleTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.Txn, t.ops = t.Txn.Then(ops...), t.ops+len(ops)
	return t
}
func (t *idleTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.Txn, t.ops = t.Txn.Else(ops...), t.ops+len(ops)
	return t
}

func (t *idleTxn) Commit() (*clientv3.TxnResponse, error) {
	t.kv.sent.Add(1)
	if t.ops == 0 {
		t.kv.idle.Add(1)
	}
	return t.Txn.Commit()
}

// Whether a lock still stands is not asked of a member that may lag.
func TestAwaitGoneIsLinearizable(t *testing.T) {
	client := dial(t)
	kv := &idleKV{KV: client.KV}
	client.KV = kv
	b, _ := newVolume(t, client)
	s := open(t, b)
	g := must(t, s, lockmgr.NoWait, file("f"))[0]
	before := kv.sent.Load()
	gone := make(chan error, 1)
	go func() { gone <- s.AwaitGone(within(t, patience), g) }()
	eventually(t, "it is asked for", func() bool { return kv.sent.Load() > before })
	release(t, s, g)
	if err := <-gone; err != nil {
		t.Fatal(err)
	}
	if n := kv.idle.Load(); n > 0 {
		t.Errorf("%d Txns have no operation", n)
	}
}
