package etcdlock

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// VolumeRecord puts want as the record of the volume if there is none, and
// returns the one that stands: want's bytes, or what another mount put first.
// It tries until ctx ends. Errors: ErrUnavailable, wrapping ctx's.
func (b *Backend) VolumeRecord(ctx context.Context, want []byte) (stored []byte, err error) {
	key := b.keys.volume()
	var r retrier
	err = r.do(ctx, func() error {
		resp, err := b.txn(ctx,
			[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)},
			[]clientv3.Op{clientv3.OpPut(key, string(want))},
			[]clientv3.Op{clientv3.OpGet(key)})
		switch {
		case err != nil:
			return err
		case resp.Succeeded:
			stored = want
		default: // ours too, if an earlier answer was lost
			stored = resp.Responses[0].GetResponseRange().Kvs[0].Value
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("volume record: %w", err)
	}
	return stored, nil
}
