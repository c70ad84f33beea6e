package etcdlock

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// serviceSeen is an etcd as Service found it.
type serviceSeen struct {
	id      uuid.UUID
	cluster uint64
}

// Service identifies this etcd by an id that the first mount puts. It tries until ctx ends. The
// cluster's id would not do: clusters of one recipe share it, and a restored cluster gets a new
// one. Errors are VolumeRecord's.
func (b *Backend) Service(ctx context.Context) (lockmgr.Service, error) {
	stored, cluster, err := b.putOnce(ctx, b.keys.service(), []byte(uuid.NewString()))
	if err != nil {
		return lockmgr.Service{}, fmt.Errorf("the id of etcd: %w", err)
	}
	id, err := uuid.ParseBytes(stored)
	if err != nil {
		return lockmgr.Service{}, fmt.Errorf("the id of etcd, at %s: %w", b.keys.service(), err)
	}
	b.service.Store(&serviceSeen{id, cluster})
	return b.named(id), nil
}

// FindService is Service without a write: uuid.Nil before the first Service. It tries until ctx
// ends. Errors: ErrUnavailable, wrapping ctx's; etcd's own if the user must not read.
func (b *Backend) FindService(ctx context.Context) (lockmgr.Service, error) {
	var id uuid.UUID
	var r retry.Retrier
	err := r.Do(ctx, func() error {
		resp, err := b.txn(ctx, nil, []clientv3.Op{clientv3.OpGet(b.keys.service())}, nil)
		if err != nil {
			return err
		}
		for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
			id, err = uuid.ParseBytes(kv.Value)
		}
		return err
	})
	if err != nil {
		return lockmgr.Service{}, fmt.Errorf("the id of etcd, at %s: %w", b.keys.service(), err)
	}
	return b.named(id), nil
}

func (b *Backend) named(id uuid.UUID) lockmgr.Service {
	if b.machine != "" {
		return lockmgr.Service{Kind: lockmgr.KindEmbedded, ID: id, At: b.machine}
	}
	return lockmgr.Service{Kind: lockmgr.KindEtcd, ID: id, At: strings.Join(b.client.Endpoints(), ",")}
}

// serviceStands returns nil if this is the etcd that Service saw; if that etcd has lost its id, it
// is put again. Errors: ErrVolumeChanged for another etcd: other mounts may use the former one.
func (b *Backend) serviceStands(ctx context.Context) error {
	seen := b.service.Load()
	if seen == nil {
		return nil
	}
	resp, err := b.txn(ctx, nil, []clientv3.Op{clientv3.OpGet(b.keys.service())}, nil)
	if err != nil {
		return err
	}
	id := []byte(seen.id.String())
	var stored []byte
	switch kvs := resp.Responses[0].GetResponseRange().Kvs; {
	case len(kvs) == 1:
		stored = kvs[0].Value
	case resp.Header.ClusterId != seen.cluster:
		return fmt.Errorf("%w: the endpoints lead to another cluster of etcd", lockmgr.ErrVolumeChanged)
	default:
		if stored, _, err = b.putOnce(ctx, b.keys.service(), id); err != nil {
			return err
		}
	}
	if string(stored) != string(id) {
		return fmt.Errorf("%w: the endpoints lead to another etcd, %s", lockmgr.ErrVolumeChanged, stored)
	}
	return nil
}
