package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
)

// Mounts that ask for unrelated directories at the same instant, and others for
// files elsewhere, do not stand in each other's way: one Txn for each, however
// many there are. When each had to find the volume's epoch as it was, one of them
// won a round and the others asked again, 7.5 times with 10 of them.
func TestUnrelatedDirectoriesAtOnce(t *testing.T) {
	const mounts = 12
	client := dial(t)
	all := &muster{want: mounts, come: make(chan struct{})}
	onTxn(client, all.commit)
	name := newName()
	var sessions []lockmgr.Session
	for range mounts {
		sessions = append(sessions, open(t, newBackend(t, client, name)))
	}
	var answers []<-chan lockmgrtest.Answer
	for i, s := range sessions {
		keys := []lockmgr.Key{tree(fmt.Sprintf("home/user%d/d", i))} // rmdir
		switch i % 3 {
		case 1:
			keys = []lockmgr.Key{tree(fmt.Sprintf("home/user%d/from", i)), tree(fmt.Sprintf("home/user%d/to", i))} // rename
		case 2:
			keys = []lockmgr.Key{file(fmt.Sprintf("home/user%d/f", i))} // create
		}
		answers = append(answers, start(within(t, patience), s, request(waits[[]string{"NoWait", "Retry"}[i%2]], keys...)))
	}
	for i, ch := range answers {
		if a := await(t, ch); a.Err != nil {
			t.Errorf("mount %d: %v", i, a.Err)
		}
	}
	if n := all.sent.Load(); n != mounts {
		t.Errorf("%d Txns for %d unrelated requests", n, mounts)
	}
}

// muster lets no Txn go before want of them are there.
type muster struct {
	want int64
	sent atomic.Int64
	come chan struct{}
}

func (m *muster) commit(t *txn) (*clientv3.TxnResponse, error) {
	if !comparesEpoch(t) {
		return t.send()
	}
	if m.sent.Add(1) == m.want {
		close(m.come)
	}
	select {
	case <-m.come:
	case <-t.ctx.Done():
	}
	return t.send()
}

// What is put without the epoch excludes what it must: directories above, below
// and of the same path, and the files in them, though this mount's copy of the
// directories is old.
func TestPlacedWithoutEpoch(t *testing.T) {
	b, etcd := newVolume(t, dial(t))
	s, other := open(t, b), open(t, newBackend(t, dial(t), etcd.name))
	for _, c := range []struct {
		theirs, ours lockmgr.Key
		conflict     bool
	}{
		{tree("a/b"), file("a/b/c/f"), true},
		{tree("a/b"), file("a/b"), true},
		{tree("a/b"), file("a/bc"), false},
		{tree("a/b"), file("a/f"), false},
		{tree("a/b"), tree("a"), true},
		{tree("a/b"), tree("a/b"), true},
		{tree("a/b"), tree("a/b/c"), true},
		{tree("a/b"), tree("a/bc"), false},
		{tree("a/bc"), tree("a/b"), false},
		{file("a/b/f"), tree("a"), true},
		{file("a/b/f"), tree("a/b/f"), true},
		{file("a/bc"), tree("a/b"), false},
	} {
		for name, wait := range map[string]lockmgr.Wait{"NoWait": lockmgr.NoWait, "Retry": lockmgr.Retry} {
			// The copy is made old, by an unrelated directory, while nothing stands.
			release(t, other, must(t, other, lockmgr.Retry, tree("unrelated"))...)
			theirs := must(t, other, lockmgr.Retry, c.theirs)
			ctx, cancel := context.WithCancel(within(t, patience))
			req := request(wait, c.ours)
			req.Waits = cancel // it has found that it is in conflict
			grants, err := s.Acquire(ctx, req)
			cancel()
			if granted := err == nil; granted == c.conflict || err != nil && !errors.Is(err, lockmgr.ErrContended) {
				t.Errorf("%s %v beside %v: %v", name, c.ours, c.theirs, err)
			}
			// And what was put so is seen by who has an old copy himself.
			if err == nil {
				for _, k := range []lockmgr.Key{c.ours, tree("a")} {
					if _, err := other.Acquire(t.Context(), request(lockmgr.NoWait, k)); !errors.Is(err, lockmgr.ErrContended) {
						t.Errorf("%s %v beside %v: then %v got %v", name, c.ours, c.theirs, k, err)
					}
				}
			}
			release(t, s, grants...)
			release(t, other, theirs...)
		}
	}
	if list := entries(t, b); len(list) != 0 {
		t.Errorf("left: %v", list)
	}
}

// restless moves the volume's epoch ahead of every Txn that depends on it, as many
// mounts that rename directories do.
type restless struct {
	etcd raw
	last func() // called ahead of the seventh

	mu   sync.Mutex
	sent []time.Time // GUARDED_BY(mu); when, ahead of each
}

func (r *restless) commit(t *txn) (*clientv3.TxnResponse, error) {
	if comparesEpoch(t) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.sent = append(r.sent, time.Now()); len(r.sent) == 7 {
			r.last()
		}
		if _, err := r.etcd.Put(t.ctx, r.etcd.admin("epoch"), ""); err != nil {
			return nil, err
		}
	}
	return t.send()
}

// comparesEpoch reports whether a Txn is an acquisition's.
func comparesEpoch(t *txn) bool {
	return slices.ContainsFunc(t.cmps, func(c clientv3.Cmp) bool { return strings.HasSuffix(string(c.KeyBytes()), "/epoch") })
}

// A request too large to be put without the epoch that never finds it as it was
// tries less and less often, and is then told of contention: the service is there.
func TestLostAgainstTheEpoch(t *testing.T) {
	for name, test := range map[string]struct {
		wait  lockmgr.Wait
		tries int
	}{
		"NoWait": {lockmgr.NoWait, 5},
		"Retry":  {lockmgr.Retry, 7}, // its caller goes then
	} {
		t.Run(name, func(t *testing.T) {
			client := dial(t)
			b, etcd := newVolume(t, client)
			ctx, cancel := context.WithCancel(within(t, patience))
			r := &restless{etcd: etcd, last: cancel}
			onTxn(client, r.commit)
			s := open(t, b)
			var keys []lockmgr.Key
			for i := range 60 {
				keys = append(keys, file(fmt.Sprintf("d/f%d", i)))
			}
			_, err := s.Acquire(ctx, request(test.wait, keys...))
			if !errors.Is(err, lockmgr.ErrContended) || errors.Is(err, lockmgr.ErrUnavailable) {
				t.Errorf("refused with %v", err)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(r.sent) != test.tries {
				t.Errorf("tried %d times, want %d", len(r.sent), test.tries)
			}
			for i, least := 1, 10*time.Millisecond; i < len(r.sent); i, least = i+1, 2*least {
				if pause := r.sent[i].Sub(r.sent[i-1]); pause < least {
					t.Errorf("try %d came %v after the one before, want %v at least", i, pause, least)
				}
			}
			if list := entries(t, b); len(list) != 0 {
				t.Errorf("left: %v", list)
			}
		})
	}
}
