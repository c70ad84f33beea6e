package etcdlock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/lockfs/lockfs/lockmgr"
)

// A lease lives for a TTL in whole seconds at least. If etcd grants less, that is the session's TTL.
func TestTTL(t *testing.T) {
	var less atomic.Int64
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialOptions: []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			err := invoke(ctx, method, req, reply, cc, opts...)
			if granted, ok := reply.(*pb.LeaseGrantResponse); ok && strings.HasSuffix(method, "/LeaseGrant") {
				granted.TTL -= less.Load()
			}
			return err
		}),
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	b, etcd := newVolume(t, client)
	const ttl = time.Hour + time.Millisecond
	for _, want := range []time.Duration{ttl, time.Hour - 9*time.Second} {
		s, err := b.OpenSession(within(t, patience), lockmgr.SessionInfo{}, ttl)
		if err != nil {
			t.Fatal(err)
		}
		if s.TTL() != want {
			t.Errorf("TTL %v, want %v", s.TTL(), want)
		}
		if lease, err := etcd.TimeToLive(t.Context(), leaseOf(t, s)); err != nil || lease.GrantedTTL != 3601 {
			t.Errorf("%+v, %v", lease, err)
		}
		if err := s.Close(within(t, patience)); err != nil {
			t.Error(err)
		}
		less.Store(10)
	}
}

// A session whose etcd is set back while it is opened has ended: etcd may have forgotten it.
func TestSessionOpenedInASetback(t *testing.T) {
	type older struct{}
	client := dial(t)
	b, _ := newVolume(t, client)
	var opening atomic.Bool
	onTxn(client, func(x *txn) (*clientv3.TxnResponse, error) {
		resp, err := x.send()
		if x.ctx.Value(older{}) != nil && err == nil {
			resp.Header.Revision = 1
		}
		if len(x.then) == 1 && x.then[0].IsPut() && opening.CompareAndSwap(true, false) { // the record is put
			if _, err := b.Sessions(context.WithValue(x.ctx, older{}, true)); !errors.Is(err, lockmgr.ErrUnavailable) {
				t.Errorf("set back: %v", err)
			}
		}
		return resp, err
	})
	before := open(t, b)
	opening.Store(true)
	for _, s := range []lockmgr.Session{open(t, b), before} {
		select {
		case <-s.Done():
		default:
			t.Error("the session goes on")
		}
	}
	must(t, open(t, b), lockmgr.NoWait, file("f"))
}
