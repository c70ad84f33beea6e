package lockmgr_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/lockmgr"
)

const keepFor = 2 * time.Second

// keeping runs a test on a mount that keeps locks, with another mount beside it.
func keeping(t *testing.T, test func(f *fixture, other *fixture)) {
	inBubble(t, func(f *fixture) {
		keep := func(c *lockmgr.Config) { c.Keep = keepFor }
		other := &fixture{t: f.t, svc: f.svc, m: f.m, log: f.log}
		f.m, f.log = f.manager(keep)
		test(f, other)
		f.svc.Connect()
		if err := f.m.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
		f.m = other.m
	})
}

// use opens and closes a file, and returns the token.
func (f *fixture) use(owner string, keys ...lockmgr.Key) int64 {
	f.t.Helper()
	req := open(owner, time.Minute)
	req.Keys = keys
	h := f.must(req)
	defer synctest.Wait()
	defer h.Release()
	return h.Token(keys[0])
}

// entries expects so many in the service.
func (f *fixture) entries(want int, when string) {
	f.t.Helper()
	if n := f.svc.Count(); n != want {
		f.t.Errorf("%s: %d entries, want %d", when, n, want)
	}
}

// A file that is opened again has its lock kept: the service is not asked any more, and each
// owner has a larger token. It is released when nobody has opened the file for a while.
func TestKept(t *testing.T) {
	keeping(t, func(f, _ *fixture) {
		last := f.use("a", file("f"))
		f.entries(0, "opened once")
		for i := range 10 {
			token := f.use(fmt.Sprint(i), file("f"))
			if token <= last {
				f.t.Errorf("token %d after %d", token, last)
			}
			last = token
			f.entries(1, "opened again")
			f.svc.Disconnect()
		}
		if s := f.m.Stats(); s.Kept != 1 || s.Held != 0 {
			f.t.Errorf("%+v", s)
		}
		f.svc.Connect()
		time.Sleep(keepFor)
		synctest.Wait()
		f.entries(0, "idle")

		time.Sleep(time.Minute)
		f.use("a", file("f"))
		f.entries(0, "opened once in a while")
	})
}

// An entry has only so many tokens. When they are used up, the lock is released, and the next entry's
// tokens are larger, also those of another mount.
func TestKeptUntilItsTokensAreUsedUp(t *testing.T) {
	keeping(t, func(f, other *fixture) {
		f.use("a", file("f"))
		last, released := int64(0), 0
		for i := range 20_000 { // a revision of the service is 4,096 tokens
			token := f.use(fmt.Sprint(i), file("f"))
			if token <= last {
				f.t.Fatalf("token %d after %d", token, last)
			}
			last = token
			released += 1 - f.svc.Count()
		}
		if released < 3 {
			f.t.Errorf("released %d times", released)
		}
		if token := other.use("b", file("f")); token <= last {
			f.t.Errorf("another mount's token is %d after %d", token, last)
		}
	})
}

// While the owner of a kept lock has the file open, it gives the name to a file that others have had
// later. The next owner has a larger token than they.
func TestKeptNameOfAnotherFile(t *testing.T) {
	keeping(t, func(f, other *fixture) {
		for _, m := range []*fixture{f, other} {
			f.use("a", file("f"))
			f.use("a", file("f"))
			f.entries(1, "kept")
			last := m.use("b", file("g"))
			h := f.must(open("a", 0, "f"))
			rename := try("a", file("g"), file("f"))
			rename.Renames = true
			f.must(rename).Release()
			h.Release()
			synctest.Wait()
			if token := f.use("c", file("f")); token <= last {
				f.t.Errorf("token %d after %d", token, last)
			}
			time.Sleep(keepFor)
			synctest.Wait()
		}
	})
}

// A request can say that its lock is not kept, or for how long, also where others are not kept.
func TestKeptByRequest(t *testing.T) {
	for _, mount := range []time.Duration{0, keepFor} {
		inBubble(t, func(f *fixture) {
			m, _ := f.manager(func(c *lockmgr.Config) { c.Keep = mount })
			for _, keep := range []time.Duration{0, 2 * keepFor} {
				for range 2 {
					req := open("a", time.Minute, "f")
					req.Keep = &keep
					h, err := m.Acquire(f.t.Context(), req)
					if err != nil {
						f.t.Fatal(err)
					}
					h.Release()
					synctest.Wait()
				}
				if kept := m.Stats().Kept == 1; kept != (keep > 0) {
					f.t.Errorf("kept: %v, for %v where others are for %v", kept, keep, mount)
				}
			}
			time.Sleep(keepFor)
			f.entries(1, "before its time")
			time.Sleep(keepFor)
			synctest.Wait()
			f.entries(0, "after its time")
			if err := m.Close(f.t.Context()); err != nil {
				f.t.Error(err)
			}
		})
	}
}

