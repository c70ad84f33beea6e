package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// Release is one Txn, sent once. Errors: ErrNotHeld, ErrNotOwner, ErrUnavailable (wrapping ctx's):
// the entry may be gone, so the caller releases again, and treats ErrNotHeld as success. After
// ErrNotOwner nobody here answers for what stands: the check for orphans removes it.
func (s *Session) Release(ctx context.Context, g lockmgr.Grant) error {
	err := s.release(ctx, g)
	if err == nil || errors.Is(err, lockmgr.ErrNotHeld) || errors.Is(err, lockmgr.ErrNotOwner) {
		s.claims.drop(s.b.keys.granted(g))
	}
	return err
}

func (s *Session) release(ctx context.Context, g lockmgr.Grant) error {
	entry := s.b.keys.granted(g)
	r := &request{keys: []lockmgr.Key{g.Key}, release: true,
		cmps: []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(entry), "=", g.Token)},
		then: []clientv3.Op{clientv3.OpDelete(entry)},
		els:  []clientv3.Op{clientv3.OpGet(entry, clientv3.WithKeysOnly())},
	}
	resp, err := s.group.txn(ctx, r)
	switch {
	case err != nil:
		return fmt.Errorf("releasing %s: %w", g.Key, err)
	case resp.Succeeded && resp.Responses[0].GetResponseDeleteRange().Deleted == 1:
		return nil
	case resp.Succeeded: // a zero token equals the create revision of an absent entry
		return fmt.Errorf("%w: %s, token %d", lockmgr.ErrNotHeld, g.Key, g.Token)
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 && r.again {
		return nil
	}
	if len(kvs) == 0 {
		return fmt.Errorf("%w: %s, token %d", lockmgr.ErrNotHeld, g.Key, g.Token)
	}
	return fmt.Errorf("%w: %s has token %d, not %d", lockmgr.ErrNotOwner, g.Key, kvs[0].CreateRevision, g.Token)
}

// maxGets is etcd's default limit of operations in a Txn.
const maxGets = 128

// Held compares tokens with entries. Errors: ErrUnavailable, wrapping ctx's. LeaseTimeToLive would
// not do: the leader answers from memory, without a majority. A token never returns, so several
// reads are as good as one. A renewal waits for them, so they have their own turns.
func (s *Session) Held(ctx context.Context, grants []lockmgr.Grant) ([]bool, error) {
	held := make([]bool, len(grants))
	errs := make([]error, (len(grants)+maxGets-1)/maxGets)
	var reads sync.WaitGroup
	for i := range errs {
		from, to := i*maxGets, min((i+1)*maxGets, len(grants))
		reads.Go(func() { errs[i] = s.held(ctx, grants[from:to], held[from:to]) })
	}
	reads.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("reading what session %s holds: %w", s.ID(), err)
		}
	}
	return held, nil
}

func (s *Session) held(ctx context.Context, grants []lockmgr.Grant, held []bool) error {
	gets := make([]clientv3.Op, len(grants))
	for i, g := range grants {
		gets[i] = clientv3.OpGet(s.b.keys.granted(g), clientv3.WithKeysOnly())
	}
	resp, err := s.b.txnOf(ctx, s.b.liveness.checks, nil, gets, nil)
	if err != nil {
		return err
	}
	for i, g := range grants {
		kvs := resp.Responses[i].GetResponseRange().Kvs
		held[i] = len(kvs) == 1 && kvs[0].CreateRevision == g.Token
		if len(kvs) == 0 {
			s.claims.drop(s.b.keys.granted(g))
		}
	}
	return nil
}

// discard removes in the background what a failed acquisition may have put, and returns err, then
// as a LeftoverError. The answer of a Txn under way says whether anything stands.
func (a *acquisition) discard(err error) error {
	if a.last != nil {
		select {
		case <-a.last.done:
			a.noteAnswer()
		default:
		}
	}
	if !a.mayStand && a.last == nil {
		a.s.claims.drop(a.own...)
		return err
	}
	gone := make(chan struct{})
	a.s.life.Discard(a.req.Holder.AcquisitionID, a.withdraw, func() {
		a.s.claims.drop(a.own...)
		close(gone)
	})
	return &lockmgr.LeftoverError{Err: err, Gone: gone}
}

// withdraw deletes the entries, if they stand or may come to stand.
func (a *acquisition) withdraw(ctx context.Context) error {
	if a.last != nil {
		select {
		case <-a.last.done:
			a.noteAnswer()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if !a.mayStand {
		return nil
	}
	dels := make([]clientv3.Op, len(a.own))
	for i, entry := range a.own {
		dels[i] = clientv3.OpDelete(entry)
	}
	var r retry.Retrier
	return r.Do(ctx, func() error {
		_, err := a.s.group.txn(ctx, &request{keys: a.req.Keys, release: true, voids: a.unanswered, then: dels})
		return err
	})
}
