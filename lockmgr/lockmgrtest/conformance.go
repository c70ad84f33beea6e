package lockmgrtest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/lockmgr"
)

// Options says what a backend claims, and lends the suite hands that the
// lockmgr interfaces do not have.
type Options struct {
	// Ordered claims that waits are granted in order of arrival and that
	// Entries lists those who queue. The zero value claims neither.
	Ordered bool

	// OneByOne says that who queues for several keys stands in one line after the
	// other, and not in all at once.
	OneByOne bool

	// Expire ends a session as the service does when it has not heard of it
	// for its TTL. The zero value closes the session instead.
	Expire func(t *testing.T, b lockmgr.Backend, s lockmgr.Session)

	// Remove deletes the entry of an acquisition behind its owner's back. The
	// zero value skips the tests that need it.
	Remove func(t *testing.T, b lockmgr.Backend, k lockmgr.Key, mode lockmgr.Mode, owner uuid.UUID)
}

// Conformance runs the tests that every lockmgr.Backend passes. newBackend
// returns the backend of a volume without locks; it is called once a test.
func Conformance(t *testing.T, newBackend func(t *testing.T) lockmgr.Backend, opts Options) {
	for _, test := range []struct {
		name string
		run  func(*bench)
	}{
		{"NoWait", testNoWait},
		{"Retry", testRetry},
		{"Queue", testQueue},
		{"Waits", testWaits},
		{"Order", testOrder},
		{"SeveralKeys", testSeveralKeys},
		{"QueueSeveralKeys", testQueueSeveralKeys},
		{"InvalidRequests", testInvalidRequests},
		{"Conflicts", testConflicts},
		{"TreeAmongFiles", testTreeAmongFiles},
		{"FilesUnderTree", testFilesUnderTree},
		{"Inodes", testInodes},
		{"Shared", testShared},
		{"SharedOrder", testSharedOrder},
		{"Upgrade", testUpgrade},
		{"UpgradeDeadlock", testUpgradeDeadlock},
		{"Tokens", testTokens},
		{"Release", testRelease},
		{"Held", testHeld},
		{"AwaitGone", testAwaitGone},
		{"Entries", testEntries},
		{"PathBytes", testPathBytes},
		{"AbandonedWaits", testAbandonedWaits},
		{"RemovedEntry", testRemovedEntry},
		{"SessionEnd", testSessionEnd},
		{"SessionEndOrder", testSessionEndOrder},
		{"Close", testClose},
		{"Breaks", testBreaks},
		{"Revoke", testRevoke},
		{"Exclusion", testExclusion},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.run(&bench{T: t, b: newBackend(t), opts: opts})
		})
	}
}

// patience is how long what must happen may take.
const patience = 30 * time.Second

// bench is what a test of the suite works with.
type bench struct {
	*testing.T
	b    lockmgr.Backend
	opts Options
}

// open opens a session that ends with the test.
func (t *bench) open() lockmgr.Session {
	t.Helper()
	s, err := t.b.OpenSession(t.within(patience), lockmgr.SessionInfo{Node: t.Name()}, time.Minute)
	if err != nil {
		t.Fatalf("OpenSession: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// within returns a context that ends after d or with the test.
func (t *bench) within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func request(wait lockmgr.Wait, keys ...lockmgr.Key) lockmgr.AcquireRequest {
	return lockmgr.AcquireRequest{Keys: keys, Wait: wait, Holder: lockmgr.Holder{Owner: uuid.New(), Node: "conformance"}}
}

// must acquires keys, which are free or about to be.
func (t *bench) must(s lockmgr.Session, wait lockmgr.Wait, keys ...lockmgr.Key) []lockmgr.Grant {
	t.Helper()
	return t.mustHave(s, request(wait, keys...))
}

func (t *bench) mustHave(s lockmgr.Session, req lockmgr.AcquireRequest) []lockmgr.Grant {
	t.Helper()
	keys := req.Keys
	grants, err := s.Acquire(t.within(patience), req)
	if err != nil {
		t.Fatalf("Acquire(%v): %v", keys, err)
	}
	if len(grants) != len(keys) {
		t.Fatalf("Acquire(%v) returned %v", keys, grants)
	}
	for i, g := range grants {
		if g.Key != keys[i] || g.Mode != req.Mode || g.Owner != req.Holder.Owner || g.Token <= 0 {
			t.Fatalf("Acquire(%v) returned %v for owner %v", keys, grants, req.Holder.Owner)
		}
	}
	return grants
}

func (t *bench) release(s lockmgr.Session, grants ...lockmgr.Grant) {
	t.Helper()
	for _, g := range grants {
		if err := s.Release(t.within(patience), g); err != nil {
			t.Fatalf("Release(%v): %v", g, err)
		}
	}
}

// answer is what an Acquire returned.
type answer struct {
	grants []lockmgr.Grant
	err    error
}

// start runs an Acquire in the background.
func (t *bench) start(ctx context.Context, s lockmgr.Session, req lockmgr.AcquireRequest) <-chan answer {
	ch := make(chan answer, 1)
	go func() {
		grants, err := s.Acquire(ctx, req)
		ch <- answer{grants, err}
	}()
	return ch
}

func (t *bench) await(ch <-chan answer) answer {
	t.Helper()
	select {
	case a := <-ch:
		return a
	case <-time.After(patience):
		t.Fatal("no answer")
		panic("unreachable")
	}
}

func (t *bench) entries(prefix string) []lockmgr.Entry {
	t.Helper()
	list, err := t.b.Entries(t.within(patience), prefix)
	if err != nil {
		t.Fatalf("Entries(%q): %v", prefix, err)
	}
	return list
}

// owners waits until exactly these have an entry.
func (t *bench) owners(want ...uuid.UUID) {
	t.Helper()
	t.eventually("the owners are as expected", func() bool {
		list := t.entries("")
		return len(list) == len(want) && !slices.ContainsFunc(list, func(e lockmgr.Entry) bool {
			return !slices.Contains(want, e.Holder.Owner)
		})
	})
}

// eventually waits for a condition that nothing announces.
func (t *bench) eventually(what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s; entries: %v", patience, what, t.entries(""))
		}
	}
}

// expire ends s as the service would.
func (t *bench) expire(s lockmgr.Session) {
	t.Helper()
	if t.opts.Expire != nil {
		t.opts.Expire(t.T, t.b, s)
		return
	}
	if err := s.Close(t.within(patience)); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

func file(path string) lockmgr.Key { return mustKey(lockmgr.FileKey(path)) }
func tree(path string) lockmgr.Key { return mustKey(lockmgr.TreeKey(path)) }

func inode(dir string, ino uint64) lockmgr.Key { return mustKey(lockmgr.InodeKey(dir, ino)) }

func mustKey(k lockmgr.Key, err error) lockmgr.Key {
	if err != nil {
		panic(err)
	}
	return k
}
