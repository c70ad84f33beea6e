package etcdlock

import (
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

// fence voids unanswered requests. Every Put of the session compares the record's mod revision.
// The Txn that repeats or cleans up also puts the record: its comparisons see the state before.
type fence struct {
	session *Session
	value   string // of the record
	born    int64  // its create revision

	mu  sync.Mutex // guards rev
	rev int64      // the newest mod revision known
}

func newFence(s *Session, value string, born, rev int64) *fence {
	return &fence{session: s, value: value, born: born, rev: rev}
}

func (f *fence) at() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rev
}

// seen notes the record's mod revision as an answer has it. known is at() of before the request was
// sent. Errors: ErrUnavailable if rev is older: etcd was set back, though it may count on from a
// later revision.
func (f *fence) seen(rev, known int64) error {
	if rev < known {
		return f.session.b.setBack(known, rev, f.session.era)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rev = max(f.rev, rev)
	return nil
}

func (f *fence) unchanged(rev int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(f.session.record), "=", rev)
}

// raise puts the record, and so voids requests that compare with its former revision.
func (f *fence) raise() clientv3.Op {
	return clientv3.OpTxn(
		[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(f.session.record), "=", f.born)},
		[]clientv3.Op{clientv3.OpPut(f.session.record, f.value, clientv3.WithLease(f.session.lease))}, nil)
}

func (f *fence) raised(rev int64, answer *pb.ResponseOp) error {
	if !answer.GetResponseTxn().Succeeded {
		return lockmgr.ErrSessionLost
	}
	return f.seen(rev, f.born)
}
