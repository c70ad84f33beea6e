package etcdlock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockfs/lockfs/lockmgr"
)

// A break has one lease, of a day, however often its grant was not answered.
func TestBreakLeavesOneLease(t *testing.T) {
	var lost atomic.Int64
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialOptions: []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			err := invoke(ctx, method, req, reply, cc, opts...)
			if err == nil && strings.HasSuffix(method, "/LeaseGrant") && lost.Add(1) <= 3 {
				return status.Error(codes.Unavailable, "the answer is lost")
			}
			return err
		}),
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	b, etcd := newVolume(t, client)
	days := func() (n int) {
		t.Helper()
		leases, err := etcd.Leases(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range leases.Leases {
			if left, err := etcd.TimeToLive(t.Context(), l.ID); err == nil && left.GrantedTTL == 24*60*60 {
				n++
			}
		}
		return n
	}
	before := days()
	br := lockmgr.Break{ID: uuid.New(), Path: "f", AcquisitionID: lockmgr.NewAcquisitionID(), Token: 7}
	if err := b.PutBreak(within(t, patience), br); err != nil {
		t.Fatal(err)
	}
	if lost.Load() == 0 {
		t.Fatal("no answer was lost")
	}
	if n := days() - before; n != 1 {
		t.Errorf("%d leases of a day", n)
	}
	if got, err := etcd.Get(t.Context(), etcd.admin("break/"+br.ID.String())); err != nil || len(got.Kvs) != 1 || got.Kvs[0].Lease == 0 {
		t.Errorf("the record: %v, %v", got, err)
	}
}

// A break that arrives after it was dropped tells no mount anything, also if the record that it
// replaces comes late, too.
func TestLateBreak(t *testing.T) {
	client := dial(t)
	ctx, cancel := context.WithCancel(within(t, patience))
	dropped := uuid.New()
	var late []func() (*clientv3.TxnResponse, error)
	onTxn(client, func(x *txn) (*clientv3.TxnResponse, error) {
		put := len(x.then) == 1 && x.then[0].IsPut()
		switch {
		case put && string(x.then[0].ValueBytes()) != "{}":
			cancel()
		case !put || len(late) > 0:
			return x.send()
		}
		x.ctx = context.WithoutCancel(x.ctx)
		late = append(late, x.send)
		return nil, status.Error(codes.Unavailable, "the connection broke")
	})
	b, etcd := newVolume(t, client)
	mount := newBackend(t, dial(t), etcd.name)
	watching, stop := context.WithCancel(t.Context())
	told, over := make(chan uuid.UUID, 100), make(chan struct{})
	go func() {
		defer close(over)
		mount.WatchBreaks(watching, func(b lockmgr.Break) { told <- b.ID })
	}()
	defer func() { stop(); <-over }()
	br := lockmgr.Break{Path: "f", AcquisitionID: lockmgr.NewAcquisitionID(), Token: 7}
	another := func() {
		t.Helper()
		br.ID = uuid.New()
		if err := mount.PutBreak(within(t, patience), br); err != nil {
			t.Fatal(err)
		}
		for id := range told {
			if id == dropped {
				t.Error("told of the break that was dropped")
			}
			if id == br.ID {
				return
			}
		}
	}
	another() // the mount hears

	br.ID = dropped
	if err := b.PutBreak(ctx, br); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Fatal(err)
	}
	if err := b.DropBreak(within(t, patience), dropped); err != nil {
		t.Fatal(err)
	}
	for _, send := range late {
		if _, err := send(); err != nil {
			t.Logf("late request: %v", err)
		}
	}
	another()
}
