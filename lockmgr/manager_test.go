package lockmgr_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/internal/boottime"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
	"github.com/lockfs/lockfs/renew"
)

const ttl = 15 * time.Second

// bubbleClock is the clock of a synctest bubble.
type bubbleClock struct{}

func (bubbleClock) Now() boottime.Instant { return boottime.Instant(time.Now().UnixNano()) }

// tap remembers the sessions that a Manager opens.
type tap struct {
	*lockmgrtest.Memory
	mu       sync.Mutex
	sessions []lockmgr.Session

	deaf bool // watches of advisory locks tell nothing
}

func (b *tap) WatchAdvisory(ctx context.Context, changed func(lockmgr.Key, int64)) {
	if b.deaf {
		<-ctx.Done()
		return
	}
	b.Memory.WatchAdvisory(ctx, changed)
}

func (b *tap) OpenSession(ctx context.Context, info lockmgr.SessionInfo, ttl time.Duration) (lockmgr.Session, error) {
	s, err := b.Memory.OpenSession(ctx, info, ttl)
	if err == nil {
		b.mu.Lock()
		b.sessions = append(b.sessions, s)
		b.mu.Unlock()
	}
	return s, err
}

// last returns the session opened last.
func (b *tap) last() lockmgr.Session {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sessions[len(b.sessions)-1]
}

// fixture is a service with one mount.
type fixture struct {
	t   *testing.T
	svc *tap
	m   *lockmgr.Manager
	log *bytes.Buffer

	private time.Duration // how long idle tables of advisory locks are private
}

// inBubble runs a test on a fixture whose time is the bubble's.
func inBubble(t *testing.T, test func(f *fixture)) {
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{t: t, svc: &tap{Memory: lockmgrtest.NewMemory()}}
		f.m, f.log = f.manager()
		test(f)
		f.svc.Connect()
		if err := f.m.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
		if n := f.svc.Count(); n != 0 {
			t.Errorf("%d entries are left", n)
		}
	})
}

