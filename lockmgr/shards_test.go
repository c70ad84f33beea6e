package lockmgr_test

import (
	"errors"
	"fmt"
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
		h.Rekey(file("f"), file("h"), more)
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
			h.Rekey(file("f"), file("g"), rename)
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
