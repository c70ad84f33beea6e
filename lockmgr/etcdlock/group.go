package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// errUnsent marks a request that was never sent, and so never carried out.
var errUnsent = errors.New("not carried out")

// errFull marks etcd's answer NOSPACE. The request that reaches the quota gets it too, and is
// carried out. A refused request is not carried out later.
var errFull = errors.New("etcd has no space left, until it is compacted and defragmented and the alarm disarmed")

const (
	// maxOps is etcd's default limit for a Txn, with the largest nested Txn at each level.
	maxOps = 128
	// maxBytes keeps a group well below etcd's default limit of 1.5 MiB.
	maxBytes = 1 << 20
)

// group sends the Txns of a session, one at a time. A request goes at once while none is under
// way. Requests that arrive meanwhile go together in the next Txn, each as a nested Txn.
//
// The comparisons of nested Txns see the state before all of them, and all their puts get one
// create revision. So no two requests of a group may conflict, see request.apart.
type group struct {
	b      *Backend
	fence  *fence
	ctx    context.Context // of the requests, because one Txn has several callers
	cancel context.CancelFunc

	mu      sync.Mutex
	waiting []*request     // GUARDED_BY(mu); in order of arrival
	sending bool           // GUARDED_BY(mu)
	closed  bool           // GUARDED_BY(mu)
	running sync.WaitGroup // Add is GUARDED_BY(mu)
}

func newGroup(b *Backend, f *fence) *group {
	g := &group{b: b, fence: f}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// request is one Txn of an acquisition or a release.
type request struct {
	keys    []lockmgr.Key
	mode    lockmgr.Mode
	release bool
	again   bool  // an earlier attempt may have been carried out
	fence   int64 // the mod revision of the session record in cmps
	voids   int64 // raise the fence in the same Txn, if it is not above this; 0: do not

	cmps      []clientv3.Cmp
	then, els []clientv3.Op

	done chan struct{} // closed when resp and err are set
	resp *clientv3.TxnResponse
	err  error
}

func (r *request) answer(resp *clientv3.TxnResponse, err error) {
	r.resp, r.err = resp, err
	close(r.done)
}

// put reports whether the entries were put: by the first branch, or by the other's last Txn.
func (r *request) put() bool {
	if r.resp.Succeeded {
		return true
	}
	last := r.resp.Responses[len(r.resp.Responses)-1].GetResponseTxn()
	return last != nil && last.Succeeded
}

// txn sends r and returns the answer. Errors: those of fault; errUnsent if ctx ends before r is
// sent. If ctx ends later, the outcome is known when r.done is closed.
func (g *group) txn(ctx context.Context, r *request) (*clientv3.TxnResponse, error) {
	r.done = make(chan struct{})
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		g.commit(ctx, []*request{r})
		return r.resp, r.err
	}
	g.waiting = append(g.waiting, r)
	if !g.sending {
		g.sending = true
		g.running.Go(g.send)
	}
	g.mu.Unlock()
	select {
	case <-r.done:
		return r.resp, r.err
	case <-ctx.Done():
	}
	err := retry.Ended(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-r.done: // answered just in time
		return r.resp, r.err
	default:
	}
	if i := slices.Index(g.waiting, r); i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
		err = fmt.Errorf("%w: %w", err, errUnsent)
		r.answer(nil, err)
	}
	return nil, err
}

// close ends the request under way. Later requests are sent one by one.
func (g *group) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.cancel()
	g.running.Wait()
}

func (g *group) send() {
	for {
		g.mu.Lock()
		if len(g.waiting) == 0 {
			g.sending = false
			g.mu.Unlock()
			return
		}
		var next []*request
		next, g.waiting = pick(g.waiting)
		g.mu.Unlock()
		g.commit(g.ctx, next)
	}
}