func (f *fixture) manager(adjust ...func(*lockmgr.Config)) (*lockmgr.Manager, *bytes.Buffer) {
	f.t.Helper()
	log := &bytes.Buffer{}
	cfg := lockmgr.Config{
		Backend: f.svc,
		Session: lockmgr.SessionInfo{Node: "node"},
		Renew:   renew.Config{TTL: ttl, Clock: bubbleClock{}},
		Logger:  slog.New(slog.NewTextHandler(log, nil)),
	}
	for _, a := range adjust {
		a(&cfg)
	}
	m, err := lockmgr.New(f.t.Context(), cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	return m, log
}

func file(path string) lockmgr.Key {
	k, err := lockmgr.FileKey(path)
	if err != nil {
		panic(err)
	}
	return k
}

func tree(path string) lockmgr.Key {
	k, err := lockmgr.TreeKey(path)
	if err != nil {
		panic(err)
	}
	return k
}

// open is the request of an OPEN.
func open(owner string, wait time.Duration, paths ...string) lockmgr.Request {
	r := lockmgr.Request{Owner: lockmgr.Owner(owner), Queue: true, Wait: wait}
	for _, p := range paths {
		r.Keys = append(r.Keys, file(p))
	}
	return r
}

// try is the request of a call that may not queue.
func try(owner string, keys ...lockmgr.Key) lockmgr.Request {
	return lockmgr.Request{Owner: lockmgr.Owner(owner), Keys: keys, Wait: time.Second}
}

func (f *fixture) must(req lockmgr.Request) *lockmgr.Hold {
	f.t.Helper()
	h, err := f.m.Acquire(f.t.Context(), req)
	if err != nil {
		f.t.Fatalf("acquire for %s: %v", req.Owner, err)
	}
	return h
}

// fails expects an error, and how long it takes to come.
func (f *fixture) fails(req lockmgr.Request, want error, after time.Duration) {
	f.t.Helper()
	start := time.Now()
	h, err := f.m.Acquire(f.t.Context(), req)
	if h != nil || !errors.Is(err, want) {
		f.t.Fatalf("acquire for %s: %v, want %v", req.Owner, err, want)
	}
	if took := time.Since(start); took != after {
		f.t.Errorf("acquire for %s failed after %v, want %v", req.Owner, took, after)
	}
}

// later acquires in a goroutine.
func (f *fixture) later(req lockmgr.Request) <-chan *lockmgr.Hold {
	ch := make(chan *lockmgr.Hold, 1)
	go func() {
		h, err := f.m.Acquire(f.t.Context(), req)
		if err != nil {
			f.t.Errorf("acquire for %s: %v", req.Owner, err)
		}
		ch <- h
	}()
	synctest.Wait()
	return ch
}

func TestOwnersShareWithThemselvesOnly(t *testing.T) {
	inBubble(t, func(f *fixture) {
		one := f.must(open("a", 0, "f"))
		two := f.must(open("a", 0, "f"))
		if n := f.svc.Count(); n != 1 {
			f.t.Errorf("%d entries for one owner, want 1", n)
		}
		if one.Token(file("f")) != two.Token(file("f")) || one.Token(file("f")) == 0 {
			f.t.Error("holds of one lock have different tokens")
		}
		one.Release()
		one.Release() // is harmless
		f.fails(open("b", 0, "f"), lockmgr.ErrContended, 0)
		f.fails(open("b", time.Minute, "f"), lockmgr.ErrContended, time.Minute)
		two.Release()
		f.must(open("b", 0, "f")).Release()
	})
}

func TestLocalWaitersAreServedInOrder(t *testing.T) {
	inBubble(t, func(f *fixture) {
		h := f.must(open("a", 0, "f"))
		var waiters []<-chan *lockmgr.Hold
		for i := range 5 {
			waiters = append(waiters, f.later(open(fmt.Sprint(i), -1, "f")))
		}
		if n := f.svc.Count(); n != 1 {
			f.t.Errorf("%d entries in the service, want the holder's only", n)
		}
		var last int64
		for i, w := range waiters {
			h.Release()
			h = <-w
			if tok := h.Token(file("f")); tok <= last {
				f.t.Errorf("waiter %d has token %d after %d", i, tok, last)
			} else {
				last = tok
			}
		}
		h.Release()
	})
}

func TestMountsExcludeEachOther(t *testing.T) {
	inBubble(t, func(f *fixture) {
		other, _ := f.manager()
		h, err := other.Acquire(f.t.Context(), open("a", 0, "f"))
		if err != nil {
			f.t.Fatal(err)
		}
		// The same owner's name on another mount is another owner.
		f.fails(open("a", 0, "f"), lockmgr.ErrContended, 0)
		f.fails(try("a", file("f")), lockmgr.ErrContended, time.Second)
		w := f.later(open("b", -1, "f"))
		if n := f.svc.Count(); n != 2 {
			f.t.Errorf("%d entries, want holder and waiter", n)
		}
		h.Release()
		(<-w).Release()
		if err := other.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	})
}

// A call that may not queue is refused at once by a holder on its own mount,
// unless that one has closed its file already.
func TestTryGivesAClosingHolderAMoment(t *testing.T) {
	inBubble(t, func(f *fixture) {
		h := f.must(open("a", 0, "f"))
		f.fails(try("b", file("f")), lockmgr.ErrContended, 0)
		h.Closing()
		f.fails(try("b", file("f")), lockmgr.ErrContended, lockmgr.DefaultCloseGrace)
		f.fails(open("b", 0, "f"), lockmgr.ErrContended, lockmgr.DefaultCloseGrace)
		time.AfterFunc(lockmgr.DefaultCloseGrace/2, h.Release)
		f.must(try("b", file("f"))).Release()
	})
}

func TestCancelledWait(t *testing.T) {
	inBubble(t, func(f *fixture) {
		other, _ := f.manager()
		local := f.must(open("a", 0, "f"))
		remote, err := other.Acquire(f.t.Context(), open("x", 0, "g"))
		if err != nil {
			f.t.Fatal(err)
		}
		for _, path := range []string{"f", "g"} {
			ctx, cancel := context.WithCancel(f.t.Context())
			time.AfterFunc(time.Second, cancel)
			if _, err := f.m.Acquire(ctx, open("b", -1, path)); !errors.Is(err, context.Canceled) {
				f.t.Errorf("a cancelled wait for %s: %v", path, err)
			}
		}
		synctest.Wait()
		if n := f.svc.Count(); n != 2 {
			f.t.Errorf("%d entries, want those of the holders", n)
		}
		local.Release()
		remote.Release()
		if err := other.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	})
}

// The answer is not waited for by a request that is over.
func TestAskedWhetherItWaitsForItself(t *testing.T) {
	inBubble(t, func(f *fixture) {
		h := f.must(open("parent", 0, "f"))
		defer h.Release()
		ctx, cancel := context.WithCancel(f.t.Context())
		r := open("stranger", -1, "f")
		r.SelfWait = func(ctx context.Context) bool {
			cancel()
			<-ctx.Done()
			return false
		}
		if _, err := f.m.Acquire(ctx, r); !errors.Is(err, context.Canceled) {
			f.t.Errorf("interrupted: %v", err)
		}
	})
}

func TestDeadlockIsRefused(t *testing.T) {
	inBubble(t, func(f *fixture) {
		h := f.must(open("parent", 0, "f"))
		asked := 0
		r := open("child", -1, "f")
		r.SelfWait = func(context.Context) bool { asked++; return true }
		f.fails(r, lockmgr.ErrDeadlock, 0)
		r = open("stranger", time.Second, "f")
		r.SelfWait = func(context.Context) bool { asked++; return false }
		f.fails(r, lockmgr.ErrContended, time.Second)
		if asked != 2 {
			t.Errorf("asked %d times, want once a request", asked)
		}
		// A request that does not wait does not wait for itself either.
		r = try("child", file("f"))
		r.SelfWait = func(context.Context) bool { t.Error("asked"); return true }
		f.fails(r, lockmgr.ErrContended, 0)
		r = open("child", 0, "f")
		r.SelfWait = func(context.Context) bool { t.Error("asked"); return true }
		f.fails(r, lockmgr.ErrContended, 0)
		h.Release()
		r = open("child", -1, "f")
		r.SelfWait = func(context.Context) bool { t.Error("asked"); return true }
		f.must(r).Release()
	})
}

func TestUnreachableService(t *testing.T) {
	inBubble(t, func(f *fixture) {
		f.svc.Disconnect()
		f.fails(open("a", 0, "f"), lockmgr.ErrUnavailable, 0)
		f.fails(open("a", 2*time.Second, "f"), lockmgr.ErrUnavailable, 2*time.Second)
		w := f.later(open("a", 8*time.Second, "f"))
		time.Sleep(time.Second)
		f.svc.Connect()
		(<-w).Release()
	})
}

// A release that the service is slow to answer is no contention: nobody holds.
func TestSlowReleaseIsNotContention(t *testing.T) {
	inBubble(t, func(f *fixture) {
		h := f.must(open("a", 0, "f"))
		f.svc.Disconnect()
		h.Release()
		time.AfterFunc(2*lockmgr.DefaultCloseGrace, f.svc.Connect)
		f.must(open("b", 0, "f")).Release()
		h = f.must(open("a", time.Second, "f"))
		f.svc.Disconnect()
		h.Release()
		f.fails(open("b", 0, "f"), lockmgr.ErrUnavailable, ttl/8)
		f.svc.Connect()
	})
}

// Nor is one of another key: of a directory above, or of a file below.
func TestSlowReleaseNearbyIsNotContention(t *testing.T) {
	const slow = 2 * lockmgr.DefaultCloseGrace
	for _, c := range []struct{ first, then lockmgr.Key }{
		{tree("d"), file("d")},
		{tree("d"), file("d/e/f")},
		{tree("d"), tree("d/e")},
		{file("d"), tree("d")},
		{file("d/e/f"), tree("d")},
		{tree("d/e"), tree("d")},
	} {
		inBubble(t, func(f *fixture) {
			f.svc.SlowReleases(slow)
			f.must(try("a", c.first)).Release()
			start := time.Now()
			f.must(lockmgr.Request{Owner: "b", Keys: []lockmgr.Key{c.then}}).Release()
			if took := time.Since(start); took != slow {
				f.t.Errorf("%v after %v took %v, want %v", c.then, c.first, took, slow)
			}
			f.must(lockmgr.Request{Owner: "b", Keys: []lockmgr.Key{tree("dd"), file("d.d")}}).Release() // not near
			synctest.Wait()
			time.Sleep(slow)

			f.svc.SlowReleases(time.Minute)
			f.must(try("a", c.first)).Release()
			f.fails(lockmgr.Request{Owner: "b", Keys: []lockmgr.Key{c.then}}, lockmgr.ErrUnavailable, ttl/8)
		})
	}
}

// A session that ends between the grant and the answer is replaced.
func TestSessionLostDuringAcquire(t *testing.T) {
	inBubble(t, func(f *fixture) {
		other, _ := f.manager()
		h, err := other.Acquire(f.t.Context(), open("x", 0, "f"))
		if err != nil {
			f.t.Fatal(err)
		}
		first := f.svc.sessions[0]
		w := f.later(open("a", time.Minute, "f"))
		f.svc.Expire(first)
		h.Release()
		if got := <-w; got.Check() != nil {
			f.t.Error("the lock is not good")
		} else {
			got.Release()
		}
		if err := other.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	})
}

// An election or a restart of the service costs a pause, and no lock.
func TestSuspendedAndHeldAgain(t *testing.T) {
	inBubble(t, func(f *fixture) {
		kept, deleted := f.must(open("a", 0, "f")), f.must(open("a", 0, "g"))
		f.svc.Disconnect()
		time.Sleep(ttl)
		for _, h := range []*lockmgr.Hold{kept, deleted} {
			if err := h.Check(); !errors.Is(err, lockmgr.ErrSuspended) {
				f.t.Fatalf("without an answer for a TTL: %v", err)
			}
			if h.Lost() {
				f.t.Fatal("a suspended hold counts as lost")
			}
		}
		// A new open does not get a lock that is in doubt.
		f.fails(open("a", 0, "f"), lockmgr.ErrUnavailable, 0)
		f.fails(open("a", time.Second, "f"), lockmgr.ErrUnavailable, time.Second)
		if h := f.m.AcquireHere(open("a", time.Second, "f")); h != nil {
			f.t.Error("the mount grants by itself what is in doubt")
		}

		f.svc.Connect()
		es, err := f.svc.Entries(f.t.Context(), "g")
		if err != nil || len(es) != 1 {
			f.t.Fatal(es, err)
		}
		f.svc.Delete(lockmgr.Grant{Key: es[0].Key, AcquisitionID: es[0].Holder.AcquisitionID, Token: es[0].Token})
		if err := kept.Await(f.t.Context()); err != nil {
			f.t.Errorf("the lock that still stands: %v", err)
		}
		if err := deleted.Await(f.t.Context()); !errors.Is(err, lockmgr.ErrLockLost) || !deleted.Lost() {
			f.t.Errorf("the lock that was deleted meanwhile: %v", err)
		}
		again := f.must(open("a", 0, "g"))
		if again.Check() != nil || deleted.Check() == nil {
			f.t.Error("the new lock and the lost one were mixed up")
		}
		deleted.Release()
		if again.Check() != nil || f.svc.Count() != 2 {
			f.t.Error("releasing a lost lock released the new one")
		}
		again.Release()
		kept.Release()
	})
}

func TestSessionLost(t *testing.T) {
	inBubble(t, func(f *fixture) {
		h := f.must(open("a", 0, "f"))
		told := false
		h.OnLost(func() { told = true })
		waiter := f.later(open("b", -1, "f"))
		f.svc.Expire(f.svc.last())
		synctest.Wait()
		if !told {
			f.t.Error("who holds the lock is not told that it is lost")
		}
		if err := h.Check(); !errors.Is(err, lockmgr.ErrSessionLost) || !h.Lost() {
			f.t.Errorf("after its session ended a hold says %v", err)
		}
		if err := h.Await(f.t.Context()); !errors.Is(err, lockmgr.ErrSessionLost) {
			f.t.Errorf("a lost hold may be waited for: %v", err)
		}
		next := <-waiter // on a new session
		if next.Check() != nil {
			f.t.Error("the new session's lock is not good")
		}
		next.Release()
		// The owner of the lost lock is given a new one, not the lost one.
		again := f.must(open("a", 0, "f"))
		if again.Check() != nil || h.Check() == nil {
			f.t.Error("a lost lock was joined")
		}
		h.Release()
		if again.Check() != nil {
			f.t.Error("releasing a lost lock released the new one")
		}
		again.Release()
		if !strings.Contains(f.log.String(), "lock session lost") {
			f.t.Errorf("the loss was not logged: %s", f.log)
		}
	})
}

// A hold without locks does not end with the session, and takes none from others.
func TestUnlocked(t *testing.T) {
	inBubble(t, func(f *fixture) {
		h, locked := f.m.Unlocked("a"), f.must(open("a", 0, "f", "g"))
		h.Share(file("f"), locked)
		locked.Share(file("g"), h)
		if h.Token(file("f")) != 0 || locked.Token(file("f")) == 0 || h.Owner() != "a" || !h.Unlocked() || locked.Unlocked() {
			f.t.Error("a hold without locks has got one, or has taken one")
		}
		f.svc.Expire(f.svc.last())
		synctest.Wait()
		if !locked.Lost() || h.Lost() || h.Troubled() || h.Check() != nil {
			f.t.Error("a hold without locks went with the session")
		}
		h.Closing()
		h.Release()
		locked.Release()
	})
}

// An entry that somebody deletes while its lock is held for long is missed
// before the next renewal.
func TestDeletedEntryIsMissed(t *testing.T) {
	inBubble(t, func(f *fixture) {
		h, kept := f.must(open("a", 0, "f")), f.must(open("a", 0, "g"))
		time.Sleep(2 * time.Second)
		es, err := f.svc.Entries(f.t.Context(), "f")
		if err != nil || len(es) != 1 {
			f.t.Fatal(es, err)
		}
		f.svc.Delete(lockmgr.Grant{Key: es[0].Key, AcquisitionID: es[0].Holder.AcquisitionID, Token: es[0].Token})
		time.Sleep(2 * time.Second)
		if err := h.Check(); !errors.Is(err, lockmgr.ErrLockLost) {
			f.t.Errorf("a lock whose entry is gone: %v", err)
		}
		if err := kept.Check(); err != nil {
			f.t.Errorf("another lock of the session: %v", err)
		}
		f.must(open("b", 0, "f")).Release()
		h.Release()
		kept.Release()
	})
}

// A request that has nothing yet loses nothing with its session, even if its wait ends just then.
func TestNothingIsLostByARequest(t *testing.T) {
	inBubble(t, func(f *fixture) {
		defer f.must(open("a", 0, "f")).Release()
		m, _ := f.manager()
		defer m.Close(f.t.Context())
		for range 50 { // the wait ends first in some, the session in others
			if h, err := m.Acquire(f.t.Context(), open("b", time.Minute, "g")); err != nil {
				f.t.Fatal(err)
			} else {
				h.Release()
			}
			session := f.svc.last()
			time.AfterFunc(time.Second, func() { f.svc.Expire(session) })
			_, err := m.Acquire(f.t.Context(), try("b", file("f")))
			if errors.Is(err, lockmgr.ErrSessionLost) || !errors.Is(err, lockmgr.ErrContended) && !errors.Is(err, lockmgr.ErrUnavailable) {
				f.t.Errorf("got %v", err)
			}
		}
	})
}

// A release that finds the lock gone says so; one that was not answered is
// tried until it is.
func TestReleaseVerifiesTheOwner(t *testing.T) {
	inBubble(t, func(f *fixture) {
		h := f.must(open("a", 0, "f"))
		es, err := f.svc.Entries(f.t.Context(), "")
		if err != nil {
			f.t.Fatal(err)
		}
		f.svc.Delete(lockmgr.Grant{Key: es[0].Key, AcquisitionID: es[0].Holder.AcquisitionID, Token: es[0].Token})
		h.Release()
		time.Sleep(ttl / 8) // it may be that the session has ended, and nobody knows yet
		synctest.Wait()
		if !strings.Contains(f.log.String(), "not ours any more") {
			f.t.Errorf("a lock that was not ours was released silently: %s", f.log)
		}

		h = f.must(open("a", 0, "f"))
		f.svc.Disconnect()
		h.Release()
		f.fails(open("b", 2*time.Second, "f"), lockmgr.ErrUnavailable, 2*time.Second)
		f.svc.Connect()
		f.must(open("b", 5*time.Second, "f")).Release()
	})
}

// A file that is renamed is locked by both names, and then by the new one.
func TestShareAndDrop(t *testing.T) {
	inBubble(t, func(f *fixture) {
		h := f.must(open("a", 0, "tmp"))
		via := f.must(try("a", file("tmp"), file("f")))
		if !h.Share(file("f"), via) || h.Share(file("f"), via) {
			f.t.Error("it is not said whether the hold has got a key")
		}
		via.Release()
		f.fails(open("b", 0, "f"), lockmgr.ErrContended, 0)
		f.fails(open("b", 0, "tmp"), lockmgr.ErrContended, 0)
		h.Drop(file("tmp"))
		f.must(open("b", time.Second, "tmp")).Release()
		f.fails(open("b", 0, "f"), lockmgr.ErrContended, 0)
		if h.Token(file("f")) == 0 || h.Token(file("tmp")) != 0 || h.Check() != nil {
			f.t.Error("the hold does not have its new key, and only that")
		}
		h.Drop(file("f"))
		f.must(open("b", time.Second, "f")).Release()
		if h.Check() != nil {
			f.t.Error("a hold without names may not write to its file")
		}
		f.svc.Expire(f.svc.last())
		synctest.Wait()
		if h.Check() == nil {
			f.t.Error("a hold without names outlives its session")
		}
		h.Release()
	})
}

// A file that gets one more name is locked by both until its holder closes it.
func TestShare(t *testing.T) {
	inBubble(t, func(f *fixture) {
		h := f.must(open("a", 0, "f"))
		via := f.must(try("a", file("f"), file("g"), inode("", 7)))
		h.Share(file("g"), via)
		h.Share(inode("", 7), via)
		via.Release()
		f.fails(open("b", 0, "g"), lockmgr.ErrContended, 0)
		f.fails(try("b", inode("", 7)), lockmgr.ErrContended, 0)
		h.Release()
		f.must(try("b", file("f"), file("g"), inode("", 7))).Release()
	})
}

// Of locks that were taken together a hold keeps what it is asked to.
func TestKeep(t *testing.T) {
	inBubble(t, func(f *fixture) {
		h := f.must(try("a", file("f"), file("g"), inode("", 7)))
		h.Keep([]lockmgr.Key{inode("", 7), file("f"), file("not held")})
		f.must(open("b", time.Second, "g")).Release()
		f.fails(open("b", 0, "f"), lockmgr.ErrContended, 0)
		f.fails(try("b", inode("", 7)), lockmgr.ErrContended, 0)
		h.Release()
		f.must(try("b", file("f"), file("g"), inode("", 7))).Release()
	})
}

// A lock is not shared with another owner's hold: of a file that is just being
// opened, say, and of which the path is not proved yet.
func TestShareIsOfOneOwner(t *testing.T) {
	inBubble(t, func(f *fixture) {
		h, via := f.must(open("b", 0, "f")), f.must(open("a", 0, "g"))
		if h.Share(file("g"), via) || h.Token(file("g")) != 0 {
			f.t.Error("two owners have one lock")
		}
		via.Release()
		f.must(open("c", time.Second, "g")).Release()
		h.Release()
	})
}

// A hold that was lost does not take a living lock with it by a rename.
func TestLostHoldTakesNoLock(t *testing.T) {
	inBubble(t, func(f *fixture) {
		h := f.must(open("a", 0, "old"))
		f.svc.Expire(f.svc.last())
		synctest.Wait()
		via := f.must(try("a", file("old"), file("new")))
		if h.Share(file("new"), via) {
			f.t.Error("it is said to")
		}
		via.Release()
		f.must(open("b", time.Second, "new")).Release()
		h.Release()
	})
}

// A lock that was lost, or broken, while a file is given its name does not become the
// file's: nobody would tell the file that it has ended.
func TestLostLockIsNotShared(t *testing.T) {
	for name, lose := range map[string]func(*fixture, lockmgr.Key, lockmgr.Grant){
		"deleted": func(f *fixture, _ lockmgr.Key, g lockmgr.Grant) { f.svc.Delete(g) },
		"broken":  func(f *fixture, k lockmgr.Key, _ lockmgr.Grant) { f.breakLock(k) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f *fixture) {
				h := f.must(open("a", 0, "old"))
				via := f.must(try("a", file("new")))
				lose(f, file("new"), via.Grant(file("new")))
				for via.Check() == nil {
					time.Sleep(time.Millisecond)
				}
				h.Share(file("new"), via)
				via.Release()
				other := f.must(open("b", time.Minute, "new"))
				if h.Token(file("new")) != 0 && h.Check() == nil {
					f.t.Error("two owners have one lock")
				}
				other.Release()
				h.Release()
			})
		})
	}
}

