package etcdlock

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// record is that of the volume, as this backend has seen it.
type record struct {
	value  []byte
	admits func(stored []byte) bool // whether another is as good
}

// VolumeRecord returns the volume's record, want if there was none. Sessions are opened only under
// that record, or a later one that admits says yes to. It tries until ctx ends. Errors:
// ErrUnavailable; etcd's own if a right is missing.
func (b *Backend) VolumeRecord(ctx context.Context, want []byte, admits func(stored []byte) bool) (stored []byte, err error) {
	if stored, err = b.putVolumeRecord(ctx, want); err == nil {
		b.volume.Store(&record{stored, admits})
	}
	return stored, err
}

func (b *Backend) putVolumeRecord(ctx context.Context, want []byte) (stored []byte, err error) {
	stored, _, err = b.putOnce(ctx, b.keys.volume(), want)
	if err != nil {
		return nil, fmt.Errorf("volume record: %w", err)
	}
	return stored, nil
}

// putOnce puts value at key if key is absent. It returns what stands, and the id of the cluster.
func (b *Backend) putOnce(ctx context.Context, key string, value []byte) (stored []byte, cluster uint64, err error) {
	var r retry.Retrier
	err = r.Do(ctx, func() error {
		resp, err := b.txn(ctx,
			[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)},
			[]clientv3.Op{clientv3.OpPut(key, string(value)), b.rights()},
			[]clientv3.Op{clientv3.OpGet(key), b.rights()})
		switch {
		case errors.Is(err, rpctypes.ErrPermissionDenied):
			return fmt.Errorf("the etcd user needs readwrite on the prefixes %s and %s: %w", b.keys.files, b.keys.admin, rpctypes.ErrPermissionDenied)
		case err != nil:
			return err
		case resp.Succeeded:
			stored = value
		default: // also our own value, if an earlier answer was lost
			stored = resp.Responses[0].GetResponseRange().Kvs[0].Value
		}
		cluster = resp.Header.ClusterId
		return nil
	})
	return stored, cluster, err
}

// rights changes nothing: etcd checks rights even of operations that it does not carry out.
func (b *Backend) rights() clientv3.Op {
	never := clientv3.Compare(clientv3.Version(b.keys.volume()), "<", 0)
	return clientv3.OpTxn([]clientv3.Cmp{never}, []clientv3.Op{
		clientv3.OpGet(b.keys.files, clientv3.WithPrefix()), clientv3.OpPut(b.keys.files, ""), clientv3.OpGet(b.keys.admin, clientv3.WithPrefix()),
	}, nil)
}

// ReplaceVolumeRecord replaces old while the volume has no session but of mounts that enforce a policy.
// It tries until ctx ends. Errors: *lockmgr.VolumeInUseError; lockmgr.ErrVolumeChanged if old is not
// the record; ErrUnavailable.
func (b *Backend) ReplaceVolumeRecord(ctx context.Context, old, want []byte, policy string) error {
	var r retry.Retrier
	if err := r.Do(ctx, func() error { return b.replaceRecord(ctx, old, want, policy) }); err != nil {
		return fmt.Errorf("volume record: %w", err)
	}
	next := record{value: want}
	if seen := b.volume.Load(); seen != nil {
		next.admits = seen.admits
	}
	b.volume.Store(&next)
	return nil
}

func (b *Backend) replaceRecord(ctx context.Context, old, want []byte, policy string) error {
	key, sessions := b.keys.volume(), b.keys.session("")
	looked := int64(0) // all sessions of this revision enforce the policy
	for {
		resp, err := b.txn(ctx,
			[]clientv3.Cmp{
				clientv3.Compare(clientv3.Value(key), "=", string(old)),
				clientv3.Compare(clientv3.ModRevision(sessions).WithPrefix(), "<", looked+1),
			},
			[]clientv3.Op{clientv3.OpPut(key, string(want))},
			[]clientv3.Op{clientv3.OpGet(key), clientv3.OpGet(sessions, clientv3.WithPrefix())})
		if err != nil || resp.Succeeded {
			return err
		}
		stored := resp.Responses[0].GetResponseRange().Kvs
		if len(stored) == 1 && string(stored[0].Value) == string(want) {
			return nil // an earlier answer was lost
		}
		inUse := &lockmgr.VolumeInUseError{}
		for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
			s, err := lockmgr.ParseSessionInfo(string(kv.Key), kv.Value)
			if err != nil {
				return err
			}
			if !s.Enforces(policy) {
				inUse.Sessions = append(inUse.Sessions, s)
			}
		}
		switch {
		case len(inUse.Sessions) > 0:
			return inUse
		case len(stored) != 1 || string(stored[0].Value) != string(old):
			return lockmgr.ErrVolumeChanged
		}
		looked = resp.Header.Revision
	}
}

// A session opened under a changed record would have another policy.
func (b *Backend) volumeStands() []clientv3.Cmp {
	seen := b.volume.Load()
	if seen == nil {
		return nil // not a mount of the volume
	}
	return []clientv3.Cmp{clientv3.Compare(clientv3.Value(b.keys.volume()), "=", string(seen.value))}
}

// volumeFell says why volumeStands failed. If this etcd lost the record, it is put again: retry.
func (b *Backend) volumeFell(ctx context.Context) error {
	if err := b.serviceStands(ctx); err != nil {
		return err
	}
	seen := b.volume.Load()
	stored, err := b.putVolumeRecord(ctx, seen.value)
	switch {
	case err != nil:
		return err
	case string(stored) == string(seen.value):
		return fmt.Errorf("%w: the volume's record was gone", lockmgr.ErrUnavailable)
	case seen.admits != nil && seen.admits(stored):
		b.volume.Store(&record{stored, seen.admits})
		return fmt.Errorf("%w: the volume's record has changed", lockmgr.ErrUnavailable)
	}
	return lockmgr.ErrVolumeChanged
}
