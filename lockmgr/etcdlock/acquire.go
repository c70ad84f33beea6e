package etcdlock

import (
	"context"
	"encoding/json"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// maxKeys keeps a request within the 128 operations of a Txn: to queue for n
// keys takes n Gets and three more, and one Txn of n Puts in the same branch. To
// share them takes n Gets more, to upgrade them n Cmps more.
const (
	maxKeys   = 60
	maxShared = 40
)

// outrunTries is how often a request that does not wait begins anew, with a
// growing pause, because the epoch had moved.
const outrunTries = 4

// Acquire is lockmgr.Session's. A request is refused with ErrInvalidKey if it has no keys,
// or more than 60 (40 to share or to upgrade), or queues for a directory or shares it.
func (s *Session) Acquire(ctx context.Context, req lockmgr.AcquireRequest) ([]lockmgr.Grant, error) {
	if err := check(req); err != nil {
		return nil, err
	}
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	a, err := s.newAcquisition(req)
	if err != nil {
		return nil, err
	}
	s.claims.add(a.own...)
	if err := a.run(ctx); err != nil {
		return nil, a.discard(s.life.Outcome(ctx, err, a.metHolder))
	}
	return a.grants(), nil
}

func check(req lockmgr.AcquireRequest) error {
	if err := req.Validate(); err != nil {
		return err
	}
	most := maxKeys
	if req.Mode == lockmgr.Shared || len(req.Upgrades) > 0 {
		most = maxShared
	}
	if n := len(req.Keys); n > most {
		return fmt.Errorf("%w: %d keys in a request, %d at most", lockmgr.ErrInvalidKey, n, most)
	}
	return nil
}

// acquisition is one Acquire on its way.
type acquisition struct {
	s    *Session
	req  lockmgr.AcquireRequest
	own  []string      // the keys of our entries, as req.Keys
	had  []string      // those of req.Upgrades
	gets []clientv3.Op // tell where we stand, see standing
	puts []clientv3.Op
	dirs []lockmgr.Key // the Tree keys of the request

	bare   []clientv3.Cmp // see untouched
	beside bool           // bare fits into a Txn: it may be put without the epoch

	retrier    retry.Retrier
	outrun     retry.Retrier // counts the Txns that the epoch or the fence outran
	known      standing      // the last answer
	last       *request      // the last Txn, until it is settled
	mayStand   bool          // an entry of ours was put, or may have been
	unanswered int64         // the fence the last unanswered Put compared with, or 0
}

func (s *Session) newAcquisition(req lockmgr.AcquireRequest) (*acquisition, error) {
	value, err := json.Marshal(newValue(req))
	if err != nil {
		return nil, fmt.Errorf("etcdlock: holder: %w", err)
	}
	keys := s.b.keys
	a := &acquisition{s: s, req: req}
	for _, g := range req.Upgrades {
		a.had = append(a.had, keys.granted(g))
	}
	for _, k := range req.Keys {
		entry := keys.entry(k, req.Mode, req.Holder.AcquisitionID)
		a.own = append(a.own, entry)
		a.puts = append(a.puts, clientv3.OpPut(entry, string(value), clientv3.WithLease(s.lease)))
		if k.Kind == lockmgr.Tree {
			a.dirs = append(a.dirs, k)
			a.gets = append(a.gets, clientv3.OpGet(keys.rivals(k, req.Mode), clientv3.WithPrefix(), clientv3.WithLimit(maxBelow)))
			continue
		}
		a.gets = append(a.gets, a.rivals(k))
	}
	if a.byName() {
		for _, entry := range a.own {
			a.gets = append(a.gets, clientv3.OpGet(entry))
		}
	}
	a.gets = append(a.gets,
		clientv3.OpGet(keys.trees(), clientv3.WithPrefix()),
		clientv3.OpGet(keys.epoch()),
		clientv3.OpGet(s.record, clientv3.WithKeysOnly()))
	if len(a.dirs) > 0 {
		a.puts = append(a.puts, clientv3.OpPut(keys.epoch(), req.Holder.AcquisitionID.String()))
	}
	if req.Wait != lockmgr.Queue {
		var few bool
		a.bare, few = keys.untouched(req.Keys)
		a.beside = few && len(a.bare)+len(a.own)+len(a.had)+1 <= maxKeys
	}
	return a, nil
}

// run returns nil when the keys are held.
func (a *acquisition) run(ctx context.Context) error {
	for {
		if err := a.try(ctx); err != nil {
			if a.outrun.Failures() > 0 && a.retrier.Failures() == 0 && ctx.Err() != nil {
				return a.contended(ctx.Err()) // the service answers, to others first
			}
			return err
		}
		queued := a.known.token != 0
		switch {
		case a.known.held():
			return nil
		case !queued && (a.req.Wait == lockmgr.Queue || len(a.known.ahead) == 0):
			// Nothing was put, but only because the epoch or the fence had moved.
			if a.req.Wait == lockmgr.NoWait && a.outrun.Failures() >= outrunTries {
				return a.contended(nil)
			}
			if err := a.outrun.Pause(ctx); err != nil {
				return a.contended(err)
			}
			continue
		case a.req.Wait == lockmgr.NoWait:
			return a.contended(nil)
		case a.deadlocked() && queued:
			return fmt.Errorf("%w: %v", lockmgr.ErrDeadlock, a.contended(nil))
		case a.deadlocked():
			return a.contended(nil)
		}
		a.req.Waiting()
		if err := a.wait(ctx); err != nil || queued {
			return err
		}
	}
}

func (a *acquisition) grants() []lockmgr.Grant {
	grants := make([]lockmgr.Grant, len(a.req.Keys))
	for i, k := range a.req.Keys {
		grants[i] = a.req.Grant(k, a.known.token)
	}
	return grants
}

// discard removes, in the background, the entries that a failed acquisition put or may have
// put. A Txn that is under way is not repeated: its answer says whether there is anything
// to remove. discard returns err, as a LeftoverError if there may be.
func (a *acquisition) discard(err error) error {
	if a.last != nil {
		select {
		case <-a.last.done:
			a.settle()
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
			a.settle()
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
