package etcdlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// maxKeys keeps a request within the 128 operations of a Txn: queueing for n keys takes n+4 Gets
// and a Txn of n Puts in one branch. maxShared: sharing takes n more Gets, upgrading n more Cmps.
const (
	maxKeys   = 60
	maxShared = 40
)

// outrunTries limits the attempts of a request that does not wait, while the fence is raised or,
// if it is not few, directory entries are put.
const outrunTries = 4

// Acquire implements lockmgr.Session. Errors: ErrInvalidKey also for more than 60 keys (40 to
// share or to upgrade), and for a directory shared or queued for.
func (s *Session) Acquire(ctx context.Context, req lockmgr.AcquireRequest) ([]lockmgr.Grant, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	most := maxKeys
	if req.Mode == lockmgr.Shared || len(req.Upgrades) > 0 {
		most = maxShared
	}
	if n := len(req.Keys); n > most {
		return nil, fmt.Errorf("%w: %d keys in a request, %d at most", lockmgr.ErrInvalidKey, n, most)
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
	if req.Mode == lockmgr.Delegated {
		s.claims.addDelegation(a.own[0])
	} else {
		s.claims.add(a.own...)
	}
	defer a.endRecall()
	if err := a.run(ctx); err != nil {
		if lockmgr.HandsOn(ctx) && a.standsInLine() {
			return nil, lockmgr.ErrStands
		}
		return nil, a.discard(s.life.Outcome(ctx, err, a.metHolder))
	}
	grants := make([]lockmgr.Grant, len(req.Keys))
	for i, k := range req.Keys {
		grants[i] = req.Grant(k, a.known.token)
	}
	return grants, nil
}

// acquisition is one Acquire under way.
type acquisition struct {
	s    *Session
	req  lockmgr.AcquireRequest
	own  []string      // the keys of our entries, as req.Keys
	had  []string      // the keys of req.Upgrades' entries
	gets []clientv3.Op // the reads that show where we stand, see standing
	puts []clientv3.Op
	then []clientv3.Op // puts, and Gets of the stamps

	around []string // the prefixes of the directory entries that conflict, and no others
	few    bool     // around can be compared one by one; otherwise around is the prefix of all directory entries
	trees  int      // gets[trees:stamps] read them
	stamps int      // gets[stamps:], but the last, read the stamps

	retrier    retry.Retrier
	outrun     retry.Retrier // counts the Txns that the fence or, if not few, another directory has outrun
	known      standing      // the last answer
	last       *request      // the last Txn, until noteAnswer
	mayStand   bool          // an entry of ours was put, or may have been
	unanswered int64         // the fence of the last unanswered Put, or 0

	recalled map[string][]lockmgr.AcquisitionID // what our recalls name, by mount; nil: no recall
	recallID string
	lateFor  int64 // the fence of the last unanswered Put of a recall, or 0
}

func (s *Session) newAcquisition(req lockmgr.AcquireRequest) (*acquisition, error) {
	keys := s.b.keys
	a := &acquisition{s: s, req: req, mayStand: req.Again}
	v := value{Holder: req.Holder, Keep: req.Keep}
	for _, g := range req.Upgrades {
		a.had = append(a.had, keys.granted(g))
		v.Upgrades = append(v.Upgrades, g.AcquisitionID)
	}
	stored, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("etcdlock: holder: %w", err)
	}
	for _, k := range req.Keys {
		entry := keys.entry(k, req.Mode, req.Holder.AcquisitionID)
		a.own = append(a.own, entry)
		a.puts = append(a.puts, clientv3.OpPut(entry, string(stored), clientv3.WithLease(s.lease)))
		if k.Kind == lockmgr.Tree {
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
	a.puts = append(a.puts, keys.stamp(req.Keys)...)
	stamps := keys.stampsOf(req.Keys)
	a.around, a.few = keys.aroundAll(req.Keys)
	if a.few = a.few && len(a.gets)+2*len(a.around)+len(stamps)+len(a.puts)+4 <= maxOps; !a.few {
		a.around = []string{keys.trees()}
		stamps = nil
	}
	if req.Mode == lockmgr.Delegated && !a.few {
		return nil, fmt.Errorf("%w: %s cannot be delegated, its name is too long", lockmgr.ErrInvalidKey, req.Keys[0])
	}
	a.trees = len(a.gets)
	for _, p := range a.around {
		a.gets = append(a.gets, clientv3.OpGet(p, clientv3.WithPrefix()))
	}
	a.stamps = len(a.gets)
	a.gets = append(append(a.gets, stamps...), clientv3.OpGet(s.record, clientv3.WithKeysOnly()))
	a.then = slices.Concat(a.puts, stamps)
	return a, nil
}

// run returns nil when the keys are held. Except for NoWait, it repeats unanswered Txns.
func (a *acquisition) run(ctx context.Context) error {
	for {
		var err error
		if timeout := a.s.b.timeout; a.req.Wait == lockmgr.NoWait {
			bounded, cancel := context.WithTimeout(ctx, timeout)
			err = a.attempt(bounded)
			if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
				err = fmt.Errorf("%w: no answer within %v", lockmgr.ErrUnavailable, timeout)
			}
			cancel()
		} else {
			err = a.retrier.Do(ctx, func() error { return a.attempt(ctx) })
		}
		if err != nil {
			if a.outrun.Failures() > 0 && a.retrier.Failures() == 0 && ctx.Err() != nil {
				return a.contended(ctx.Err()) // the service answers others, so it is available
			}
			return err
		}
		queued := a.known.token != 0
		switch {
		case a.known.held():
			return nil
		case !queued && a.barrier() != nil:
			a.req.Waiting()
			if err := a.retrier.Do(ctx, func() error { return a.follow(ctx) }); err != nil {
				return err
			}
			continue
		case !queued && (a.req.Wait == lockmgr.Queue || len(a.known.ahead) == 0):
			// It was outrun: nothing was put.
			if a.req.Wait == lockmgr.NoWait && a.outrun.Failures() >= outrunTries {
				return a.contended(nil)
			}
			if err := a.outrun.Pause(ctx); err != nil {
				return a.contended(err)
			}
			continue
		case a.req.Wait == lockmgr.NoWait:
			if a.req.Mode == lockmgr.Delegated {
				return a.contended(nil)
			}
			switch given, err := a.tryRecall(ctx); {
			case errors.Is(err, lockmgr.ErrSessionLost):
				return err
			case !given:
				return a.contended(nil)
			}
			continue
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

// attempt sends the Txn once, and notes the answer in known.
func (a *acquisition) attempt(ctx context.Context) error {
	a.noteAnswer()
	own := a.s.claims.delegations()
	if a.req.Mode == lockmgr.Delegated { // a delegation passes neither others nor, after a lost answer, itself
		own = nil
	}
	fence := a.s.fence.at()
	unfenced := a.s.fence.unchanged(fence)
	a.last = &request{keys: a.req.Keys, mode: a.req.Mode, fence: fence, voids: a.unanswered,
		cmps: append(append(a.free(), a.clear("", own)...), unfenced), then: a.then, els: slices.Clip(a.gets)}
	// A second Put, for when something is in the way.
	switch {
	case a.req.Wait == lockmgr.Queue: // only a delegation keeps it from the line
		a.last.els = append(a.last.els, clientv3.OpTxn(append(a.clear(delegated, own), unfenced), a.puts, nil))
	case a.req.Mode == lockmgr.Delegated: // the session's own entries do not
		a.last.els = append(a.last.els, clientv3.OpTxn(append(a.clear("", own), a.mine(), unfenced), a.puts, nil))
	}
	resp, err := a.s.group.txn(ctx, a.last)
	if err != nil {
		return a.s.life.Noted(err)
	}
	rev := resp.Header.Revision
	if resp.Succeeded {
		a.noteStamps(rev, resp.Responses[len(a.puts):], true)
		a.known = standing{rev: rev, token: rev}
		return nil
	}
	placed := a.last.put()
	err = a.note(rev, fence, resp.Responses, placed)
	if stood := a.known.token != 0 && !(placed && a.known.token == rev); err == nil && a.inLine() && stood {
		return a.refresh(ctx) // our entries stood before, so the answer includes entries behind them
	}
	return err
}

// clear returns comparisons that hold while no directory entry of that mode is in the way, except
// own. If the directories are too many to be compared one by one, they hold if the last answer
// showed none in the way, and no directory entry at all was put since.
func (a *acquisition) clear(mode string, own []string) (cmps []clientv3.Cmp) {
	if a.few {
		for _, p := range a.around {
			cmps = append(cmps, noneBut(p+mode, clientv3.GetPrefixRangeEnd(p+mode), own)...)
		}
		if len(cmps) < maxKeys {
			return cmps
		}
	}
	since := a.known.rev
	if a.known.behind(a.s.b.keys.trees()) {
		since = -1
	}
	return []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(a.s.b.keys.trees()).WithPrefix(), "<", since+1)}
}

// noteAnswer notes what became of the last Txn, which was answered or given up.
func (a *acquisition) noteAnswer() {
	r := a.last
	a.last = nil
	switch {
	case r == nil:
	case r.err == nil:
		a.mayStand, a.unanswered = a.mayStand || r.put(), 0
	case unanswered(r.err):
		a.mayStand, a.unanswered = true, r.fence
	case errors.Is(r.err, errFull):
		a.mayStand = true
	}
}

// free returns comparisons that hold when our entries do not stand yet, and no entry conflicts with
// them. Entries that we upgrade and those of directories do not count.
func (a *acquisition) free() []clientv3.Cmp {
	cmps := make([]clientv3.Cmp, 0, len(a.req.Keys)+len(a.had)+2)
	for _, k := range a.req.Keys {
		from := a.s.b.keys.rivals(k, a.req.Mode)
		cmps = append(cmps, noneBut(from, clientv3.GetPrefixRangeEnd(from), slices.Sorted(slices.Values(a.had)))...)
	}
	if a.mayStand && a.req.Mode == lockmgr.Shared { // our own entries are not among the rivals
		for _, own := range a.own {
			cmps = append(cmps, clientv3.Compare(clientv3.CreateRevision(own), "=", 0))
		}
	}
	return cmps
}

// none holds when no key is in [from, to).
func none(from, to string) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(from).WithRange(to), "=", 0)
}

// noneBut is none except for but, which is sorted.
func noneBut(from, to string, but []string) (cmps []clientv3.Cmp) {
	for _, b := range but {
		if from <= b && b < to {
			cmps = append(cmps, none(from, b))
			from = b + "\x00"
		}
	}
	return append(cmps, none(from, to))
}

// inLine reports whether the request waits in one line only: then it needs to read only the end of
// it.
func (a *acquisition) inLine() bool {
	return a.req.Wait == lockmgr.Queue && len(a.req.Keys) == 1 && len(a.req.Upgrades) == 0
}

// rivals reads the entries that conflict with k. In line it reads only the last ones: otherwise
// 1,000 waiters would read a million entries.
func (a *acquisition) rivals(k lockmgr.Key, opts ...clientv3.OpOption) clientv3.Op {
	opts = append(opts, clientv3.WithPrefix())
	if a.inLine() {
		opts = append(opts, clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend), clientv3.WithLimit(atTheEnd))
	}
	return clientv3.OpGet(a.s.b.keys.rivals(k, a.req.Mode), opts...)
}

// byName reports whether our own entries might not be among the rivals.
func (a *acquisition) byName() bool { return a.req.Mode == lockmgr.Shared || a.inLine() }
