package kubelease_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/kubelease"
)

// A session that is not renewed ends, whatever the times in its Lease say, and
// one that is does not.
func TestExpiry(t *testing.T) {
	t.Parallel()
	for _, skew := range []time.Duration{0, 24 * time.Hour, -24 * time.Hour} {
		t.Run(skew.String(), func(t *testing.T) {
			t.Parallel()
			name, clock := newName(), &pace{}
			const ttl = 2 * time.Second
			dead, lives := openFor(t, newBackend(t, name, clock.by), ttl), openFor(t, newBackend(t, name, clock.by), ttl)
			next := open(t, newBackend(t, name, clock.by))
			// The kubelease of the dead mount does not end its own session here.
			shiftClock(t, dead, skew)
			k, kept := file("f"), must(t, lives, lockmgr.NoWait, file("kept"))
			old := must(t, dead, lockmgr.NoWait, k)[0]
			got := start(within(t, patience), next, request(lockmgr.Queue, k))
			clock.renew(t, lives, ttl/5)
			a := await(t, got)
			if a.Err != nil || a.Grants[0].Token <= old.Token {
				t.Fatalf("after the session's end: %v, %v", a.Grants, a.Err)
			}
			if held, err := next.Held(within(t, patience), []lockmgr.Grant{old, kept[0]}); err != nil || held[0] || !held[1] {
				t.Fatalf("Held: %v, %v", held, err)
			}
			if err := dead.Renew(within(t, patience)); !errors.Is(err, lockmgr.ErrSessionLost) {
				t.Fatalf("Renew: %v", err)
			}
			<-dead.Done()
		})
	}
}

// renew renews s every interval until stop is called or the test ends.
func renew(t *testing.T, s lockmgr.Session, interval time.Duration) (stop func()) {
	return renewing(t, s, interval, func() {})
}

// renewing is renew, and calls renewed after each time.
func renewing(t *testing.T, s lockmgr.Session, interval time.Duration, renewed func()) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	stop = func() { cancel(); <-over }
	t.Cleanup(stop)
	go func() {
		defer close(over)
		for tick := time.NewTicker(interval); ; {
			select {
			case <-tick.C:
				if err := s.Renew(ctx); err != nil && ctx.Err() == nil {
					t.Errorf("Renew: %v", err)
				}
				renewed()
			case <-ctx.Done():
				tick.Stop()
				return
			}
		}
	}()
	return stop
}

// shiftClock writes a session's Lease as if by a machine whose clock is wrong.
func shiftClock(t *testing.T, s lockmgr.Session, by time.Duration) {
	t.Helper()
	leases := raw(t)
	list, err := leases.List(t.Context(), metav1.ListOptions{LabelSelector: "lockfs.io/kind=pulse,lockfs.io/session=" + s.ID()})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%d Leases: %v", len(list.Items), err)
	}
	lease := list.Items[0]
	at := metav1.NewMicroTime(time.Now().Add(by))
	lease.Spec.RenewTime, lease.Spec.AcquireTime = &at, &at
	if _, err := leases.Update(t.Context(), &lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Renew(within(t, patience)); err != nil { // a clock that was set back, or not
		t.Fatalf("Renew: %v", err)
	}
}

// A mount whose watch shows nothing any more asks for sessions that live, and
// lets them. What it asks too late, the server refuses.
func TestBlindMountEndsNobody(t *testing.T) {
	t.Parallel()
	name, clock, l, own := newName(), &pace{}, &link{}, &link{}
	const ttl = 2 * time.Second
	s := openFor(t, newBackendAt(t, own.to(as(mountUser)), name, clock.by), ttl)
	blind := newBackendAt(t, l.to(as(mountUser)), name, clock.by)
	keepsWatch(t, blind, open(t, blind))
	hold, met := first(late, func(c *call) bool { return c.verb == "delete" && c.has("-pulse-"+s.ID()) })
	l.obey(func(c *call) fate {
		if c.verb == "watch" || c.verb == "list" {
			return cut
		}
		return hold(c)
	})
	kubelease.BreakWatch(blind)
	stop := clock.renew(t, s, ttl/5)
	eventually(t, "it asks for the session, twice", func() bool {
		asks := 0
		for _, c := range l.calls("get") {
			if c.has("-pulse-" + s.ID()) {
				asks++
			}
		}
		return asks >= 2
	})
	if n := l.count("delete"); n > 0 {
		t.Fatalf("%d requests to end a session that lives", n)
	}
	own.obey(func(c *call) fate { // the other backend ends it
		if c.verb == "delete" {
			return cut
		}
		return passed
	})
	stop()
	c := passUntil(t, clock, ttl/5, "it ends the session", met)
	if err := s.Renew(within(t, patience)); err != nil {
		t.Fatalf("Renew: %v", err)
	}
	c.send(t)
	if err := s.Renew(within(t, patience)); err != nil {
		t.Fatalf("Renew: %v", err)
	}
	l.mend()
	own.mend()
}

