package etcdlock

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

// checkRate limits a mount's checks, at 0.7 µs an entry: 50,000 files cost as much as 10,000.
const checkRate = 2500

func (b *Backend) checkPause() time.Duration {
	every := max(b.check, time.Duration(b.attached.Load())*time.Second/checkRate)
	return every*3/4 + rand.N(every/2)
}

// Watch implements lockmgr.Session with one request every few seconds, for the keys on the lease.
// Watches would show a delete at once, but cost something for each lock (docs/adr/0018).
func (s *Session) Watch(ctx context.Context, held func() []lockmgr.Grant, gone func(lockmgr.Grant)) {
	counted, checked := 0, time.Now()
	defer func() { s.b.attached.Add(-int64(counted)) }()
	for {
		select {
		case <-time.After(s.b.checkPause()):
		case <-s.life.Over.Done():
			return
		case <-ctx.Done():
			return
		}
		grants := held()
		if len(grants) == 0 && time.Since(checked) < s.b.janitor {
			continue // only orphans are possible
		}
		checked = time.Now()
		s.claims.beginCheck()
		attached, err := s.attached(ctx)
		if err == nil {
			s.b.attached.Add(int64(len(attached) - counted))
			counted = len(attached)
			attached = slices.DeleteFunc(attached, s.claims.saw)
			err = errors.Join(s.miss(ctx, grants, gone), s.removeOrphans(ctx, attached, slog.LevelError))
		}
		if err != nil && ctx.Err() == nil && !s.life.Ended() {
			s.b.log.Debug("cannot look for this session's entries", "session", s.ID(), "error", err)
		}
	}
}

// miss calls gone for those of grants that etcd does not have. The leader lists a lease's keys
// from memory, without asking a majority, so miss reads entries that the list lacks.
func (s *Session) miss(ctx context.Context, grants []lockmgr.Grant, gone func(lockmgr.Grant)) error {
	var doubtful []lockmgr.Grant
	var entry []byte // reused: there are thousands
	for _, g := range grants {
		entry = s.b.keys.appendEntry(entry[:0], g.Key, g.Mode, g.AcquisitionID)
		if !s.claims.seen(entry) {
			doubtful = append(doubtful, g)
		}
	}
	if len(doubtful) == 0 {
		return nil
	}
	stand, err := s.Held(ctx, doubtful)
	if err != nil {
		return err
	}
	for i, ok := range stand {
		if !ok {
			s.claims.drop(s.b.keys.granted(doubtful[i]))
			gone(doubtful[i])
		}
	}
	return nil
}

// removeOrphans deletes unclaimed entries. The fence and discard should leave none. A process that
// hands its session on may.
func (s *Session) removeOrphans(ctx context.Context, unclaimed [][]byte, level slog.Level) error {
	for _, k := range unclaimed {
		key := string(k)
		if _, ok := s.b.keys.parse(key); !ok {
			continue
		}
		ours := clientv3.Compare(clientv3.LeaseValue(key), "=", s.lease)
		resp, err := s.b.txn(ctx, []clientv3.Cmp{ours}, []clientv3.Op{clientv3.OpDelete(key)}, nil)
		if err != nil {
			return err
		}
		if resp.Succeeded { // else it was released meanwhile
			s.b.log.Log(ctx, level, "deleted an entry of this session that nobody claims", "session", s.ID(), "entry", key)
		}
	}
	return nil
}

func (s *Session) attached(ctx context.Context) ([][]byte, error) {
	lease, err := s.b.timeToLive(ctx, s.lease, clientv3.WithAttachedKeys())
	if err != nil {
		return nil, err
	}
	if lease.TTL < 0 {
		return nil, s.life.Noted(lockmgr.ErrSessionLost)
	}
	return lease.Keys, nil
}
