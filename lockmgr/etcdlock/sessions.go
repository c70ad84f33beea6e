package etcdlock

import (
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

// Sessions returns the live sessions' records by id. Errors: ErrUnavailable, wrapping ctx's.
func (b *Backend) Sessions(ctx context.Context) (map[string]lockmgr.SessionInfo, error) {
	prefix := b.keys.session("")
	resp, err := b.txn(ctx, nil, []clientv3.Op{clientv3.OpGet(prefix, clientv3.WithPrefix())}, nil)
	if err != nil {
		return nil, fmt.Errorf("listing sessions: %w", err)
	}
	sessions := make(map[string]lockmgr.SessionInfo)
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		info, err := lockmgr.ParseSessionInfo(string(kv.Key), kv.Value)
		if err != nil {
			return nil, err
		}
		sessions[strings.TrimPrefix(string(kv.Key), prefix)] = info
	}
	return sessions, nil
}

// Revoke implements lockmgr.Breaker with one request.
func (b *Backend) Revoke(ctx context.Context, id string) error {
	lease, err := leaseOf(id)
	if err == nil {
		err = b.revoke(ctx, lease)
	}
	if err != nil {
		return fmt.Errorf("revoke session %s: %w", id, err)
	}
	return nil
}