// A proxy that does not find the API server says 404 too. That tells nothing of a
// session: it has not ended.
func TestProxyEndsNobody(t *testing.T) {
	t.Parallel()
	name, clock, l := newName(), &pace{}, &link{}
	const ttl = 2 * time.Second
	s := openFor(t, newBackend(t, name, clock.by), ttl)
	must(t, s, lockmgr.NoWait, file("f"))
	clock.renew(t, s, ttl/5)
	far := newBackendAt(t, l.to(as(mountUser)), name, clock.by)
	other := open(t, far)
	keepsWatch(t, far, other)
	l.obey(func(*call) fate { return astray })
	l.hangUp()
	eventually(t, "it asks for the session", func() bool {
		asks := 0
		for _, c := range l.calls("get", "delete") {
			if c.has(s.ID()) {
				asks++
			}
		}
		return asks > 2
	})
	l.mend()
	eventually(t, "its watch stands again", func() bool { return kubelease.Connected(far) })
	if g, err := other.Acquire(within(t, patience), request(lockmgr.NoWait, file("f"))); !errors.Is(err, lockmgr.ErrContended) {
		t.Fatalf("beside who has it: %v, %v", g, err)
	}
}

// A dead mount's session ends although each second request of its keeper fails: what
// counts is the time in which the server was heard of. Each failure gave all sessions
// their whole time again, and this one lived for ever.
func TestFailuresKeepNobodyAlive(t *testing.T) {
	t.Parallel()
	name, l, own := newName(), &link{}, &link{}
	const ttl = 2 * time.Second
	keeper := newBackendAt(t, l.to(as(mountUser)), name)
	s := open(t, keeper)
	renew(t, s, ttl/5) // else the server would not be heard of between the failures
	keepsWatch(t, keeper, s)
	own.obey(func(c *call) fate { // the dead one does not end itself
		if c.verb == "delete" {
			return cut
		}
		return passed
	})
	defer own.mend()
	var about atomic.Int64
	l.obey(func(c *call) fate {
		theirs := c.has("-pulse-") && !c.has("-pulse-"+s.ID())
		if theirs && (c.verb == "get" || c.verb == "delete") && about.Add(1)%2 == 1 {
			return busy
		}
		return passed
	})
	dead := openFor(t, newBackendAt(t, own.to(as(mountUser)), name), ttl) // from here on its time runs out
	select {
	case <-dead.Done():
	case <-within(t, patience).Done():
		t.Fatalf("a session that is not renewed does not end; it was asked about %d times", about.Load())
	}
	if about.Load() < 2 {
		t.Fatal("no request has failed")
	}
}

// While the server answers nobody, nobody's session ends, however long that is:
// each has its time from when it answers again. Those that are not renewed then, end.
func TestOutageEndsNobody(t *testing.T) {
	t.Parallel()
	name, clock, l := newName(), &pace{}, &link{}
	const ttl = 2 * time.Second
	b := newBackendAt(t, l.to(as(mountUser)), name, clock.by)
	s := openFor(t, b, ttl)
	keepsWatch(t, b, s)
	open(t, newBackendAt(t, l.to(as(mountUser)), name, clock.by))
	about := func(c *call) bool { return c.has("-pulse-" + s.ID()) }
	rule, met := first(cut, about)
	l.obey(func(c *call) fate { rule(c); return cut })
	clock.pass(2 * ttl)
	<-met
	clock.pass(2 * ttl)
	for range 2 { // requests about the session, after which it is renewed
		rule, met := first(passed, about)
		l.obey(rule)
		passUntil(t, clock, ttl/40, "it is asked for", met).wait(t)
		if err := s.Renew(within(t, patience)); err != nil {
			t.Fatalf("Renew: %v", err)
		}
	}
	l.mend()
	passUntil(t, clock, ttl/5, "a session that is not renewed ends", s.Done())
}