// A program that unpacks into a directory and renames it is not refused for a
// file that it has closed.
func TestTreeGivesClosingHoldersBelowAMoment(t *testing.T) {
	inBubble(t, func(f *fixture) {
		h, open2 := f.must(open("a", 0, "d/f")), f.must(open("a", 0, "d/g"))
		h.Closing()
		f.fails(try("a", tree("d")), lockmgr.ErrContended, 0) // for d/g
		open2.Closing()
		f.fails(try("a", tree("d")), lockmgr.ErrContended, lockmgr.DefaultCloseGrace)
		time.AfterFunc(5*time.Millisecond, h.Release)
		time.AfterFunc(6*time.Millisecond, open2.Release)
		start := time.Now()
		f.must(try("a", tree("d"), tree("e"))).Release()
		if took := time.Since(start); took != 6*time.Millisecond {
			f.t.Errorf("took %v, want 6ms: it was not woken", took)
		}
	})
}

func TestInvalidRequests(t *testing.T) {
	inBubble(t, func(f *fixture) {
		f.fails(try("a", file("f"), file("f")), lockmgr.ErrInvalidKey, 0)
		f.fails(try("a"), lockmgr.ErrInvalidKey, 0)
	})
}

// Refuse ends waits and refuses requests; what is held stays good until Close.
func TestRefuse(t *testing.T) {
	inBubble(t, func(f *fixture) {
		h := f.must(open("a", 0, "f"))
		done := make(chan error, 1)
		go func() {
			_, err := f.m.Acquire(f.t.Context(), open("b", -1, "f"))
			done <- err
		}()
		synctest.Wait()
		f.m.Refuse()
		if err := <-done; !errors.Is(err, lockmgr.ErrClosed) {
			f.t.Errorf("a waiter got %v", err)
		}
		f.fails(open("c", -1, "g"), lockmgr.ErrClosed, 0)
		if err := h.Check(); err != nil {
			f.t.Errorf("a holder got %v", err)
		}
		h.Release()
		synctest.Wait()
		if n := f.svc.Count(); n != 0 {
			f.t.Errorf("%d entries are left after the release", n)
		}
	})
}

