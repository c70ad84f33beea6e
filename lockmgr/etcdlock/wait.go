package etcdlock

import (
	"context"
	"errors"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

// wait returns nil when nothing known is ahead. A queued request then has the keys; another
// request tries again. Errors: those of lost and ended waits.
func (a *acquisition) wait(ctx context.Context) error {
	for {
		err := a.retrier.Do(ctx, func() error { return a.follow(ctx) })
		if err != nil || a.known.clear() {
			return err
		}
	}
}

// near is how many entries ahead a waiter watches; one further back watches only the entry near
// places ahead. So a delete wakes few waiters, and the next in line needs no refresh.
const near = 4

// atTheEnd is how many entries are read of a line's end: the landmark, those behind it, and ours.
const atTheEnd = near + 2

// landmark returns the entry that a waiter far back in line watches; nil: we are near the front. If
// that entry is deleted out of turn, we only refresh earlier than needed.
func (a *acquisition) landmark() *blocker {
	if a.known.token == 0 || !a.inLine() || len(a.known.ahead) <= near {
		return nil
	}
	return &a.known.ahead[len(a.known.ahead)-1-near]
}

// follow is wait for the life of one watch: until nothing is ahead, or the landmark is gone.
func (a *acquisition) follow(ctx context.Context) error {
	prefixes, until := a.watched(), ""
	if l := a.landmark(); l != nil {
		prefixes, until = append([]string{l.entry}, a.own...), l.entry
	} else if d := a.barrier(); d != nil {
		prefixes, until = []string{d.entry}, d.entry
	}
	w, err := a.s.b.watchDeletes(ctx, prefixes...)
	if err != nil {
		return err
	}
	defer w.stop()
	if w.rev > a.known.rev || a.known.unclear() {
		if err := a.refresh(ctx); err != nil {
			return err
		}
	}
	a.retrier.Answered()
	for a.known.waitsFor(until) {
		if err := a.recall(ctx); err != nil && !errors.Is(err, errFull) { // a queued request can wait without a recall
			return err
		}
		// A refresh costs etcd a pass along the line, so long lines refresh less often.
		keys, err := w.next(ctx, refreshInterval*time.Duration(1+a.known.line/16))
		if err != nil {
			return err
		}
		a.known.gone(keys)
		ours := a.known.token != 0 && slices.ContainsFunc(a.own, func(own string) bool { return slices.Contains(keys, own) })
		if ours || len(keys) == 0 || a.known.unclear() {
			if err := a.refresh(ctx); err != nil { // it also shows a lost session
				return err
			}
		}
	}
	return nil
}

// watched returns the prefixes to watch. Directory entries are among them only until we are queued:
// after that none is put before ours.
func (a *acquisition) watched() []string {
	keys := a.s.b.keys
	var prefixes []string
	for _, k := range a.req.Keys {
		prefixes = append(prefixes, keys.rivals(k, a.req.Mode))
	}
	if a.req.Mode == lockmgr.Shared {
		prefixes = append(prefixes, a.own...)
	}
	if a.known.token == 0 || a.known.behind(keys.trees()) {
		prefixes = append(prefixes, a.around...)
	}
	return prefixes
}

// refresh reads where we stand, without the entries behind us in line.
func (a *acquisition) refresh(ctx context.Context) error {
	gets := a.gets
	if a.known.token != 0 {
		gets = slices.Clone(gets)
		for i, k := range a.req.Keys {
			gets[i] = a.rivals(k, clientv3.WithMaxCreateRev(a.known.token))
		}
	}
	fence := a.s.fence.at()
	resp, err := a.s.b.txn(ctx, nil, gets, nil)
	if err != nil {
		return a.s.life.Noted(err)
	}
	return a.note(resp.Header.Revision, fence, resp.Responses, false)
}