// Local owners wait for one another as ever.
func TestKeptInOrder(t *testing.T) {
	keeping(t, func(f, _ *fixture) {
		f.use("a", file("f"))
		h := f.must(open("a", 0, "f"))
		var lines []<-chan *lockmgr.Hold
		for i := range 3 {
			lines = append(lines, f.later(open(fmt.Sprint(i), -1, "f")))
		}
		f.fails(open("x", 0, "f"), lockmgr.ErrContended, 0)
		for _, line := range lines {
			token := h.Token(file("f"))
			h.Release()
			h = <-line
			if h.Token(file("f")) != token+1 || h.Check() != nil {
				f.t.Errorf("token %d after %d, %v", h.Token(file("f")), token, h.Check())
			}
		}
		h.Release()
	})
}

// kept makes f's lock idle, and kept.
func (f *fixture) kept(key lockmgr.Key) {
	f.t.Helper()
	f.use("a", key)
	f.use("a", key)
	if s := f.m.Stats(); s.Kept != 1 {
		f.t.Fatalf("%+v", s)
	}
}

// Whatever wants a lock that is idle gets it without a wait: on the mount that keeps it, and on
// another.
func TestIdleLocksAreGivenBack(t *testing.T) {
	inode, err := lockmgr.InodeKey("", 7)
	if err != nil {
		t.Fatal(err)
	}
	shared := open("b", time.Minute, "d/f")
	shared.Mode = lockmgr.Shared
	both := open("b", time.Minute, "d/f")
	both.Keys = append(both.Keys, inode)
	for name, req := range map[string]lockmgr.Request{
		"open":             open("b", time.Minute, "d/f"),
		"without patience": open("b", 0, "d/f"),
		"shared":           shared,
		"of several names": both,
		"unlink":           try("b", file("d/f")),
		"rename":           try("b", file("d/f"), file("d/g")),
		"rmdir":            try("b", tree("d")),
		"rename of above":  try("b", tree("d"), tree("e")),
	} {
		for _, elsewhere := range []bool{false, true} {
			t.Run(fmt.Sprint(name, elsewhere), func(t *testing.T) {
				keeping(t, func(f, other *fixture) {
					f.kept(file("d/f"))
					m := f
					if elsewhere {
						m = other
					}
					begin := time.Now()
					m.must(req).Release()
					if took := time.Since(begin); took > 0 {
						t.Errorf("took %v", took)
					}
				})
			})
		}
	}
}

// A lock in use is given back at its close, to the other mount first, and owners of this mount
// queue behind.
func TestRecalledInUse(t *testing.T) {
	keeping(t, func(f, other *fixture) {
		f.use("a", file("f"))
		h := f.must(open("a", 0, "f"))
		theirs := other.later(open("b", -1, "f"))
		ours := f.later(open("c", -1, "f"))
		begin := time.Now()
		h.Release()
		synctest.Wait()
		h = <-theirs
		select {
		case <-ours:
			t.Fatal("a local owner has passed another mount's")
		default:
		}
		h.Release()
		(<-ours).Release()
		if took := time.Since(begin); took > 0 {
			t.Errorf("took %v", took)
		}
		synctest.Wait()
		f.entries(0, "recalled")
	})
}

// A mount that only tries is told at once that the lock is in use.
func TestTryOfALockThatMayBeKept(t *testing.T) {
	keeping(t, func(f, other *fixture) {
		f.use("a", file("f"))
		h := f.must(open("a", 0, "f"))
		other.fails(open("b", 0, "f"), lockmgr.ErrContended, 0)
		other.fails(open("b", 0, "f"), lockmgr.ErrContended, 0)
		h.Release()
		synctest.Wait()
		f.entries(0, "recalled")
	})
}

// What is fought for is not kept, for longer and longer.
func TestCoolOff(t *testing.T) {
	keeping(t, func(f, other *fixture) {
		for _, cool := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
			f.kept(file("f"))
			other.use("b", file("f"))
			for begin := time.Now(); time.Since(begin) < cool; time.Sleep(500 * time.Millisecond) {
				f.use("a", file("f"))
				if kept := f.m.Stats().Kept; kept > 0 {
					t.Fatalf("kept again %v after a recall, want %v", time.Since(begin), cool)
				}
			}
			time.Sleep(time.Second)
			f.use("a", file("f"))
		}
		time.Sleep(10 * time.Minute)
		f.kept(file("f"))
	})
}

