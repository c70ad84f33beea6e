package kubelease_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/kubelease"
)

// Of many mounts a few watch the pulses, and others when those have died all at
// once. What the dead have locked is free then.
func TestFewKeepWatch(t *testing.T) {
	t.Parallel()
	const mounts, ttl = 2*kubelease.Keepers + 1, 3 * time.Second
	name, clock := newName(), &pace{}
	var backends []*kubelease.Backend
	sessions := make(map[*kubelease.Backend]lockmgr.Session)
	stops := make(map[*kubelease.Backend]func())
	for range mounts {
		b := newBackend(t, name, clock.by)
		backends = append(backends, b)
		sessions[b] = openFor(t, b, ttl)
		stops[b] = clock.renewOne(t, mounts, sessions[b], ttl/5)
	}
	few := func() (keep, rest []*kubelease.Backend) {
		for _, b := range backends {
			if kubelease.Keeps(b) {
				keep = append(keep, b)
			} else {
				rest = append(rest, b)
			}
		}
		return keep, rest
	}
	var keep, rest []*kubelease.Backend
	eventually(t, "as many keep watch as should", func() bool {
		keep, rest = few()
		return len(keep) == kubelease.Keepers
	})
	k := file("f")
	must(t, sessions[keep[0]], lockmgr.NoWait, k)
	for _, b := range keep {
		stops[b]()
		b.Close() // without a word to the server
	}
	backends = rest
	must(t, sessions[rest[0]], lockmgr.Queue, k)
	eventually(t, "all that died have ended", func() bool { return len(names(t, name, "session")) == len(rest) })
	eventually(t, "as many keep watch as should", func() bool { keep, _ = few(); return len(keep) == kubelease.Keepers })
	if n := len(names(t, name, "pulse")); n != len(rest) {
		t.Errorf("%d pulses of %d sessions", n, len(rest))
	}
}

// keepsWatch returns when b is a keeper by s, and has all that this takes: a mount without
// a session keeps watch as well, until it has one.
func keepsWatch(t *testing.T, b *kubelease.Backend, s lockmgr.Session) {
	t.Helper()
	session := strings.Replace(pulse(t, s), "-pulse-", "-session-", 1)
	eventually(t, "it keeps watch", func() bool {
		lease, err := raw(t).Get(t.Context(), session, metav1.GetOptions{})
		return err == nil && lease.Spec.RenewTime != nil && kubelease.Connected(b) && kubelease.Keeps(b)
	})
}

// A session's end deletes its pulse first. If that is all that was done, the keepers do the rest.
func TestHalfOfAnEnd(t *testing.T) {
	t.Parallel()
	name := newName()
	dead, b := open(t, newBackend(t, name)), newBackend(t, name)
	s := open(t, b)
	must(t, dead, lockmgr.NoWait, file("f"))
	keepsWatch(t, b, s)
	if err := raw(t).Delete(t.Context(), pulse(t, dead), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Renew(within(t, patience)); err != nil { // the watch of the pulses has something to show
		t.Fatal(err)
	}
	must(t, s, lockmgr.Queue, file("f"))
	if err := dead.Renew(within(t, patience)); !errors.Is(err, lockmgr.ErrSessionLost) {
		t.Errorf("Renew: %v", err)
	}
}

// A pulse without a session, of a mount that died while it opened one, goes as well.
func TestOrphanedPulse(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	name, clock := newName(), &pace{}
	died, lives := openFor(t, newBackend(t, name, clock.by), ttl), openFor(t, newBackend(t, name, clock.by), ttl)
	session := strings.Replace(pulse(t, died), "-pulse-", "-session-", 1)
	if err := raw(t).Delete(t.Context(), session, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	<-died.Done()
	clock.renew(t, lives, ttl/5)
	eventually(t, "the pulse is gone", func() bool { return len(names(t, name, "pulse")) == 1 })
}

// A session that is deleted without its pulse is lost to its mount, though no watch
// tells it and the pulse can be renewed.
func TestRenewalOfDeletedSession(t *testing.T) {
	t.Parallel()
	l := &link{}
	b := newBackendAt(t, l.to(as(mountUser)), newName())
	s := open(t, b)
	l.obey(func(c *call) fate {
		if c.verb == "watch" || c.verb == "list" {
			return cut
		}
		return passed
	})
	eventually(t, "its watch has ended", func() bool { kubelease.BreakWatch(b); return !kubelease.Connected(b) })
	session := strings.Replace(pulse(t, s), "-pulse-", "-session-", 1)
	if err := raw(t).Delete(t.Context(), session, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a renewal finds it lost", func() bool {
		kubelease.BreakWatch(b) // one may have been on its way
		return errors.Is(s.Renew(within(t, patience)), lockmgr.ErrSessionLost)
	})
}

// pulse is the name of a session's pulse.
func pulse(t *testing.T, s lockmgr.Session) string {
	t.Helper()
	list, err := raw(t).List(t.Context(), metav1.ListOptions{LabelSelector: "lockfs.io/kind=pulse,lockfs.io/session=" + s.ID()})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%d pulses of %s: %v", len(list.Items), s.ID(), err)
	}
	return list.Items[0].Name
}