func TestTreeIsRefusedAtOnceByAHolderBelow(t *testing.T) {
	inBubble(t, func(f *fixture) {
		h := f.must(open("a", 0, "d/e/f"))
		for _, path := range []string{"d", "d/e", "d/e/f"} {
			f.fails(try("a", tree(path)), lockmgr.ErrContended, 0)
		}
		f.must(try("a", tree("d/e/ff"), tree("d/x"))).Release()
		h.Release()
		synctest.Wait()
		dir := f.must(try("a", tree("d")))
		f.fails(open("b", time.Second, "d/e/f"), lockmgr.ErrContended, time.Second)
		w := f.later(open("b", -1, "d/e/f"))
		dir.Release()
		(<-w).Release()
	})
}

func TestCloseEndsWaits(t *testing.T) {
	inBubble(t, func(f *fixture) {
		other, _ := f.manager()
		h, err := other.Acquire(f.t.Context(), open("x", 0, "g"))
		if err != nil {
			f.t.Fatal(err)
		}
		f.must(open("a", 0, "f"))
		var wg sync.WaitGroup
		for _, path := range []string{"f", "g"} {
			wg.Go(func() {
				if _, err := f.m.Acquire(f.t.Context(), open("b", -1, path)); !errors.Is(err, lockmgr.ErrClosed) {
					f.t.Errorf("a wait for %s ended with %v", path, err)
				}
			})
		}
		synctest.Wait()
		if err := f.m.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
		wg.Wait()
		f.fails(open("a", 0, "new"), lockmgr.ErrClosed, 0)
		if n := f.svc.Count(); n != 1 {
			f.t.Errorf("%d entries, want the other mount's", n)
		}
		h.Release()
		if err := other.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	})
}

