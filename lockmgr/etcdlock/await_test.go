package etcdlock_test

import (
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

// Whether a lock still stands is not asked with a Txn that has no operation. Any
// member answers that from what it has seen so far: one that lags has not seen an
// entry that stands.
func TestAwaitGoneIsLinearizable(t *testing.T) {
	client := dial(t)
	var idle, sent atomic.Int64
	onTxn(client, func(t *txn) (*clientv3.TxnResponse, error) {
		sent.Add(1)
		if len(t.then)+len(t.or) == 0 {
			idle.Add(1)
		}
		return t.send()
	})
	b, _ := newVolume(t, client)
	s := open(t, b)
	g := must(t, s, lockmgr.NoWait, file("f"))[0]
	before := sent.Load()
	gone := make(chan error, 1)
	go func() { gone <- b.AwaitGone(within(t, patience), g) }()
	eventually(t, "it is asked for", func() bool { return sent.Load() > before })
	release(t, s, g)
	if err := <-gone; err != nil {
		t.Fatal(err)
	}
	if n := idle.Load(); n > 0 {
		t.Errorf("%d Txns have no operation", n)
	}
}
