package lockmgr_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
	"github.com/lockfs/lockfs/renew"
)

// unrenewed is a service that fails all renewals, and nothing else.
type unrenewed struct {
	lockmgr.Backend
	err error
}

type unrenewedSession struct {
	lockmgr.Session
	err error
}

func (b unrenewed) OpenSession(ctx context.Context, info lockmgr.SessionInfo, ttl time.Duration) (lockmgr.Session, error) {
	s, err := b.Backend.OpenSession(ctx, info, ttl)
	return unrenewedSession{s, b.err}, err
}

func (s unrenewedSession) Renew(context.Context) error { return s.err }

// What is lost, and why, is said once, whoever says it.
func TestLossIsToldOnce(t *testing.T) {
	answer := func(f *fixture, o *observer, err error) *lockmgr.Hold {
		one := f.m
		f.m, f.log = f.manager(func(c *lockmgr.Config) { c.Backend, c.Observe = unrenewed{f.svc, err}, o.add })
		if err := one.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
		return f.must(open("a", 0, "f"))
	}
	tests := map[string]struct {
		lose func(*fixture, *observer) *lockmgr.Hold
		want string
		is   []error
	}{
		"the service says so": {func(f *fixture, o *observer) *lockmgr.Hold {
			return answer(f, o, lockmgr.SessionLost(errors.New("etcdserver: requested lease not found")))
		}, "lock session lost: lease gone: etcdserver: requested lease not found", []error{lockmgr.ErrSessionLost, renew.ErrGone}},
		"it does not say why": {func(f *fixture, o *observer) *lockmgr.Hold {
			return answer(f, o, lockmgr.ErrSessionLost)
		}, "lock session lost: lease gone", []error{lockmgr.ErrSessionLost, renew.ErrGone}},
		"it says so by itself": {func(f *fixture, o *observer) *lockmgr.Hold {
			h := f.must(open("a", 0, "f"))
			f.svc.Expire(f.svc.last())
			return h
		}, "lock session lost: lease gone: reported by the lock service", []error{lockmgr.ErrSessionLost, renew.ErrGone}},
		"no answer": {func(f *fixture, o *observer) *lockmgr.Hold {
			return answer(f, o, lockmgr.ErrUnavailable)
		}, "lock session lost: no renewal was answered in time: lock service unavailable", []error{lockmgr.ErrSessionLost, renew.ErrUnanswered}},
		"deleted": {func(f *fixture, o *observer) *lockmgr.Hold {
			h := f.must(open("a", 0, "f"))
			f.svc.Delete(h.Grant(file("f")))
			return h
		}, "lock lost: its entry was deleted from the lock service", []error{lockmgr.ErrLockLost}},
		"broken": {func(f *fixture, o *observer) *lockmgr.Hold {
			h := f.must(open("a", 0, "f"))
			f.breakLock(file("f"))
			return h
		}, "lock lost: broken by alice: it hangs", []error{lockmgr.ErrLockLost, lockmgr.ErrBroken}},
		"abandoned": {func(f *fixture, o *observer) *lockmgr.Hold {
			h := f.must(open("a", 0, "f"))
			f.m.Abandon([]*lockmgr.Hold{h}, lockmgr.ErrVolumeGone)
			return h
		}, "lock lost: the volume's client is gone", []error{lockmgr.ErrLockLost, lockmgr.ErrVolumeGone}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			inObservedBubble(t, func(f *fixture, o *observer) {
				h := test.lose(f, o)
				time.Sleep(3 * ttl)
				errs := map[string]error{"Check": h.Check(), "Await": h.Await(f.t.Context())}
				for _, e := range events[lockmgr.LockLost](o) {
					errs["LockLost"] = e.Cause
				}
				if len(errs) != 3 {
					f.t.Error("the loss was not observed")
				}
				for who, err := range errs {
					if err == nil || err.Error() != test.want {
						f.t.Errorf("%s: %v, want %s", who, err, test.want)
					}
					for _, is := range test.is {
						if !errors.Is(err, is) {
							f.t.Errorf("%s: %v is not %q", who, err, is)
						}
					}
				}
				f.logOf(h.Grant(file("f")).AcquisitionID.Short(), "returns EIO")
			})
		})
	}
}

