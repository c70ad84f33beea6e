package etcdlock

import (
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

// fence makes void the requests that were sent earlier and not answered. Every Put of the
// session compares the revision of the session record. To raise the fence is to put the
// record again, in the Txn that asks again or cleans up: the comparisons of its nested Txns
// see the state before all of them.
type fence struct {
	session *Session
	value   string // of the record
	born    int64  // its create revision

	mu  sync.Mutex // guards rev
	rev int64      // the newest mod revision known
}

func newFence(s *Session, value string, born int64) *fence {
	return &fence{session: s, value: value, born: born, rev: born}
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

// raise puts the record, and so makes void all that compared with it before.
func (f *fence) raise() clientv3.Op {
	return clientv3.OpTxn(
		[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(f.session.record), "=", f.born)},
		[]clientv3.Op{clientv3.OpPut(f.session.record, f.value, clientv3.WithLease(f.session.lease))}, nil)
}

// raised notes the answer to raise, at rev. Errors: ErrSessionLost.
func (f *fence) raised(rev int64, answer *pb.ResponseOp) error {
	if !answer.GetResponseTxn().Succeeded {
		return lockmgr.ErrSessionLost
	}
	f.seen(rev)
	return nil
}
