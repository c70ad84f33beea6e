package etcdlock_test

import (
	"context"
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
