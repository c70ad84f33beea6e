package etcdlock

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

// maxBelow limits the entries below a directory that one answer names and a request waits for.
const maxBelow = 64

// standing is where an acquisition stands at a revision.
type standing struct {
	rev   int64
	token int64     // of our entries; 0: none stands
	ahead []blocker // the entries in our way, oldest first; in line, only the last of them
	line  int64     // the number of entries of the first key
	cut   bool      // ahead may be incomplete
}

// blocker is an entry in our way.
type blocker struct {
	entry string
	rev   int64       // its create revision
	wants lockmgr.Key // the key of ours that it conflicts with
	value []byte
	lease clientv3.LeaseID
}

func (s *standing) held() bool { return s.token != 0 && s.clear() }

func (s *standing) clear() bool { return len(s.ahead) == 0 && !s.cut }

// unclear reports that only a refresh can tell: all known entries of a long line are gone.
func (s *standing) unclear() bool { return len(s.ahead) == 0 && s.cut }

// waitsFor reports whether entry is ahead; for "", whether any is.
func (s *standing) waitsFor(entry string) bool {
	return slices.ContainsFunc(s.ahead, func(b blocker) bool { return entry == "" || b.entry == entry })
}

// behind reports whether an entry with the prefix is ahead.
func (s *standing) behind(prefix string) bool {
	return slices.ContainsFunc(s.ahead, func(b blocker) bool { return strings.HasPrefix(b.entry, prefix) })
}

func (s *standing) gone(keys []string) {
	s.ahead = slices.DeleteFunc(s.ahead, func(b blocker) bool { return slices.Contains(keys, b.entry) })
}

// note takes in the answers to gets, read at rev. They were asked for when fence was known. placed:
// our entries were put right after; a repeated Put keeps the create revision. Errors: ErrSessionLost,
// ErrLockLost, ErrUnavailable.
func (a *acquisition) note(rev, fence int64, answers []*pb.ResponseOp, placed bool) error {
	n := len(a.req.Keys)
	kvs := func(i int) []*mvccpb.KeyValue { return answers[i].GetResponseRange().Kvs }
	if err := a.noteSession(kvs(len(a.gets)-1), fence); err != nil {
		return err
	}
	a.noteStamps(rev, answers[a.stamps:len(a.gets)-1], placed)
	var trees []*mvccpb.KeyValue
	for i := a.trees; i < a.stamps; i++ {
		trees = append(trees, kvs(i)...)
	}

	delegations := a.s.claims.delegations()
	seen := make(map[string]*mvccpb.KeyValue, n)
	blockers := make(map[string]blocker)
	meet := func(k lockmgr.Key, kv *mvccpb.KeyValue) {
		entry := string(kv.Key)
		if slices.Contains(a.own, entry) {
			seen[entry] = kv
			return
		}
		if slices.Contains(a.had, entry) || slices.Contains(delegations, entry) {
			return
		}
		blockers[entry] = blocker{entry: entry, rev: kv.CreateRevision, wants: k, value: kv.Value, lease: clientv3.LeaseID(kv.Lease)}
	}
	for i, k := range a.req.Keys {
		for _, kv := range kvs(i) {
			meet(k, kv)
		}
		for _, kv := range trees {
			if d, ok := a.s.b.keys.lockOf(string(kv.Key)); ok && d.Conflicts(k) {
				meet(k, kv)
			}
		}
	}

	for i := n; i < a.trees; i++ { // see byName
		for _, kv := range kvs(i) {
			seen[string(kv.Key)] = kv
		}
	}

	token, err := a.token(seen)
	if err != nil {
		return err
	}
	if token == 0 && placed {
		token = rev
	}
	st := standing{rev: rev, token: token, line: answers[0].GetResponseRange().Count, cut: a.inLine() && len(kvs(0)) == atTheEnd}
	for _, b := range blockers {
		if token == 0 || b.rev < token && a.req.Mode != lockmgr.Delegated { // a delegation passes our own entries
			st.ahead = append(st.ahead, b)
		}
	}
	slices.SortFunc(st.ahead, func(x, y blocker) int { return cmp.Compare(x.rev, y.rev) })
	a.known = st
	return nil
}

func (a *acquisition) noteSession(record []*mvccpb.KeyValue, fence int64) error {
	if len(record) == 0 {
		return a.s.life.Noted(lockmgr.ErrSessionLost)
	}
	return a.s.fence.seen(record[0].ModRevision, fence)
}

// noteStamps takes in the stamps of an answer. placed: our entries were put after they were read.
func (a *acquisition) noteStamps(rev int64, answers []*pb.ResponseOp, placed bool) {
	a.s.stamps.note(answers)
	for _, k := range a.req.Keys {
		switch {
		case !a.few: // too many to be read
			a.s.stamps.put(rev, a.s.b.keys.stampsAbove(k)...)
		case placed && k.Kind == lockmgr.Tree:
			a.s.stamps.put(rev, a.s.b.keys.stampOf(k.Path))
		}
	}
}

// Our entries were put together, so if some are missing, somebody removed them.
func (a *acquisition) token(seen map[string]*mvccpb.KeyValue) (int64, error) {
	if len(seen) == 0 && a.known.token == 0 {
		return 0, nil
	}
	token := a.known.token
	for _, entry := range a.own {
		kv := seen[entry]
		if kv == nil || token != 0 && kv.CreateRevision != token {
			return 0, fmt.Errorf("%w: %s was removed", lockmgr.ErrLockLost, entry)
		}
		token = kv.CreateRevision
	}
	return token, nil
}

func (a *acquisition) deadlocked() bool {
	return slices.ContainsFunc(a.known.ahead, func(b blocker) bool {
		g, ok := a.s.b.keys.parse(b.entry)
		return ok && a.req.Deadlocks(g)
	})
}

// contended is the error of a wait that ended with err; nil: there was no wait.
func (a *acquisition) contended(err error) error {
	if len(a.known.ahead) == 0 {
		return &lockmgr.ContendedError{Key: a.req.Keys[0], Err: err} // it was outrun each time
	}
	first := a.known.ahead[0]
	if l := a.landmark(); l != nil {
		first = *l // earlier entries may be unknown
	}
	e := &lockmgr.ContendedError{Key: first.wants, Err: err}
	if jerr := json.Unmarshal(first.value, &e.Holder); jerr != nil {
		a.s.b.log.Warn("entry without a readable holder", "entry", first.entry, "error", jerr)
	}
	if g, ok := a.s.b.keys.parse(first.entry); ok {
		e.Holder.AcquisitionID = g.AcquisitionID // the key decides
	}
	return e
}

// metHolder is contended if the service answers and a holder is known, else nil.
func (a *acquisition) metHolder(cause error) error {
	if len(a.known.ahead) > 0 && a.retrier.Failures() == 0 && a.s.b.connected() {
		return a.contended(cause)
	}
	return nil
}
