package etcdlock

import (
	"context"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// janitor should find nothing: every entry is put with a lease.
func (s *Session) janitor() {
	s.life.Every(s.b.janitor, s.sweep, func(err error) {
		s.b.log.Warn("cannot look for entries that nobody needs", "session", s.ID(), "error", err)
	})
}

// Entries and records without a lease would never end. Only the oldest session sweeps them.
func (s *Session) sweep(ctx context.Context) error {
	sessions := s.b.keys.session("")
	resp, err := s.b.txn(ctx, nil, []clientv3.Op{clientv3.OpGet(sessions, clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend), clientv3.WithLimit(1))}, nil)
	if err != nil {
		return err
	}
	for _, oldest := range resp.Responses[0].GetResponseRange().Kvs {
		if string(oldest.Key) != s.record {
			return s.b.sweepKey(ctx, oldest)
		}
	}
	for _, root := range []string{s.b.keys.files, s.b.keys.trees(), s.b.keys.inodes(), sessions} {
		if err := s.b.sweep(ctx, root); err != nil {
			return err
		}
	}
	return nil
}

const sweepPage = 1000

// sweep is one comparison if all keys have leases. etcd's reads of keys alone omit the lease.
func (b *Backend) sweep(ctx context.Context, root string) error {
	leased := clientv3.Compare(clientv3.LeaseValue(root).WithPrefix(), ">", 0)
	for from := root; from != ""; {
		page := clientv3.OpGet(from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(root)), clientv3.WithLimit(sweepPage))
		resp, err := b.txn(ctx, []clientv3.Cmp{leased}, nil, []clientv3.Op{page})
		if err != nil || resp.Succeeded {
			return err
		}
		kvs := resp.Responses[0].GetResponseRange().Kvs
		for _, kv := range kvs {
			if err := b.sweepKey(ctx, kv); err != nil {
				return err
			}
		}
		from = ""
		if len(kvs) == sweepPage {
			from = string(kvs[sweepPage-1].Key) + "\x00"
		}
	}
	return nil
}

func (b *Backend) sweepKey(ctx context.Context, kv *mvccpb.KeyValue) error {
	key := string(kv.Key)
	if _, ok := b.keys.parse(key); kv.Lease != 0 || !ok && !strings.HasPrefix(key, b.keys.session("")) {
		return nil
	}
	unchanged := clientv3.Compare(clientv3.ModRevision(key), "=", kv.ModRevision)
	resp, err := b.txn(ctx, []clientv3.Cmp{unchanged}, []clientv3.Op{clientv3.OpDelete(key)}, nil)
	if err == nil && resp.Succeeded {
		b.log.Error("deleted an entry without a lease", "entry", key)
	}
	return err
}
