package lockmgr_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/renew"
)

// sharded runs a test on a mount that acquires two locks on a session.
func sharded(t *testing.T, test func(f *fixture)) {
	inBubble(t, func(f *fixture) {
		one := f.m
		f.m, f.log = f.manager(func(c *lockmgr.Config) { c.KeysPerSession = 2 })
		if err := one.Close(f.t.Context()); err != nil {
			f.t.Fatal(err)
		}
		f.svc.sessions = f.svc.sessions[1:]
		test(f)
	})
}

// Sessions are opened as locks need them, and used again; each is lost with its
// own locks only.
func TestSessionsAreLostByThemselves(t *testing.T) {
	sharded(t, func(f *fixture) {
		var holds []*lockmgr.Hold
		for i := range 5 {
			holds = append(holds, f.must(open("a", 0, fmt.Sprint(i))))
		}
		if n := len(f.svc.sessions); n != 3 {
			f.t.Fatalf("%d sessions for 5 locks, want 3", n)
		}
		holds[0].Release()
		synctest.Wait()
		holds[0] = f.must(open("a", 0, "again"))
		f.must(open("a", 0, "last"))
		if n := len(f.svc.sessions); n != 3 {
			f.t.Fatalf("%d sessions for 6 locks, want 3", n)
		}

		f.svc.Expire(f.svc.sessions[0])
		synctest.Wait()
		for i, h := range holds {
			if err := h.Check(); errors.Is(err, lockmgr.ErrSessionLost) != (i < 2) || i >= 2 && err != nil {
				f.t.Errorf("hold %d: %v", i, err)
			}
		}
		if s := f.m.State(); s != renew.Held {
			f.t.Errorf("state %v", s)
		}
		f.must(open("b", 0, "0")).Release() // on a new session
		if n := len(f.svc.sessions); n != 4 {
			f.t.Errorf("%d sessions were opened, want 4", n)
		}
	})
}

// What one owner has of a file is on one session, though that be full.
func TestKeysOfOneFileShareASession(t *testing.T) {
	sharded(t, func(f *fixture) {
		h, other := f.must(open("a", 0, "f")), f.must(open("a", 0, "g"))
		more := f.must(open("a", time.Second, "f", "h"))
		if n := len(f.svc.sessions); n != 1 {
			f.t.Errorf("%d sessions, want 1", n)
		}
		h.Share(file("h"), more)
		h.Drop(file("f"))
		more.Release()
		other.Release()
		if h.Token(file("h")) == 0 || h.Check() != nil {
			f.t.Errorf("token %d, %v", h.Token(file("h")), h.Check())
		}
	})
}

// A hold that came to have locks on two sessions is lost with either, for ever.
func TestHoldOnTwoSessions(t *testing.T) {
	for lost := range 2 {
		sharded(t, func(f *fixture) {
			h := f.must(open("a", 0, "f"))
			f.must(open("a", 0, "x"))
			second := f.must(open("a", 0, "g"))
			if n := len(f.svc.sessions); n != 2 {
				f.t.Fatalf("%d sessions, want 2", n)
			}
			rename := f.must(open("a", time.Second, "f", "g")) // both are there
			h.Share(file("g"), rename)
			h.Drop(file("f"))
			rename.Release()
			second.Release()
			synctest.Wait()
			if err := h.Check(); err != nil {
				f.t.Fatal(err)
			}
			f.svc.Expire(f.svc.sessions[lost])
			synctest.Wait()
			if err := h.Check(); !errors.Is(err, lockmgr.ErrSessionLost) || !h.Lost() {
				f.t.Errorf("session %d is lost: %v", lost, err)
			}
			h.Drop(file("g"))
			if !h.Lost() {
				f.t.Error("it has become good again")
			}
		})
	}
}

// While the service is away, all are suspended, and none is asked for more.
func TestSuspendedSessions(t *testing.T) {
	sharded(t, func(f *fixture) {
		var holds []*lockmgr.Hold
		for i := range 4 {
			holds = append(holds, f.must(open("a", 0, fmt.Sprint(i))))
		}
		f.svc.Disconnect()
		time.Sleep(ttl)
		for i, h := range holds {
			if err := h.Check(); !errors.Is(err, lockmgr.ErrSuspended) {
				f.t.Errorf("hold %d: %v", i, err)
			}
		}
		if s := f.m.State(); s != renew.Suspended {
			f.t.Errorf("state %v", s)
		}
		w := f.later(open("a", time.Minute, "more"))
		f.svc.Connect()
		(<-w).Release()
		for i, h := range holds {
			if err := h.Await(f.t.Context()); err != nil {
				f.t.Errorf("hold %d: %v", i, err)
			}
		}
		if n := len(f.svc.sessions); n != 2 {
			f.t.Errorf("%d sessions, want 2", n)
		}
	})
}

// The sessions that a flood of locks has needed are ended when it is over, but for
// one; not those on which a hold relies, though it have no lock there.
func TestSessionsRetire(t *testing.T) {
	sharded(t, func(f *fixture) {
		var holds []*lockmgr.Hold
		for i := range 9 {
			holds = append(holds, f.must(open("a", 0, fmt.Sprint(i))))
		}
		alive := func() (n int) {
			for _, s := range f.svc.sessions {
				select {
				case <-s.Done():
				default:
					n++
				}
			}
			return n
		}
		if n := alive(); n != 5 {
			f.t.Fatalf("%d sessions, want 5", n)
		}
		holds[6].Drop(file("6")) // relies on the fourth
		for i, h := range holds {
			if i != 2 && i != 6 { // one on the second
				h.Release()
			}
		}
		time.Sleep(ttl / 2)
		if n := alive(); n != 5 {
			f.t.Errorf("%d sessions a moment after, want 5", n)
		}
		time.Sleep(3 * ttl)
		if n := alive(); n != 2 {
			f.t.Errorf("%d sessions are left, want that of a lock and that of a hold", n)
		}
		for _, i := range []int{2, 6} {
			if err := holds[i].Check(); err != nil {
				f.t.Errorf("hold %d: %v", i, err)
			}
		}
		holds[6].Release()
		time.Sleep(3 * ttl)
		if n := alive(); n != 1 {
			f.t.Errorf("%d sessions are left, want 1", n)
		}
		holds[2].Release()
		time.Sleep(3 * ttl)
		if s := f.m.State(); s != renew.Held || alive() != 1 {
			f.t.Errorf("%v, %d sessions are left, want 1", s, alive())
		}
		synctest.Wait()
		if strings.Contains(f.log.String(), "lost") {
			f.t.Errorf("a session that was ended is said to be lost: %s", f.log)
		}
		for i := range 3 {
			f.must(open("a", 0, fmt.Sprint(i))).Release()
		}
	})
}

// No session is ended under a request that waits on it.
func TestNoSessionRetiresUnderARequest(t *testing.T) {
	sharded(t, func(f *fixture) {
		other, _ := f.manager()
		theirs, err := other.Acquire(f.t.Context(), open("x", 0, "theirs"))
		if err != nil {
			f.t.Fatal(err)
		}
		a, b := f.must(open("a", 0, "a")), f.must(open("a", 0, "b"))
		w := f.later(open("w", -1, "theirs")) // on a session of its own
		a.Release()
		b.Release()
		time.Sleep(5 * ttl)
		synctest.Wait()
		if s := f.log.String(); strings.Contains(s, "asked for anew") {
			f.t.Errorf("it lost its place: %s", s)
		}
		theirs.Release()
		h := <-w
		if err := h.Check(); err != nil {
			f.t.Error(err)
		}
		h.Release()
		if err := other.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	})
}
