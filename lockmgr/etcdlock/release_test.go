package etcdlock_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

// Where answers take their time, thousands of grants are read in less than the sum.
func TestHeldReadsSeveralAtOnce(t *testing.T) {
	client := dial(t)
	var under atomic.Int64
	together := make(chan struct{})
	onTxn(client, func(c *txn) (*clientv3.TxnResponse, error) {
		if len(c.then) < 100 {
			return c.send() // none of Held's
		}
		if under.Add(1) == 4 {
			close(together)
		}
		select {
		case <-together:
			return c.send()
		case <-c.ctx.Done():
			return nil, c.ctx.Err()
		}
	})
	b, _ := newVolume(t, client)
	s := open(t, b)
	grants := make([]lockmgr.Grant, 4*128)
	for i := range grants {
		grants[i] = lockmgr.Grant{Key: file(fmt.Sprint(i)), AcquisitionID: lockmgr.NewAcquisitionID(), Token: 1}
	}
	if _, err := s.Held(within(t, patience), grants); err != nil {
		t.Error(err)
	}
}
