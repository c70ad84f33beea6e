package lockmgr_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/internal/boottime"
	"github.com/lockfs/lockfs/lockmgr"
)

// sleepy is CLOCK_BOOTTIME of a machine that can sleep: its timers do not run
// meanwhile. The service's do: it ends the sessions.
type sleepy struct {
	f     *fixture
	slept atomic.Int64
}

func (c *sleepy) Now() boottime.Instant {
	return bubbleClock{}.Now() + boottime.Instant(c.slept.Load())
}

// sleep is over before anything here runs again: the session has ended.
func (c *sleepy) sleep(d time.Duration) {
	c.f.svc.Expire(c.f.svc.last())
	c.slept.Add(int64(d))
}

// nap is no longer than the lease.
func (c *sleepy) nap(d time.Duration) { c.slept.Add(int64(d)) }

// quiet is a session that tells of its end by answers only, and on which things
// can happen in the middle of a request.
type quiet struct {
	lockmgr.Session
	svc *quietService
}

type quietService struct {
	*tap
	renewing, acquired atomic.Pointer[func()]
}

func (s *quietService) OpenSession(ctx context.Context, info lockmgr.SessionInfo, ttl time.Duration) (lockmgr.Session, error) {
	session, err := s.tap.OpenSession(ctx, info, ttl)
	return quiet{session, s}, err
}

func (quiet) Done() <-chan struct{} { return nil }

func (s quiet) Renew(ctx context.Context) error {
	err := s.Session.Renew(ctx)
	if f := s.svc.renewing.Swap(nil); f != nil {
		(*f)()
	}
	return err
}

func (s quiet) Acquire(ctx context.Context, req lockmgr.AcquireRequest) ([]lockmgr.Grant, error) {
	grants, err := s.Session.Acquire(ctx, req)
	if f := s.svc.acquired.Swap(nil); f != nil {
		(*f)()
	}
	return grants, err
}

// onSleepy runs a test on a mount whose machine can sleep.
func onSleepy(t *testing.T, test func(f *fixture, clock *sleepy, svc *quietService)) {
	inBubble(t, func(f *fixture) {
		if err := f.m.Close(f.t.Context()); err != nil {
			f.t.Fatal(err)
		}
		clock, svc := &sleepy{f: f}, &quietService{tap: f.svc}
		f.m, f.log = f.manager(func(c *lockmgr.Config) { c.Backend, c.Renew.Clock = svc, clock })
		test(f, clock, svc)
	})
}

// others lets another mount have the lock, and returns when it does.
func others(f *fixture, path string) {
	f.t.Helper()
	other, _ := f.manager()
	h, err := other.Acquire(f.t.Context(), open("other", 0, path))
	if err != nil {
		f.t.Fatalf("the lock of a session that ended: %v", err)
	}
	h.Release()
	if err := other.Close(f.t.Context()); err != nil {
		f.t.Error(err)
	}
}

// stands checks that a hold is good, and that the service knows of it.
func stands(f *fixture, h *lockmgr.Hold, path string) {
	f.t.Helper()
	entries, err := f.svc.Entries(f.t.Context(), path)
	if err != nil || len(entries) != 1 || entries[0].FencingToken() != h.Token(file(path)) || h.Check() != nil {
		f.t.Errorf("held with token %d (%v), the service has %+v, %v", h.Token(file(path)), h.Check(), entries, err)
	}
}

// The machine sleeps for an hour. Whatever was under way when it fell asleep,
// nobody believes afterwards.
func TestSystemSuspend(t *testing.T) {
	t.Run("between check and write", func(t *testing.T) {
		onSleepy(t, func(f *fixture, clock *sleepy, _ *quietService) {
			h := f.must(open("a", 0, "f"))
			if err := h.Check(); err != nil {
				f.t.Fatal(err)
			}
			clock.sleep(time.Hour)
			if err := h.Check(); err == nil { // after the write
				f.t.Error("good after the sleep")
			}
			others(f, "f")
			if err := h.Await(f.t.Context()); !errors.Is(err, lockmgr.ErrSessionLost) {
				f.t.Errorf("Await() = %v", err)
			}
			if err := h.Check(); !errors.Is(err, lockmgr.ErrSessionLost) {
				f.t.Errorf("Check() = %v", err)
			}
		})
	})
	t.Run("between a renewal and its answer", func(t *testing.T) {
		onSleepy(t, func(f *fixture, clock *sleepy, svc *quietService) {
			h := f.must(open("a", 0, "f"))
			asleep := make(chan struct{})
			sleep := func() { clock.sleep(time.Hour); close(asleep) }
			svc.renewing.Store(&sleep) // the answer says that the lease lives, and is an hour old
			<-asleep
			for range 10 {
				if err := h.Check(); err == nil {
					f.t.Fatal("good after the sleep")
				}
				synctest.Wait()
			}
			others(f, "f")
			if err := h.Await(f.t.Context()); !errors.Is(err, lockmgr.ErrSessionLost) && !errors.Is(err, lockmgr.ErrLockLost) {
				f.t.Errorf("Await() = %v", err)
			}
		})
	})
	t.Run("between a grant and its answer", func(t *testing.T) {
		onSleepy(t, func(f *fixture, clock *sleepy, svc *quietService) {
			sleep := func() { clock.sleep(time.Hour) }
			svc.acquired.Store(&sleep)
			h := f.must(open("a", time.Minute, "f"))
			stands(f, h, "f") // it was taken anew
			h.Release()
		})
	})
	t.Run("between a grant and its answer, and nobody waits", func(t *testing.T) {
		onSleepy(t, func(f *fixture, clock *sleepy, svc *quietService) {
			sleep := func() { clock.sleep(time.Hour) }
			svc.acquired.Store(&sleep)
			if h, err := f.m.Acquire(f.t.Context(), open("a", 0, "f")); err == nil {
				stands(f, h, "f")
				h.Release()
				synctest.Wait()
			}
			others(f, "f")
		})
	})
	t.Run("while it waits", func(t *testing.T) {
		onSleepy(t, func(f *fixture, clock *sleepy, _ *quietService) {
			other, _ := f.manager()
			held, err := other.Acquire(f.t.Context(), open("other", 0, "f"))
			if err != nil {
				f.t.Fatal(err)
			}
			f.svc.sessions = f.svc.sessions[:len(f.svc.sessions)-1] // it is not other that sleeps
			waiting := f.later(open("a", -1, "f"))
			clock.sleep(time.Hour)
			synctest.Wait()
			held.Release()
			h := <-waiting
			stands(f, h, "f") // it was taken anew
			h.Release()
			if err := other.Close(f.t.Context()); err != nil {
				f.t.Error(err)
			}
		})
	})
	// No longer than the lease lives: a pause, and nothing is lost.
	t.Run("for ten seconds", func(t *testing.T) {
		onSleepy(t, func(f *fixture, clock *sleepy, _ *quietService) {
			h := f.must(open("a", 0, "f"))
			token := h.Token(file("f"))
			clock.nap(ttl - ttl/3)
			if err := h.Await(f.t.Context()); err != nil || h.Check() != nil {
				f.t.Errorf("Await() = %v, Check() = %v", err, h.Check())
			}
			others := f.must(open("b", 0, "g"))
			if others.Token(file("g")) != token+1<<12 {
				f.t.Error("the lock was taken anew")
			}
			others.Release()
			h.Release()
		})
	})
}
