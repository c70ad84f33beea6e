package etcdlock

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// claims are the entries of a session that somebody here answers for: from
// before the Put is sent, until the entry is known to be gone or nobody takes
// care of it any more. An entry that is seen in etcd while it is not claimed is a
// ghost: its key is made for one acquisition, which is over.
type claims struct {
	mu      sync.Mutex
	entries map[string]struct{}
}

func (c *claims) add(entries ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = make(map[string]struct{})
	}
	for _, e := range entries {
		c.entries[e] = struct{}{}
	}
}

func (c *claims) drop(entries ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		delete(c.entries, e)
	}
}

func (c *claims) has(entry string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.entries[entry]
	return ok
}

// janitor looks every interval or so for what should not be there. Nothing
// depends on it while everything else works: the fence and discard leave no
// ghosts, and no entry is put without a lease.
func (s *Session) janitor(interval time.Duration) {
	for {
		select {
		case <-time.After(interval/2 + rand.N(interval)):
		case <-s.over.Done():
			return
		}
		for _, clean := range []func(context.Context) error{s.exorcise, s.sweep} {
			if err := clean(s.over); err != nil && s.over.Err() == nil {
				s.b.log.Warn("cannot look for entries that nobody needs", "session", s.ID(), "err", err)
			}
		}
	}
}

// exorcise deletes the ghosts of the session: one request when there are none.
func (s *Session) exorcise(ctx context.Context) error {
	attached, err := s.attached(ctx)
	if err != nil {
		return err
	}
	for _, k := range attached {
		key := string(k)
		if _, ok := s.b.keys.parse(key); !ok || s.claims.has(key) {
			continue
		}
		ours := clientv3.Compare(clientv3.LeaseValue(key), "=", s.lease)
		resp, err := s.b.txn(ctx, []clientv3.Cmp{ours}, []clientv3.Op{clientv3.OpDelete(key)}, nil)
		if err != nil {
			return err
		}
		if resp.Succeeded { // else it was released since
			s.b.log.Error("deleted an entry of this session that nobody claims", "session", s.ID(), "entry", key)
		}
	}
	return nil
}

// sweep deletes the volume's entries and session records without a lease, which
// would never end. Of all mounts the one with the oldest session does it.
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

// sweepPage is how many keys a sweep reads at a time.
const sweepPage = 1000

// sweep costs one request, and an answer without keys, if all below root have
// leases. Reads of keys only would not do: etcd leaves the lease out.
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
