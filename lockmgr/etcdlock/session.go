package etcdlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/internal/lifetime"
)

// Session is one lease and the record that describes its mount.
type Session struct {
	b      *Backend
	renew  *clientv3.Client // see Config.Renewals
	lease  clientv3.LeaseID
	ttl    time.Duration
	record string // key of the session record
	era    lifetime.Era
	stamps *stamps // of its era
	fence  *fence
	claims claims
	group  *group
	life   *lifetime.Life
}

var _ lockmgr.Session = (*Session)(nil)

// OpenSession counts ttl in whole seconds, rounded up. The caller's deadline starts before the
// call. Errors: ErrUnavailable, wrapping ctx's; ErrVolumeChanged.
func (b *Backend) OpenSession(ctx context.Context, info lockmgr.SessionInfo, ttl time.Duration) (lockmgr.Session, error) {
	value, err := json.Marshal(info)
	if err != nil {
		return nil, fmt.Errorf("etcdlock: session record: %w", err)
	}
	era, stamps := b.era()
	renew, err := b.forRenewals(ctx)
	if err != nil {
		return nil, fmt.Errorf("opening a session: %w", err)
	}
	lease, granted, err := b.grant(ctx, ttl)
	if err != nil {
		return nil, fmt.Errorf("opening a session: %w", err)
	}
	s := &Session{
		b:      b,
		renew:  renew,
		lease:  lease,
		ttl:    min(ttl, granted),
		record: b.keys.session(strconv.FormatInt(int64(lease), 16)),
		era:    era,
		stamps: stamps,
	}
	resp, err := b.txn(ctx, b.volumeStands(), []clientv3.Op{clientv3.OpPut(s.record, string(value), clientv3.WithLease(lease))}, nil)
	if err == nil && !resp.Succeeded {
		err = b.volumeFell(ctx)
	}
	if err != nil {
		// One try is enough: the lease has only the record, and expires.
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.timeout)
		defer cancel()
		if rerr := b.revoke(cleanup, lease); rerr != nil {
			b.log.Debug("lease of a failed session left to expire", "session", s.ID(), "error", rerr)
		}
		return nil, fmt.Errorf("opening a session: %w", err)
	}
	s.fence = newFence(s, string(value), resp.Header.Revision, resp.Header.Revision)
	s.group = newGroup(b, s.fence)
	s.begin()
	return s, nil
}

func (b *Backend) grant(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, time.Duration, error) {
	if err := b.enter(ctx); err != nil {
		return 0, 0, err
	}
	defer b.outgoing.Leave()
	id := b.leases | clientv3.LeaseID(rand.Uint32())
	seconds := int64((ttl + time.Second - 1) / time.Second)
	var resp *pb.LeaseGrantResponse
	err := b.patiently(ctx, func(ctx context.Context) (err error) {
		resp, err = pb.NewLeaseClient(b.client.ActiveConnection()).LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: int64(id), TTL: seconds})
		return rpctypes.Error(err)
	})
	if err != nil {
		return 0, 0, err
	}
	return id, time.Duration(resp.TTL) * time.Second, nil
}

func (b *Backend) revoke(ctx context.Context, lease clientv3.LeaseID) error {
	if err := b.enter(ctx); err != nil {
		return err
	}
	defer b.outgoing.Leave()
	return b.patiently(ctx, func(ctx context.Context) error {
		_, err := b.client.Revoke(ctx, lease)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return nil
		}
		return err
	})
}

// ID is the lease's id in hex, as etcdctl shows it.
func (s *Session) ID() string { return strconv.FormatInt(int64(s.lease), 16) }

// TTL is the smaller of the requested TTL and the granted one: etcd raises short TTLs.
func (s *Session) TTL() time.Duration { return s.ttl }

// Done is closed by Close, and when the lease or its record is seen gone or etcd set back.
func (s *Session) Done() <-chan struct{} { return s.life.Over.Done() }

// Renew tries until ctx ends, so ctx needs a deadline. Errors: ErrSessionLost; ErrUnavailable.
func (s *Session) Renew(ctx context.Context) error {
	if _, err := s.renew.KeepAliveOnce(ctx, s.lease); err != nil {
		return s.life.Noted(s.b.fault(ctx, err))
	}
	return nil
}

// Close revokes the lease, trying until ctx ends, and waits for the session's goroutines. Errors:
// ErrUnavailable, wrapping ctx's: the lease is left to expire.
func (s *Session) Close(ctx context.Context) error {
	defer s.group.close()
	return s.life.Close(ctx, func(ctx context.Context) error { return s.b.revoke(ctx, s.lease) })
}
