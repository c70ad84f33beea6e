package etcdlock

import (
	"context"
	"fmt"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

// fence makes what was sent earlier, and not answered, void. Every Put of the
// session compares the revision of the session record; raising the fence puts
// the record again.
type fence struct {
	session *Session
	value   string // of the record
	born    int64  // its create revision

	raising chan struct{} // holds a token while the record is put: one Put serves all who wait

	mu  sync.Mutex // guards rev
	rev int64      // the newest mod revision known
}

func newFence(s *Session, value string, born int64) *fence {
	return &fence{session: s, value: value, born: born, rev: born, raising: make(chan struct{}, 1)}
}

func (f *fence) at() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rev
}

func (f *fence) seen(rev int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rev = max(f.rev, rev)
}

// unchanged holds while no fence was raised after rev, and the session lives.
func (f *fence) unchanged(rev int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(f.session.record), "=", rev)
}

// raise returns when no request that compared with rev can take effect any
// more. Errors: ErrSessionLost, ErrUnavailable.
func (f *fence) raise(ctx context.Context, rev int64) error {
	select {
	case f.raising <- struct{}{}:
		defer func() { <-f.raising }()
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", lockmgr.ErrUnavailable, ctx.Err())
	}
	if f.at() > rev {
		return nil
	}
	s := f.session
	resp, err := s.b.txn(ctx,
		[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(s.record), "=", f.born)},
		[]clientv3.Op{clientv3.OpPut(s.record, f.value, clientv3.WithLease(s.lease))}, nil)
	if err != nil {
		return s.noted(err)
	}
	if !resp.Succeeded {
		return s.noted(lockmgr.ErrSessionLost)
	}
	f.seen(resp.Header.Revision)
	return nil
}
