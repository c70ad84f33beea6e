package etcdlock_test

import (
	"testing"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

// After a suspension a renewal counts only once the locks were read, and has an
// eighth of the TTL for that. The reads of thousands of locks take as long as one.
func TestHeldIsOneRoundOfReads(t *testing.T) {
	const reads = 20
	client := dial(t)
	b, _ := newVolume(t, client)
	s := open(t, b)
	grants := must(t, s, lockmgr.NoWait, file("f"))
	for len(grants) < reads*128 {
		grants = append(grants, lockmgr.Grant{Key: file("g"), Owner: uuid.New(), Token: 1})
	}
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
