package etcdlock

import (
	"context"
	"encoding/json"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

var _ lockmgr.Delegator = (*Session)(nil)

// MostBelow leaves room in a Txn for the stamps of as many directories.
func (s *Session) MostBelow() int { return maxKeys }

// PutBelow implements lockmgr.Delegator in one Txn, which compares that d stands: then nobody else
// has an entry there, or can put one. The Txns of many calls go together, see group.
func (s *Session) PutBelow(ctx context.Context, d lockmgr.Grant, entries []lockmgr.Entry) (int64, error) {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	a := &acquisition{s: s, req: lockmgr.AcquireRequest{Holder: entries[0].Holder}}
	for _, e := range entries {
		stored, err := json.Marshal(value{Holder: e.Holder})
		if err != nil {
			return 0, fmt.Errorf("etcdlock: holder: %w", err)
		}
		entry := s.b.keys.granted(e.Grant())
		a.req.Keys, a.own = append(a.req.Keys, e.Key), append(a.own, entry)
		a.puts = append(a.puts, clientv3.OpPut(entry, string(stored), clientv3.WithLease(s.lease)))
	}
	a.puts = append(a.puts, s.b.keys.stamp(a.req.Keys)...)
	s.claims.add(a.own...)
	if err := a.retrier.Do(ctx, func() error { return a.putBelow(ctx, d) }); err != nil {
		return 0, a.discard(s.life.Outcome(ctx, err, a.metHolder))
	}
	for _, k := range a.req.Keys {
		if k.Kind == lockmgr.Tree {
			s.stamps.put(a.known.token, s.b.keys.stampOf(k.Path))
		}
	}
	return a.known.token, nil
}

// putBelow sends the Txn of PutBelow once. It is repeated after ErrUnavailable.
func (a *acquisition) putBelow(ctx context.Context, d lockmgr.Grant) error {
	a.noteAnswer()
	delegation, fence := a.s.b.keys.granted(d), a.s.fence.at()
	a.last = &request{keys: a.req.Keys, fence: fence, voids: a.unanswered, then: a.puts,
		cmps: []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(delegation), "=", d.Token), a.s.fence.unchanged(fence)}}
	read := []string{delegation, a.s.record}
	if a.mayStand {
		for _, entry := range a.own {
			read = append(read, entry)
			a.last.cmps = append(a.last.cmps, clientv3.Compare(clientv3.CreateRevision(entry), "=", 0))
		}
	}
	for _, key := range read {
		a.last.els = append(a.last.els, clientv3.OpGet(key, clientv3.WithKeysOnly()))
	}
	resp, err := a.s.group.txn(ctx, a.last)
	if err != nil {
		return a.s.life.Noted(err)
	}
	if resp.Succeeded {
		a.known.token = resp.Header.Revision
		return nil
	}
	kvs := func(i int) []*mvccpb.KeyValue { return resp.Responses[i].GetResponseRange().GetKvs() }
	if err := a.noteSession(kvs(1), fence); err != nil {
		return err
	}
	seen := make(map[string]*mvccpb.KeyValue)
	for i, key := range read[2:] {
		for _, kv := range kvs(2 + i) {
			seen[key] = kv
		}
	}
	if a.known.token, err = a.token(seen); err != nil || a.known.token != 0 {
		return err
	}
	if have := kvs(0); len(have) > 0 && have[0].CreateRevision == d.Token {
		return fmt.Errorf("%w: another request of the session was repeated", lockmgr.ErrUnavailable)
	}
	a.last, a.mayStand = nil, false // what was not answered is void now
	return fmt.Errorf("%w: %s, token %d", lockmgr.ErrNotHeld, d.Key, d.Token)
}

// Stands implements lockmgr.Delegator with one read, which a majority confirms.
func (s *Session) Stands(ctx context.Context, g lockmgr.Grant) (int64, error) {
	resp, err := s.b.txn(ctx, nil, []clientv3.Op{clientv3.OpGet(s.b.keys.granted(g), clientv3.WithKeysOnly())}, nil)
	if err != nil {
		return 0, s.life.Noted(err)
	}
	if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) == 0 || kvs[0].CreateRevision != g.Token {
		return 0, fmt.Errorf("%w: %s, token %d", lockmgr.ErrNotHeld, g.Key, g.Token)
	}
	return resp.Header.Revision, nil
}

// mine holds when there are entries below the directory, and all are the session's.
func (a *acquisition) mine() clientv3.Cmp {
	below := a.s.b.keys.rivals(a.req.Keys[0], a.req.Mode)
	return clientv3.Compare(clientv3.LeaseValue(below).WithPrefix(), "=", a.s.lease)
}

// barrier returns the entry of a directory that keeps the request from the line, or nil.
func (a *acquisition) barrier() *blocker {
	if a.req.Wait != lockmgr.Queue || a.known.token != 0 {
		return nil
	}
	for i, b := range a.known.ahead {
		g, ok := a.s.b.keys.parse(b.entry)
		if ok && (g.Mode == lockmgr.Delegated || g.Key.Kind == lockmgr.Tree && !a.few) {
			return &a.known.ahead[i]
		}
	}
	return nil
}
