package etcdlock_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
)

// stopping is a member that answers writes as one does that stops, and counts them.
type stopping struct {
	pb.UnimplementedKVServer
	pb.UnimplementedLeaseServer
	code         codes.Code
	txns, grants atomic.Int64
}

func (s *stopping) Range(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error) {
	return &pb.RangeResponse{Header: &pb.ResponseHeader{}}, nil
}

func (s *stopping) Txn(context.Context, *pb.TxnRequest) (*pb.TxnResponse, error) {
	s.txns.Add(1)
	return nil, status.Error(s.code, "the member stops")
}

func (s *stopping) LeaseGrant(context.Context, *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	s.grants.Add(1)
	return nil, status.Error(s.code, "the member stops")
}

// A write that a stopping member gives up might be carried out: clientv3 does not send it again.
func TestWriteIsSentOnce(t *testing.T) {
	for _, code := range []codes.Code{codes.Canceled, codes.DeadlineExceeded} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(filepath.Dir(endpointPath()), "stopping-"+newName())
			listener, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			member, server := &stopping{code: code}, grpc.NewServer()
			pb.RegisterKVServer(server, member)
			pb.RegisterLeaseServer(server, member)
			served := make(chan error, 1)
			go func() { served <- server.Serve(listener) }()
			t.Cleanup(func() { server.Stop(); <-served })

			b := newBackend(t, dialAt(t, "unix://"+path), "v")
			for name, ask := range map[string]struct {
				got  *atomic.Int64
				send func(context.Context) error
			}{
				"txn": {&member.txns, func(ctx context.Context) error { return b.InUse(ctx, uuid.New()) }},
				"grant": {&member.grants, func(ctx context.Context) error {
					_, err := b.OpenSession(ctx, lockmgr.SessionInfo{}, lockmgrtest.TTL)
					return err
				}},
			} {
				err := ask.send(within(t, patience))
				if !errors.Is(err, lockmgr.ErrUnavailable) || errors.Is(err, retry.ErrRefused) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %v", name, err)
				}
				if n := ask.got.Load(); n != 1 {
					t.Errorf("%s: sent %d times", name, n)
				}
			}
		})
	}
}
