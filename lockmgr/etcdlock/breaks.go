package etcdlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// breakKept is how long the record of a broken lock lives.
const breakKept = 24 * time.Hour

// announced is the first value of a break's record. It tells nobody anything.
const announced = "{}"

// PutBreak implements lockmgr.Breaker. It tries until ctx ends, or etcd has no space left. The
// break replaces an announced record, whose create revision it compares: after DropBreak, no
// request that comes late can put the break.
func (b *Backend) PutBreak(ctx context.Context, br lockmgr.Break) error {
	value, err := json.Marshal(br)
	if err != nil {
		return fmt.Errorf("etcdlock: break: %w", err)
	}
	key := b.keys.broken(br.ID.String())
	var r retry.Retrier
	lease := clientv3.LeaseID(1 + rand.Int64N(math.MaxInt64)) // our choice, so that a second attempt asks for the same one
	err = r.Do(ctx, func() (err error) {
		defer func() {
			if errors.Is(err, rpctypes.ErrNoSpace) { // the operator is told, and has to make space
				err = fmt.Errorf("%w: %w", err, retry.ErrRefused)
			}
		}()
		if err := b.keepBreak(ctx, lease); err != nil {
			return err
		}
		created, err := b.announceBreak(ctx, key, lease)
		if err != nil {
			return err
		}
		resp, err := b.txn(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", created)},
			[]clientv3.Op{clientv3.OpPut(key, string(value), clientv3.WithLease(lease))}, nil)
		if err == nil && !resp.Succeeded {
			err = fmt.Errorf("%w: the record of the break is gone", lockmgr.ErrUnavailable)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("recording a break: %w", err)
	}
	return nil
}

func (b *Backend) keepBreak(ctx context.Context, id clientv3.LeaseID) error {
	return b.patiently(ctx, func(ctx context.Context) error {
		_, err := pb.NewLeaseClient(b.client.ActiveConnection()).LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: int64(id), TTL: int64(breakKept / time.Second)})
		if err = rpctypes.Error(err); errors.Is(err, rpctypes.ErrLeaseExist) {
			return nil // by an earlier attempt
		}
		return err
	})
}

// announceBreak puts the record that a break replaces, and returns its create revision.
func (b *Backend) announceBreak(ctx context.Context, key string, lease clientv3.LeaseID) (created int64, err error) {
	resp, err := b.txn(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)},
		[]clientv3.Op{clientv3.OpPut(key, announced, clientv3.WithLease(lease))},
		[]clientv3.Op{clientv3.OpGet(key, clientv3.WithKeysOnly())})
	switch {
	case err != nil:
		return 0, err
	case resp.Succeeded:
		return resp.Header.Revision, nil
	}
	return resp.Responses[0].GetResponseRange().Kvs[0].CreateRevision, nil // by an earlier attempt
}

// DropBreak implements lockmgr.Breaker. It tries until ctx ends.
func (b *Backend) DropBreak(ctx context.Context, id uuid.UUID) error {
	var r retry.Retrier
	return r.Do(ctx, func() error {
		_, err := b.txn(ctx, nil, []clientv3.Op{clientv3.OpDelete(b.keys.broken(id.String()))}, nil)
		return err
	})
}

// WatchBreaks implements lockmgr.Breaker.
func (b *Backend) WatchBreaks(ctx context.Context, found func(lockmgr.Break)) {
	defer b.told.listen(&listener{prefix: b.keys.broken(""), found: func(kv *mvccpb.KeyValue) { b.foundBreak(kv, found) }})()
	<-ctx.Done()
}

func (b *Backend) foundBreak(kv *mvccpb.KeyValue, found func(lockmgr.Break)) {
	if string(kv.Value) == announced {
		return
	}
	br, err := lockmgr.ParseBreak(strings.TrimPrefix(string(kv.Key), b.keys.broken("")), kv.Value)
	if err != nil {
		b.log.Warn("break that cannot be read", "key", string(kv.Key), "error", err)
		return
	}
	found(br)
}

// SessionTTL implements lockmgr.Breaker.
func (b *Backend) SessionTTL(ctx context.Context, id string) (time.Duration, error) {
	lease, err := leaseOf(id)
	if err != nil {
		return 0, err
	}
	resp, err := b.timeToLive(ctx, lease)
	switch {
	case err != nil:
		return 0, err
	case resp.TTL < 0:
		return 0, fmt.Errorf("%w: session %s", lockmgr.ErrSessionLost, id)
	}
	return time.Duration(resp.GrantedTTL) * time.Second, nil
}

func (b *Backend) timeToLive(ctx context.Context, lease clientv3.LeaseID, opts ...clientv3.LeaseOption) (resp *clientv3.LeaseTimeToLiveResponse, err error) {
	err = b.patiently(ctx, func(ctx context.Context) (err error) {
		resp, err = b.client.TimeToLive(ctx, lease, opts...)
		return err
	})
	return resp, err
}

func leaseOf(id string) (clientv3.LeaseID, error) {
	n, err := strconv.ParseInt(id, 16, 64)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%w: %q is not the id of a session", lockmgr.ErrSessionLost, id)
	}
	return clientv3.LeaseID(n), nil
}
