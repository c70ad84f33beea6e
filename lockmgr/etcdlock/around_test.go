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

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
)

// Mounts that ask for unrelated directories at the same instant, and others for
// files elsewhere, do not stand in each other's way: one Txn for each, however
// many there are. Nor do they have to look anew where their directories are.
func TestUnrelatedDirectoriesAtOnce(t *testing.T) {
	const mounts = 20
	client := dial(t)
	all := &muster{want: mounts, come: make(chan struct{})}
	onTxn(client, all.commit)
	name := newName()
	var sessions []lockmgr.Session
	for range mounts {
		sessions = append(sessions, open(t, newBackend(t, client, name)))
	}
	before := make([]int64, mounts)
	for i, s := range sessions {
		g := must(t, s, lockmgr.NoWait, file(fmt.Sprintf("home/user%d/f", i)))
		before[i] = lockmgr.FencingToken(g[0].Token, 0)
		release(t, s, g...)
	}
	all.begin.Store(true)
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
		a := await(t, ch)
		if a.Err != nil {
			t.Fatalf("mount %d: %v", i, a.Err)
		}
		k := file(fmt.Sprintf("home/user%d/f", i))
		if after := lockmgr.FencingToken(a.Grants[0].Token, 0); !sessions[i].Undisturbed(k, before[i], after) {
			t.Errorf("mount %d is disturbed", i)
		}
	}
	if n := all.sent.Load(); n != mounts {
		t.Errorf("%d Txns for %d unrelated requests", n, mounts)
	}
}

// muster lets no Txn go before want of them are there.
type muster struct {
	want  int64
	begin atomic.Bool
	sent  atomic.Int64
	come  chan struct{}
}

func (m *muster) commit(t *txn) (*clientv3.TxnResponse, error) {
	if !m.begin.Load() || !acquires(t) {
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

// What is put excludes what it must: directories above, below and of the same path, and the files
// in them. So does what names too many directories to compare them one by one.
func TestDirectoriesAreCompared(t *testing.T) {
	for _, many := range []bool{false, true} {
		testDirectoriesAreCompared(t, many)
	}
}

func testDirectoriesAreCompared(t *testing.T, many bool) {
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
			unrelated := must(t, other, lockmgr.Retry, tree("unrelated"))
			theirs := must(t, other, lockmgr.Retry, c.theirs)
			ctx, cancel := context.WithCancel(within(t, patience))
			req := request(wait, c.ours)
			for i := range 50 {
				if many {
					req.Keys = append(req.Keys, file(fmt.Sprintf("many/%d", i)))
				}
			}
			req.Waits = cancel // it has found that it is in conflict
			grants, err := s.Acquire(ctx, req)
			cancel()
			if granted := err == nil; granted == c.conflict || err != nil && !errors.Is(err, lockmgr.ErrContended) {
				t.Errorf("%s %v beside %v: %v", name, c.ours, c.theirs, err)
			}
			if err == nil {
				for _, k := range []lockmgr.Key{c.ours, tree("a")} {
					if _, err := other.Acquire(t.Context(), request(lockmgr.NoWait, k)); !errors.Is(err, lockmgr.ErrContended) {
						t.Errorf("%s %v beside %v: then %v got %v", name, c.ours, c.theirs, k, err)
					}
				}
			}
			release(t, s, grants...)
			release(t, other, append(theirs, unrelated...)...)
		}
	}
	if list := entries(t, b); len(list) != 0 {
		t.Errorf("left: %v", list)
	}
}

