package etcdlock

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

// try sends the Txn until it is answered; just once for NoWait.
func (a *acquisition) try(ctx context.Context) error {
	if a.req.Wait == lockmgr.NoWait {
		timeout := a.s.b.timeout
		bounded, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		err := a.attempt(bounded)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return fmt.Errorf("%w: no answer within %v", lockmgr.ErrUnavailable, timeout)
		}
		return err
	}
	return a.retrier.Do(ctx, func() error { return a.attempt(ctx) })
}

// attempt sends the Txn once, and notes the answer in known.
func (a *acquisition) attempt(ctx context.Context) error {
	a.settle()
	epoch, fence := a.s.trees.expect(a.req.Keys), a.s.fence.at()
	unfenced := a.s.fence.unchanged(fence)
	els := a.gets
	if second := a.second(unfenced); second != nil {
		els = append(els[:len(els):len(els)], clientv3.OpTxn(second, a.puts, nil))
	}
	a.last = &request{keys: a.req.Keys, mode: a.req.Mode, fence: fence, voids: a.unanswered,
		cmps: append(a.free(), a.s.b.epochIs(epoch), unfenced), then: a.puts, els: els}
	resp, err := a.s.group.txn(ctx, a.last)
	if err != nil {
		return a.s.life.Noted(err)
	}
	rev := resp.Header.Revision
	if resp.Succeeded {
		a.s.trees.placed(rev, epoch, a.dirs)
		a.known = standing{rev: rev, token: rev}
		return nil
	}
	placed := a.last.put()
	err = a.note(rev, resp.Responses, placed)
	if stood := a.known.token != 0 && !(placed && a.known.token == rev); err == nil && a.inLine() && stood {
		return a.refresh(ctx) // it was put before: all that was read may have come later
	}
	return err
}

// settle notes what became of the last Txn. It was answered, or given up.
func (a *acquisition) settle() {
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

// second returns the comparisons of a second Put, for the case that the epoch has moved or
// something is in the way: to queue, none but the fence; otherwise that nothing is in the
// way, compared directory by directory. nil means that there is no second Put.
func (a *acquisition) second(unfenced clientv3.Cmp) []clientv3.Cmp {
	switch {
	case a.req.Wait == lockmgr.Queue:
		return []clientv3.Cmp{unfenced}
	case !a.beside:
		return nil
	}
	return append(append(a.free(), unfenced), a.bare...)
}
