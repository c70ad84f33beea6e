package etcdlock

import (
	"context"
	"hash/maphash"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

// missEvery is how often, more or less, a session looks whether its entries stand:
// at 0.7 µs an entry. More than missAtOnce sessions look less often, so that those of
// 50,000 open files do not take more than those of 10,000.
const (
	missEvery  = 4 * time.Second
	missAtOnce = 4
)

// missPause is how long a session waits before it looks.
func (b *Backend) missPause() time.Duration {
	every := missEvery * time.Duration(max(missAtOnce, b.guarded.Load())) / missAtOnce
	return every*3/4 + rand.N(every/2)
}

// Watch is lockmgr.Session's: one request every few seconds, for the keys that are
// attached to the lease. A watch of each entry, or of the volume, would be told of
// it at once, and cost something for each lock, or for each lock of all mounts.
func (s *Session) Watch(ctx context.Context, held func() []lockmgr.Grant, gone func(lockmgr.Grant)) {
	s.b.guarded.Add(1)
	defer s.b.guarded.Add(-1)
	for {
		select {
		case <-time.After(s.b.missPause()):
		case <-s.over.Done():
			return
		case <-ctx.Done():
			return
		}
		missing, err := s.missing(ctx, held())
		if err != nil && ctx.Err() == nil && s.over.Err() == nil {
			s.b.log.Debug("cannot look for this session's entries", "session", s.ID(), "err", err)
		}
		for _, g := range missing {
			s.claims.drop(s.b.keys.granted(g))
			gone(g)
		}
	}
}

// missing returns which of grants etcd does not have. The leader says what is
// attached to the lease from its memory, without asking a majority; so what it
// does not name is read.
func (s *Session) missing(ctx context.Context, grants []lockmgr.Grant) ([]lockmgr.Grant, error) {
	if len(grants) == 0 {
		return nil, nil
	}
	attached, err := s.attached(ctx)
	if err != nil {
		return nil, err
	}
	// By their hashes: thousands of keys, of which none is missing.
	seed := maphash.MakeSeed()
	there := make(map[uint64]struct{}, len(attached))
	for _, key := range attached {
		there[maphash.Bytes(seed, key)] = struct{}{}
	}
	var doubtful, missing []lockmgr.Grant
	for _, g := range grants {
		if _, ok := there[maphash.String(seed, s.b.keys.granted(g))]; !ok {
			doubtful = append(doubtful, g)
		}
	}
	stand, err := s.Held(ctx, doubtful)
	for i, ok := range stand {
		if !ok {
			missing = append(missing, doubtful[i])
		}
	}
	return missing, err
}

// attached returns the keys on the session's lease.
func (s *Session) attached(ctx context.Context) ([][]byte, error) {
	lease, err := s.b.timeToLive(ctx, s.lease, clientv3.WithAttachedKeys())
	if err != nil {
		return nil, err
	}
	if lease.TTL < 0 {
		return nil, s.noted(lockmgr.ErrSessionLost)
	}
	return lease.Keys, nil
}