// A server that asks for less, or is not there for a moment, is not asked for all
// Leases once it is back: the watch goes on.
func TestWatchGoesOn(t *testing.T) {
	t.Parallel()
	name, l := newName(), &link{}
	s1, b2 := open(t, newBackend(t, name)), newBackendAt(t, l.to(as(mountUser)), name)
	s2 := open(t, b2)
	keepsWatch(t, b2, s2)
	lists := l.count("list")
	var watches atomic.Int32
	l.obey(func(c *call) fate {
		if c.verb == "watch" && watches.Add(1) < 6 {
			return busy
		}
		return passed
	})
	g := must(t, s1, lockmgr.NoWait, file("f"))
	l.hangUp()
	release(t, s1, g...)
	eventually(t, "the watches stand", func() bool { return watches.Load() >= 6 && kubelease.Connected(b2) && kubelease.Keeps(b2) })
	if n := l.count("list") - lists; n > 0 {
		t.Errorf("all Leases were read %d times", n)
	}
	release(t, s2, must(t, s2, lockmgr.Queue, file("f"))...) // which may read them, on a slow machine
}

// A mount that only waits, and whose watch shows nothing any more without an end,
// finds that out: of keepers it should hear all the time.
func TestHungWatchOfAWaiter(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	name, clock, l := newName(), &pace{}, &link{}
	var keep []*kubelease.Backend
	var s1 lockmgr.Session
	for range kubelease.Keepers {
		b := newBackend(t, name, clock.by)
		s1 = openFor(t, b, ttl)
		clock.renewOne(t, kubelease.Keepers+1, s1, ttl/5)
		keep = append(keep, b)
	}
	for _, b := range keep {
		eventually(t, "it keeps watch", func() bool { return kubelease.Keeps(b) })
	}
	g := must(t, s1, lockmgr.NoWait, file("f"))
	b := newBackendAt(t, l.to(as(mountUser)), name, clock.by)
	s := openFor(t, b, ttl)
	clock.renewOne(t, kubelease.Keepers+1, s, ttl/5)
	eventually(t, "its watch stands", func() bool { return kubelease.Connected(b) })
	req, waits := request(lockmgr.Queue, file("f")), make(chan struct{})
	req.Waits = func() { close(waits) }
	got := start(within(t, patience), s, req)
	<-waits
	eventually(t, "it is no keeper", func() bool { return !kubelease.Keeps(b) })
	watches, lists := l.count("watch"), l.count("list")
	l.hung.Store(true)
	release(t, s1, g...)
	eventually(t, "it begins another watch", func() bool { return l.count("watch") > watches && l.count("list") > lists })
	l.hung.Store(false)
	if a := await(t, got); a.Err != nil {
		t.Fatal(a.Err)
	}
}

// A keeper whose watch of the pulses shows nothing any more begins another: it knows
// nothing of mounts that began since, and would not see them die.
func TestHungWatchOfAKeeper(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	name, l, own := newName(), &link{}, &link{}
	keeper := newBackendAt(t, l.to(as(mountUser)), name)
	s := openFor(t, keeper, time.Minute)
	renew(t, s, ttl/5)
	keepsWatch(t, keeper, s)
	l.hung.Store(true)
	eventually(t, "its watch of the locks is another", func() bool { return l.count("watch") > 2 })
	l.hung.Store(false)
	eventually(t, "that one stands", func() bool { return kubelease.Connected(keeper) })
	own.obey(func(c *call) fate { // the dead one does not end itself
		if c.verb == "delete" {
			return cut
		}
		return passed
	})
	defer own.mend()
	dead := openFor(t, newBackendAt(t, own.to(as(mountUser)), name), ttl)
	select {
	case <-dead.Done():
	case <-within(t, patience).Done():
		t.Fatal("a session that is not renewed does not end")
	}
}