// A request with too many directories to compare them one by one waits for all of them that are in its
// way, one after the other, and puts nothing before.
func TestQueueBehindTwoDirectories(t *testing.T) {
	client := dial(t)
	var answered atomic.Int64
	onTxn(client, func(x *txn) (*clientv3.TxnResponse, error) {
		resp, err := x.send()
		if acquires(x) {
			answered.Add(1)
		}
		return resp, err
	})
	b, etcd := newVolume(t, client)
	s, other := open(t, b), open(t, newBackend(t, dial(t), etcd.name))
	first, second := must(t, other, lockmgr.Retry, tree("d")), must(t, other, lockmgr.Retry, tree("e"))
	keys := []lockmgr.Key{file("d/f"), file("e/f")}
	for i := range 50 {
		keys = append(keys, file(fmt.Sprintf("many/%d", i)))
	}
	req := request(lockmgr.Queue, keys...)
	waits := make(chan struct{})
	req.Waits = sync.OnceFunc(func() { close(waits) })
	answer := start(within(t, patience), s, req)
	<-waits
	before := answered.Load()
	release(t, other, first...)
	eventually(t, "it has tried again", func() bool { return answered.Load() > before })
	if list := entries(t, b); len(list) != 1 || list[0].Grant() != second[0] {
		t.Errorf("put, though a directory is in the way: %v", list)
	}
	release(t, other, second...)
	if a := await(t, answer); a.Err != nil {
		t.Fatal(a.Err)
	}
}

// restless puts a directory entry ahead of every acquisition's Txn, as many mounts that rename
// directories do.
type restless struct {
	etcd raw
	last func() // called ahead of the seventh

	mu   sync.Mutex
	sent []time.Time // GUARDED_BY(mu); when, ahead of each
}

func (r *restless) commit(t *txn) (*clientv3.TxnResponse, error) {
	if acquires(t) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.sent = append(r.sent, time.Now()); len(r.sent) == 7 {
			r.last()
		}
		entry := r.etcd.dir(fmt.Sprint("elsewhere", len(r.sent))) + uuid.NewString()
		if _, err := r.etcd.Put(t.ctx, entry, "{}"); err != nil {
			return nil, err
		}
	}
	return t.send()
}

// acquires reports whether a Txn is an acquisition's.
func acquires(t *txn) bool {
	return slices.ContainsFunc(t.cmps, func(c clientv3.Cmp) bool { return strings.Contains(string(c.KeyBytes()), "/session/") })
}

// A request with too many directories to compare them one by one, while others are put all the
// time, tries less and less often, and is then told of contention: the service is there.
func TestTooManyDirectories(t *testing.T) {
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
			if list := entries(t, b); len(list) != len(r.sent) {
				t.Errorf("left: %v", list)
			}
		})
	}
}

// A file far below the root is locked as any other, beside directories elsewhere.
func TestFarBelow(t *testing.T) {
	b, etcd := newVolume(t, dial(t))
	s, other := open(t, b), open(t, newBackend(t, dial(t), etcd.name))
	deep := strings.Repeat("d/", 200) + "f"
	must(t, other, lockmgr.Retry, tree("elsewhere"))
	for _, wait := range waits {
		release(t, s, must(t, s, wait, file(deep))...)
	}
	before := must(t, s, lockmgr.NoWait, file(deep))
	release(t, s, before...)
	above := must(t, other, lockmgr.Retry, tree("d/d"))
	for _, wait := range waits {
		ctx, cancel := context.WithCancel(within(t, patience))
		req := request(wait, file(deep))
		req.Waits = cancel
		if _, err := s.Acquire(ctx, req); !errors.Is(err, lockmgr.ErrContended) {
			t.Error(err)
		}
		cancel()
	}
	release(t, other, above...)
	after := must(t, s, lockmgr.NoWait, file(deep))
	if s.Undisturbed(file(deep), lockmgr.FencingToken(before[0].Token, 0), lockmgr.FencingToken(after[0].Token, 0)) {
		t.Error("undisturbed, though a directory above was locked")
	}
}

// A directory leaves one stamp, whose number the hash bounds.
func TestStampsAreBounded(t *testing.T) {
	b, etcd := newVolume(t, dial(t))
	s := open(t, b)
	for range 3 {
		for i := range 100 {
			release(t, s, must(t, s, lockmgr.NoWait, tree(fmt.Sprint("d", i)))...)
		}
	}
	resp, err := etcd.Get(t.Context(), etcd.admin("stamp/"), clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if n := len(resp.Kvs); n < 90 || n > 100 {
		t.Errorf("%d stamps", n)
	}
	for _, kv := range resp.Kvs {
		if kv.Lease != 0 {
			t.Errorf("%s goes with a session", kv.Key)
		}
	}
}
