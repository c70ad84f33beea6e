package etcdlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

// refusing has client refuse the reads of keys from the one on, as for a role that an
// operator took away and gives back, and counts them.
func refusing(client *clientv3.Client, refuse *atomic.Bool, after func(*txn)) *atomic.Int64 {
	refused := new(atomic.Int64)
	onTxn(client, func(x *txn) (*clientv3.TxnResponse, error) {
		if refuse.Load() && len(x.cmps) == 0 && len(x.then) > 0 && x.then[0].IsGet() {
			refused.Add(1)
			return nil, rpctypes.ErrPermissionDenied
		}
		resp, err := x.send()
		after(x)
		return resp, err
	})
	return refused
}

// A mount that etcd refuses to tell of the breaks, just after it let it watch them,
// goes on asking: else no lock of it could be broken any more.
func TestBreaksAreRefused(t *testing.T) {
	client := dial(t)
	b, etcd := newVolume(t, client)
	var refuse atomic.Bool
	refuse.Store(true)
	refused := refusing(client, &refuse, func(*txn) {})
	ctx, cancel := context.WithCancel(t.Context())
	found, over := make(chan lockmgr.Break, 10), make(chan struct{})
	go func() {
		defer close(over)
		b.WatchBreaks(ctx, func(br lockmgr.Break) { found <- br })
	}()
	defer func() { cancel(); <-over }()
	eventually(t, "it is refused twice", func() bool { return refused.Load() > 1 })
	refuse.Store(false)
	br := lockmgr.Break{ID: uuid.New(), Path: "f", AcquisitionID: lockmgr.NewAcquisitionID(), Token: 7}
	if err := newBackend(t, dial(t), etcd.name).PutBreak(within(t, patience), br); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-found:
		if got.ID != br.ID {
			t.Errorf("found %v", got)
		}
	case <-time.After(patience):
		t.Error("not told of a break")
	}
}

// A session that etcd refuses to read its record, just after it let it watch that,
// goes on asking.
func TestRecordIsRefused(t *testing.T) {
	client := dial(t)
	b, etcd := newVolume(t, client)
	var refuse atomic.Bool
	refused := refusing(client, &refuse, func(x *txn) {
		if len(x.then) == 1 && x.then[0].IsPut() { // its record
			refuse.Store(true)
		}
	})
	s := open(t, b)
	eventually(t, "it is refused twice", func() bool { return refused.Load() > 1 })
	refuse.Store(false)
	if _, err := etcd.Delete(t.Context(), etcd.admin("session/"+s.ID())); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Done():
	case <-time.After(patience):
		t.Error("not told of the end of the session")
	}
}