// Requests for several keys in any order neither deadlock nor overlap.
func TestSeveralKeysUnderLoad(t *testing.T) {
	inBubble(t, func(f *fixture) {
		other, _ := f.manager()
		var mu sync.Mutex
		holder := make(map[string]string)
		paths := []string{"a", "b", "c"}
		var wg sync.WaitGroup
		for i := range 24 {
			m := f.m
			if i%2 == 0 {
				m = other
			}
			wg.Go(func() {
				me := fmt.Sprint(i)
				for n := range 20 {
					p, q := paths[(i+n)%3], paths[(i+2*n+1)%3]
					req := open(me, -1, p)
					if p != q {
						req = open(me, -1, p, q)
					}
					h, err := m.Acquire(f.t.Context(), req)
					if err != nil {
						f.t.Errorf("%s: %v", me, err)
						return
					}
					mu.Lock()
					for _, k := range req.Keys {
						if holder[k.Path] != "" {
							f.t.Errorf("%s has %s together with %s", me, k, holder[k.Path])
						}
						holder[k.Path] = me
					}
					mu.Unlock()
					time.Sleep(time.Millisecond)
					mu.Lock()
					for _, k := range req.Keys {
						holder[k.Path] = ""
					}
					mu.Unlock()
					h.Release()
				}
			})
		}
		wg.Wait()
		if err := other.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	})
}

func TestNewRefusesUnsafeTimings(t *testing.T) {
	_, err := lockmgr.New(t.Context(), lockmgr.Config{Backend: lockmgrtest.NewMemory(), Renew: renew.Config{TTL: time.Second}})
	if err == nil || !strings.Contains(err.Error(), "TTL") {
		t.Errorf("a TTL of 1 s: %v", err)
	}
}