// A session that is given up early still has its lease, and writes on the way
// that were checked just before: its locks are not handed on under these.
// lockmodel finds how it goes wrong: go run ./lockmodel -model lease -mutate revokeatonce
func TestLostSessionIsRevokedWhenItsWritesHaveLanded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := lockmgrtest.NewMemory()
		mount := func(b lockmgr.Backend) *lockmgr.Manager {
			m, err := lockmgr.New(t.Context(), lockmgr.Config{
				Backend: b,
				Renew:   renew.Config{TTL: ttl, Clock: bubbleClock{}, SuspendWait: 1},
				Logger:  slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		a, b := mount(unrenewed{svc, lockmgr.ErrUnavailable}), mount(svc)
		held, err := a.Acquire(t.Context(), open("x", time.Second, "f"))
		if err != nil {
			t.Fatal(err)
		}
		var checked time.Time
		for held.Check() == nil {
			checked = time.Now()
			if now := (bubbleClock{}).Now(); held.Deadline() <= now {
				t.Fatalf("good, %v after its deadline", now.Sub(held.Deadline()))
			}
			time.Sleep(time.Millisecond)
		}
		if now := (bubbleClock{}).Now(); held.Deadline() > now {
			t.Errorf("not good, %v before its deadline", held.Deadline().Sub(now))
		}
		next, err := b.Acquire(t.Context(), open("y", time.Minute, "f"))
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(checked); d < renew.WriteInFlight+renew.CheckToIssue {
			t.Errorf("another was granted the lock %v after a write was checked, which may land %v after it",
				d, renew.WriteInFlight+renew.CheckToIssue)
		}
		if d := time.Since(checked); d > ttl/3 {
			t.Errorf("the lost session kept its lock for %v", d)
		}
		next.Release()
		for _, m := range []*lockmgr.Manager{a, b} {
			if err := m.Close(t.Context()); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
	})
}

// A session that is given up early keeps its lease until what was written under its locks is flushed, or
// to the lease's end.
func TestLostSessionIsRevokedAfterOnLost(t *testing.T) {
	for name, c := range map[string]struct{ flush, atLeast, atMost time.Duration }{
		"a flush":            {2 * time.Second, 2 * time.Second, 2*time.Second + ttl/10},
		"a flush that hangs": {time.Hour, ttl, ttl + ttl/10}, // this service's leases do not end by themselves
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				svc := lockmgrtest.NewMemory()
				mount := func(b lockmgr.Backend) *lockmgr.Manager {
					m, err := lockmgr.New(t.Context(), lockmgr.Config{
						Backend: b,
						Renew:   renew.Config{TTL: ttl, Clock: bubbleClock{}, SuspendWait: 1},
						Logger:  slog.New(slog.DiscardHandler),
					})
					if err != nil {
						t.Fatal(err)
					}
					return m
				}
				a, b := mount(unrenewed{svc, lockmgr.ErrUnavailable}), mount(svc)
				held, err := a.Acquire(t.Context(), open("x", time.Second, "f"))
				if err != nil {
					t.Fatal(err)
				}
				lost := make(chan time.Time, 1)
				held.OnLost(func() { lost <- time.Now(); time.Sleep(c.flush) })
				next, err := b.Acquire(t.Context(), open("y", time.Minute, "f"))
				if err != nil {
					t.Fatal(err)
				}
				if d := time.Since(<-lost); d < c.atLeast || d > c.atMost {
					t.Errorf("another was granted the lock %v after the loss, want %v to %v", d, c.atLeast, c.atMost)
				}
				next.Release()
				for _, m := range []*lockmgr.Manager{a, b} {
					if err := m.Close(t.Context()); err != nil {
						t.Errorf("Close: %v", err)
					}
				}
			})
		})
	}
}

// A mount that nobody uses is good again once the service is back.
func TestIdleManagerGetsAnotherSession(t *testing.T) {
	inBubble(t, func(f *fixture) {
		f.svc.Disconnect()
		time.Sleep(3 * ttl)
		if s := f.m.State(); s != renew.Lost {
			t.Fatalf("the session is %v", s)
		}
		f.svc.Connect()
		time.Sleep(ttl)
		if s := f.m.State(); s != renew.Held {
			t.Errorf("the session is %v although the service is back", s)
		}
	})
}