// A mount has so many idle locks and no more.
func TestIdleLocksAreBounded(t *testing.T) {
	keeping(t, func(f, _ *fixture) {
		for range 2 {
			for i := range 600 {
				f.use("a", file(fmt.Sprint(i)))
			}
		}
		f.entries(512, "many files")
	})
}

// A break of a lock that is idle releases it. A break of an owner that has closed its file does
// not touch the next one, but has the lock given back by it.
func TestBreakOfAKeptLock(t *testing.T) {
	keeping(t, func(f, _ *fixture) {
		broken := func(turn int) {
			entries, err := f.svc.Entries(t.Context(), "f")
			if err != nil || len(entries) != 1 {
				t.Fatal(entries, err)
			}
			e := entries[0]
			b := lockmgr.Break{ID: uuid.New(), Path: "f", AcquisitionID: e.Holder.AcquisitionID, Token: e.Token, Turn: turn, By: "alice"}
			if err := f.svc.PutBreak(t.Context(), b); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		f.kept(file("f"))
		broken(0)
		f.entries(0, "broken while idle")

		f.kept(file("f"))
		h := f.must(open("b", 0, "f"))
		broken(0)
		if err := h.Check(); err != nil {
			t.Errorf("the owner of before was broken: %v", err)
		}
		h.Release()
		synctest.Wait()
		f.entries(0, "broken before")

		f.kept(file("f"))
		h = f.must(open("b", 0, "f"))
		broken(int(h.Token(file("f")) % lockmgr.FencingToken(1, 0)))
		if h.Check() == nil {
			t.Error("it was not broken")
		}
		h.Release()
		time.Sleep(time.Minute)
		f.entries(0, "broken")
	})
}

// An idle lock that is lost is no loss to anybody.
func TestIdleLocksAreLost(t *testing.T) {
	keeping(t, func(f, _ *fixture) {
		last := f.use("a", file("f"))
		f.kept(file("f"))
		f.svc.Expire(f.svc.last())
		synctest.Wait()
		if token := f.use("b", file("f")); token <= last {
			t.Errorf("token %d after %d", token, last)
		}
		if strings.Contains(f.log.String(), "its file returns EIO") {
			t.Errorf("log: %s", f.log)
		}
	})
}

// A mount that refuses requests keeps nothing.
func TestRefuseGivesBack(t *testing.T) {
	keeping(t, func(f, _ *fixture) {
		f.kept(file("f"))
		h := f.must(open("a", 0, "f"))
		f.use("a", file("g"))
		f.use("a", file("g"))
		f.m.Refuse()
		synctest.Wait()
		f.entries(1, "refusing")
		h.Release()
		synctest.Wait()
		f.entries(0, "released")
	})
}

// After a second people see who has a kept lock, or that nobody has.
func TestKeptLocksAreDescribed(t *testing.T) {
	keeping(t, func(f, _ *fixture) {
		f.kept(file("f"))
		req := open("b", 0, "f")
		req.Holder.Comm = "editor"
		h := f.must(req)
		time.Sleep(3 * time.Second)
		entry := func() lockmgr.Entry {
			entries, err := f.svc.Entries(t.Context(), "f")
			if err != nil || len(entries) != 1 {
				t.Fatal(entries, err)
			}
			return entries[0]
		}
		if e := entry(); e.Holder.Comm != "editor" || e.Holder.Kept || e.FencingToken() != h.Token(file("f")) {
			t.Errorf("%+v", e)
		}
		h.Release()
		time.Sleep(1300 * time.Millisecond)
		if e := entry(); !e.Holder.Kept || time.Since(e.Holder.Since) > 1500*time.Millisecond {
			t.Errorf("%+v", e)
		}
	})
}

// An owner that has taken over a kept lock shares it with its other requests at once, as if the
// service had granted it: also with those behind another owner's.
func TestTakenOverLockIsShared(t *testing.T) {
	for name, keep := range map[string]bool{"granted": false, "kept": true} {
		t.Run(name, func(t *testing.T) {
			keeping(t, func(f, other *fixture) {
				m := other
				if keep {
					m = f
				}
				m.use("a", file("f"))
				h := m.must(open("a", 0, "f"))
				first := m.later(open("b", -1, "f"))
				between := m.later(open("c", -1, "f"))
				second := m.later(open("b", -1, "f"))
				h.Release()
				synctest.Wait()
				h = <-first
				select {
				case another := <-second:
					another.Release()
				default:
					t.Error("the owner's second request waits for another owner, who waits for the first")
				}
				h.Release()
				(<-between).Release()
				synctest.Wait()
				select {
				case another := <-second:
					another.Release()
				default:
				}
			})
		})
	}
}

// Nobody holds a lock that is idle.
func TestIdleLockHasNoHolder(t *testing.T) {
	keeping(t, func(f, other *fixture) {
		f.kept(file("f"))
		if e, held, err := f.m.Exclusive(f.t.Context(), file("f")); err != nil || held {
			t.Errorf("its mount: %+v, %v", e, err)
		}
		time.Sleep(1700 * time.Millisecond)
		if e, held, err := other.m.Exclusive(f.t.Context(), file("f")); err != nil || held {
			t.Errorf("another mount: %+v, %v", e, err)
		}
	})
}

// A lock service that was away when a lock was taken over is told when it is back.
func TestDescribedAfterAnOutage(t *testing.T) {
	keeping(t, func(f, _ *fixture) {
		f.kept(file("f"))
		req := open("b", 0, "f")
		req.Holder.Comm = "editor"
		h := f.must(req)
		f.svc.Disconnect()
		time.Sleep(4 * time.Second)
		f.svc.Connect()
		time.Sleep(4 * time.Second)
		entries, err := f.svc.Entries(f.t.Context(), "f")
		if err != nil || len(entries) != 1 {
			t.Fatal(entries, err)
		}
		e := entries[0]
		if e.Holder.Comm != "editor" || e.FencingToken() != h.Token(file("f")) {
			t.Errorf("seen: %+v", e)
		}
		b := lockmgr.Break{ID: uuid.New(), AcquisitionID: e.Holder.AcquisitionID, Token: e.Token, Turn: e.Holder.Turn}
		if err := f.svc.PutBreak(f.t.Context(), b); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if h.Check() == nil {
			t.Error("it cannot be broken")
		}
		h.Release()
		time.Sleep(time.Minute)
	})
}

// A mount that does not hear of recalls takes no lock over, for as long as that goes on.
func TestDeafMountTakesNothingOver(t *testing.T) {
	keeping(t, func(f, _ *fixture) {
		long, _ := f.manager(func(c *lockmgr.Config) { c.Keep = time.Minute })
		defer func() {
			if err := long.Close(f.t.Context()); err != nil {
				t.Error(err)
			}
		}()
		f.m, long = long, f.m
		defer func() { f.m, long = long, f.m }()
		f.kept(file("f"))
		time.Sleep(5 * time.Second)
		if f.use("a", file("f")); f.m.Stats().Kept != 1 {
			t.Fatal("it was not taken over")
		}
		f.svc.Disconnect()
		time.Sleep(3 * time.Second)
		f.fails(open("a", 0, "f"), lockmgr.ErrUnavailable, ttl/8)
		f.svc.Connect()
		time.Sleep(5 * time.Second)
		f.use("a", file("f"))
	})
}

// The log names a lock that is taken over, or shared, as the lock service does.
func TestLogOfAKeptLock(t *testing.T) {
	inBubble(t, func(f *fixture) {
		log := &bytes.Buffer{}
		m, _ := f.manager(func(c *lockmgr.Config) {
			c.Keep, c.Logger = keepFor, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		})
		defer func(was *lockmgr.Manager) {
			if err := m.Close(f.t.Context()); err != nil {
				f.t.Error(err)
			}
			f.m = was
		}(f.m)
		f.m, f.log = m, log
		f.use("a", file("f"))
		h := f.must(open("a", 0, "f"))
		id := f.holderOf("f").Short()
		next := f.later(open("b", -1, "f"))
		synctest.Wait()
		h.Release()
		h = <-next
		f.must(open("b", 0, "f")).Release()
		h.Release()
		time.Sleep(keepFor)
		synctest.Wait()
		f.logOf(id, "lock asked for", "lock granted", "lock taken over", "lock shared with its owner", "lock released")
		if !strings.Contains(log.String(), " was=") {
			f.t.Errorf("the request that waited is not found by its end:\n%s", log)
		}
	})
}

// Each lock is kept for its own time, also beside one that is kept for longer and was idle before.
func TestEachIsKeptForItsTime(t *testing.T) {
	keeping(t, func(f, _ *fixture) {
		keep := func(name string, keep time.Duration) {
			for range 2 {
				req := open("a", time.Minute, name)
				req.Keep = &keep
				f.must(req).Release()
				synctest.Wait()
			}
		}
		keep("long", time.Minute)
		keep("short", keepFor)
		time.Sleep(keepFor)
		synctest.Wait()
		f.haveKeys("after the short one's time", "long")
		keep("short", keepFor)
		time.Sleep(time.Minute - 2*keepFor)
		f.haveKeys("before the long one's", "long")
		time.Sleep(2 * keepFor)
		f.haveKeys("after it")
	})
}
