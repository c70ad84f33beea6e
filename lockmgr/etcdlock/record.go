package etcdlock

import (
	"errors"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/internal/retry"
)

// watchRecord ends the session when its record is deleted: by a revoke, by expiry, by an
// operator. The record stood at rev. A renewal would notice too, a fifth of a TTL later.
func (s *Session) watchRecord(rev int64) {
	var r retry.Retrier
	r.Always(s.life.Over, func() error {
		err := s.followRecord(&r, rev)
		if errors.Is(err, retry.ErrRefused) && !s.life.Ended() && r.Notable() {
			s.b.log.Warn("session record cannot be watched; its end is noticed by renewal", "session", s.ID(), "error", err, "failures", r.Failures()+1)
		}
		return err
	})
}

// followRecord returns nil when the session is over, or the error that ended the watch.
func (s *Session) followRecord(r *retry.Retrier, rev int64) error {
	w, err := s.b.watchDeletes(s.life.Over, s.record)
	if err != nil {
		return err
	}
	defer w.stop()
	if w.rev > rev {
		resp, err := s.b.txn(s.life.Over, nil, []clientv3.Op{clientv3.OpGet(s.record, clientv3.WithKeysOnly())}, nil)
		if err != nil {
			return err
		}
		if len(resp.Responses[0].GetResponseRange().Kvs) == 0 {
			s.life.Lost()
			return nil
		}
	}
	r.Answered()
	for {
		keys, err := w.next(s.life.Over, refreshInterval)
		if err != nil {
			return err
		}
		if slices.Contains(keys, s.record) { // another's may begin with ours
			s.life.Lost()
			return nil
		}
	}
}