// late has done called between a grant and its answer.
type late struct {
	lockmgr.Backend
	done func()
}

type lateSession struct {
	lockmgr.Session
	b *late
}

func (b *late) OpenSession(ctx context.Context, info lockmgr.SessionInfo, ttl time.Duration) (lockmgr.Session, error) {
	s, err := b.Backend.OpenSession(ctx, info, ttl)
	return lateSession{s, b}, err
}

func (s lateSession) Acquire(ctx context.Context, req lockmgr.AcquireRequest) ([]lockmgr.Grant, error) {
	grants, err := s.Session.Acquire(ctx, req)
	if done := s.b.done; done != nil {
		s.b.done = nil
		done()
	}
	return grants, err
}

// A grant whose answer comes when its session has been lost, and its locks were
// taken out of the way, is none.
func TestGrantOfALostSession(t *testing.T) {
	inBubble(t, func(f *fixture) {
		b := &late{Backend: f.svc}
		one := f.m
		f.m, f.log = f.manager(func(c *lockmgr.Config) { c.Backend, c.KeysPerSession = b, 1 })
		other := f.must(read("b", 0, "f"))
		b.done = func() {
			f.svc.Expire(f.svc.last())
			time.Sleep(ttl)
		}
		h := f.must(read("a", -1, "f"))
		if h.Check() != nil || h.Token(file("f")) == 0 || h.Unlocked() {
			f.t.Errorf("granted with token %d: %v", h.Token(file("f")), h.Check())
		}
		h.Release()
		other.Release()
		if err := one.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	})
}

// blind is a service that tells a session nothing of its entries unless it is asked, and answers the
// request for a session late.
type blind struct {
	*tap
	late time.Duration
}

type blindSession struct{ lockmgr.Session }

func (b blind) OpenSession(ctx context.Context, info lockmgr.SessionInfo, ttl time.Duration) (lockmgr.Session, error) {
	s, err := b.tap.OpenSession(ctx, info, ttl)
	time.Sleep(b.late)
	return blindSession{s}, err
}

func (blindSession) Watch(ctx context.Context, _ func() []lockmgr.Grant, _ func(lockmgr.Grant)) {
	<-ctx.Done()
}

// After a suspension no write goes on before the mount has asked whether its entries stand.
func TestNoWriteGoesOnUnverified(t *testing.T) {
	inBubble(t, func(f *fixture) {
		m, _ := f.manager(func(c *lockmgr.Config) { c.Backend = blind{tap: f.svc} })
		h, err := m.Acquire(f.t.Context(), open("a", 0, "f"))
		if err != nil {
			f.t.Fatal(err)
		}
		f.svc.Disconnect()
		time.Sleep(ttl)
		if err := h.Check(); !errors.Is(err, lockmgr.ErrSuspended) {
			f.t.Fatalf("without an answer for a TTL: %v", err)
		}
		f.svc.Connect()
		f.svc.Delete(h.Grant(file("f")))
		if err := h.Await(f.t.Context()); !errors.Is(err, lockmgr.ErrLockLost) {
			f.t.Errorf("its entry was deleted meanwhile: %v", err)
		}
		h.Release()
		if err := m.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	})
}

// The service can have granted a session when it was asked, however late its answer comes.
func TestDeadlineOfALateSession(t *testing.T) {
	inBubble(t, func(f *fixture) {
		asked := bubbleClock{}.Now()
		m, _ := f.manager(func(c *lockmgr.Config) { c.Backend = blind{tap: f.svc, late: ttl / 10} }) // before the first renewal
		h, err := m.Acquire(f.t.Context(), open("a", 0, "f"))
		if err != nil {
			f.t.Fatal(err)
		}
		if got, want := h.Deadline(), asked.Add(ttl-ttl/3); got != want {
			f.t.Errorf("writes until %v after the request, want %v", got.Sub(asked), want.Sub(asked))
		}
		h.Release()
		if err := m.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	})
}