// pick takes the first waiting request and all that can go with it. No request overtakes an
// earlier one from which it must be apart.
func pick(waiting []*request) (next, left []*request) {
	if len(waiting) == 1 {
		return waiting, nil
	}
	ops, bytes, fence := 0, 0, 0
	for i, r := range waiting {
		if slices.ContainsFunc(next, r.apart) || slices.ContainsFunc(left, r.apart) {
			left = append(left, r)
			continue
		}
		ops, bytes = max(ops, r.ops()), bytes+r.bytes()
		if r.voids != 0 {
			fence = 1
		}
		if len(next) > 0 && (fence+len(next)+1+ops > maxOps || bytes > maxBytes) {
			return next, append(left, waiting[i:]...)
		}
		next = append(next, r)
	}
	return next, left
}

// commit sends requests together. etcd refuses a group as a whole, perhaps for one bad request, so
// commit then sends each alone. Without space left, only releases are sent again: they need none.
func (g *group) commit(ctx context.Context, requests []*request) {
	var ops []clientv3.Op
	if at := g.fence.at(); slices.ContainsFunc(requests, func(r *request) bool { return r.voids >= at }) {
		ops = append(ops, g.fence.raise())
	}
	raises := len(ops)
	if len(requests)+raises == 1 {
		r := requests[0]
		r.answer(g.b.txn(ctx, r.cmps, r.then, r.els))
		return
	}
	for _, r := range requests {
		ops = append(ops, clientv3.OpTxn(r.cmps, r.then, r.els))
	}
	resp, err := g.b.txn(ctx, nil, ops, nil)
	if err != nil && !unanswered(err) && !errors.Is(err, lockmgr.ErrSessionLost) && len(requests) > 1 {
		for i, r := range requests {
			full := errors.Is(err, errFull)
			if r.again = full; full && !r.release {
				r.answer(nil, err)
				continue
			}
			g.commit(ctx, requests[i:i+1])
		}
		return
	}
	if err == nil && raises > 0 {
		err = g.fence.raised(resp.Header.Revision, resp.Responses[0])
	}
	for i, r := range requests {
		if err != nil {
			r.answer(nil, err)
			continue
		}
		own := (*clientv3.TxnResponse)(resp.Responses[raises+i].GetResponseTxn())
		own.Header = resp.Header
		r.answer(own, nil)
	}
}

// unanswered reports whether a request that failed with err might be carried out.
func unanswered(err error) bool {
	return errors.Is(err, lockmgr.ErrUnavailable) && !errors.Is(err, retry.ErrRefused) && !errors.Is(err, errUnsent) && !errors.Is(err, errFull)
}

// apart reports whether r and o must not share a Txn: they conflict, one releases what the other
// waits for, or both put stamps, perhaps the same.
func (r *request) apart(o *request) bool {
	if r.release && o.release {
		return false
	}
	if !r.release && !o.release && !r.mode.Conflicts(o.mode) {
		return false
	}
	trees := !r.release && !o.release
	return slices.ContainsFunc(r.keys, func(k lockmgr.Key) bool {
		return slices.ContainsFunc(o.keys, func(l lockmgr.Key) bool {
			return k.Conflicts(l) || trees && k.Kind == lockmgr.Tree && l.Kind == lockmgr.Tree
		})
	})
}

// ops counts r's operations as etcd does.
func (r *request) ops() int { return countOps(r.cmps, r.then, r.els) }

func countOps(cmps []clientv3.Cmp, then, els []clientv3.Op) int {
	nested := 0
	for _, branch := range [][]clientv3.Op{then, els} {
		for _, op := range branch {
			if op.IsTxn() {
				nested = max(nested, countOps(op.Txn()))
			}
		}
	}
	return max(len(cmps), len(then), len(els)) + nested
}

// bytes estimates the size of r in a request.
func (r *request) bytes() int { return countBytes(r.cmps, r.then, r.els) }

func countBytes(cmps []clientv3.Cmp, then, els []clientv3.Op) int {
	const each = 32 // numbers and tags
	n := 0
	for _, c := range cmps {
		n += len(c.KeyBytes()) + len(c.GetCompare().GetRangeEnd()) + each
	}
	for _, branch := range [][]clientv3.Op{then, els} {
		for _, op := range branch {
			if op.IsTxn() {
				n += countBytes(op.Txn())
				continue
			}
			n += len(op.KeyBytes()) + len(op.RangeBytes()) + len(op.ValueBytes()) + each
		}
	}
	return n
}
