package kubelease_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/kubelease"
)

// entries are those of the volume, seen by a client without faults.
func entries(t *testing.T, name string) []lockmgr.Entry {
	t.Helper()
	list, err := newBackend(t, name).Entries(within(t, patience), "")
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// An acquisition whose answer is lost is found to be ours, and is there once.
func TestLostAnswer(t *testing.T) {
	for _, verb := range []string{"create", "update"} {
		t.Run(verb, func(t *testing.T) {
			name, l := newName(), &link{}
			s := open(t, newBackendAt(t, l.to(as(mountUser)), name))
			if verb == "update" {
				release(t, s, must(t, s, lockmgr.NoWait, file("f"))...)
			}
			rule, met := first(swallowed, writes("file", verb))
			l.obey(rule)
			g := must(t, s, lockmgr.Queue, file("f"))
			if len(met) != 1 {
				t.Fatal("no answer was lost")
			}
			list := entries(t, name)
			if len(list) != 1 || !list[0].Held || list[0].Holder.AcquisitionID != g[0].AcquisitionID || list[0].Token != g[0].Token {
				t.Fatalf("granted %v, entries %v", g, list)
			}
			release(t, s, g...)
		})
	}
}

// A request that does not wait is told that there was no answer. What it put all the same goes
// away.
func TestLostAnswerOfTry(t *testing.T) {
	t.Parallel()
	name, l := newName(), &link{}
	s := open(t, newBackendAt(t, l.to(as(mountUser)), name))
	rule, _ := first(swallowed, writes("file", "create"))
	l.obey(rule)
	if _, err := s.Acquire(within(t, patience), request(lockmgr.NoWait, file("f"))); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Fatalf("Acquire: %v", err)
	}
	eventually(t, "the entry is gone", func() bool { return len(entries(t, name)) == 0 })
	release(t, s, must(t, s, lockmgr.NoWait, file("f"))...)
}

// A request that arrives after its acquisition was given up changes nothing.
func TestLateRequest(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"create", "update"} {
		t.Run(verb, func(t *testing.T) {
			name, l := newName(), &link{}
			s := open(t, newBackendAt(t, l.to(as(mountUser)), name))
			if verb == "update" {
				release(t, s, must(t, s, lockmgr.NoWait, file("f"))...)
			}
			rule, met := first(late, writes("file", verb))
			l.obey(rule)
			if _, err := s.Acquire(within(t, patience), request(lockmgr.NoWait, file("f"))); !errors.Is(err, lockmgr.ErrUnavailable) {
				t.Fatalf("Acquire: %v", err)
			}
			eventually(t, "the Lease was written in its place", func() bool { return fenced(t, name) })
			(<-met).send(t)
			if list := entries(t, name); len(list) != 0 {
				t.Fatalf("a late request left %v", list)
			}
		})
	}
}

// An acquisition may make two requests void, one after the other, in one Lease that nobody else
// writes meanwhile. Here it gives way to a delegation twice.
func TestTwoLateRequests(t *testing.T) {
	t.Parallel()
	name, l := newName(), &link{}
	s, other := open(t, newBackendAt(t, l.to(as(mountUser)), name)), open(t, newBackend(t, name))
	delegate := request(lockmgr.NoWait, tree("d"))
	delegate.Mode, delegate.Keep = lockmgr.Delegated, true
	sent, fences := make(chan *call, 2), make(chan lockmgr.Grant, 2)
	var stands *lockmgr.Grant // the delegation
	l.obey(func(c *call) fate {
		switch {
		case !writes("file", "create", "update")(c):
			return passed
		case c.has("lockfs.io/fence"):
			fences <- *stands
			stands = nil
			return passed
		case stands != nil: // the mirror is late
			return cut
		}
		delegate.Holder.AcquisitionID = lockmgr.NewAcquisitionID()
		g := acquire(t, other, delegate)
		stands = &g
		sent <- c
		return late
	})
	ctx, cancel := context.WithCancel(within(t, patience))
	defer cancel()
	over := make(chan error, 1)
	go func() {
		_, err := s.Acquire(ctx, request(lockmgr.Queue, file("d/f")))
		over <- err
	}()
	release(t, other, <-fences)
	<-fences
	eventually(t, "it recalls the second delegation", func() bool {
		lease, err := raw(t).Get(within(t, patience), names(t, name, "tree")[0], metav1.GetOptions{})
		return err == nil && lease.Annotations["lockfs.io/recalls"] != ""
	})
	cancel()
	if err := <-over; err == nil {
		t.Fatal("acquired")
	}
	for range 2 {
		(<-sent).send(t)
	}
	if slices.ContainsFunc(entries(t, name), func(e lockmgr.Entry) bool { return e.Key == file("d/f") }) {
		t.Error("a late request left an entry")
	}
}

func fenced(t *testing.T, volume string) bool {
	t.Helper()
	list, err := raw(t).List(within(t, patience), metav1.ListOptions{LabelSelector: "lockfs.io/kind=file"})
	if err != nil {
		t.Fatal(err)
	}
	for _, lease := range list.Items {
		if lease.Annotations["lockfs.io/volume-name"] == "test/"+volume && lease.Annotations["lockfs.io/fence"] != "" {
			return true
		}
	}
	return false
}

// What a dead session's request puts late keeps nobody out.
func TestLateRequestOfDeadSession(t *testing.T) {
	t.Parallel()
	name, l := newName(), &link{}
	dying := open(t, newBackendAt(t, l.to(as(mountUser)), name))
	next := open(t, newBackend(t, name))
	rule, met := first(late, writes("file", "create"))
	l.obey(func(c *call) fate {
		if f := rule(c); f != passed {
			return f
		}
		if c.verb == "watch" {
			return passed
		}
		return cut // nor does it get to clean up
	})
	if _, err := dying.Acquire(within(t, patience), request(lockmgr.NoWait, file("f"))); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Fatalf("Acquire: %v", err)
	}
	expire(t, dying)
	(<-met).send(t)
	if list := entries(t, name); len(list) != 0 {
		t.Fatalf("a dead session has %v", list)
	}
	eventually(t, "the lock can be had", func() bool {
		g, err := next.Acquire(within(t, patience), request(lockmgr.NoWait, file("f")))
		if err == nil {
			release(t, next, g...)
		}
		return err == nil
	})
	l.mend()
}

// A release whose answer was lost is repeated, and finds nothing.
func TestLostAnswerOfRelease(t *testing.T) {
	name, l := newName(), &link{}
	s := open(t, newBackendAt(t, l.to(as(mountUser)), name))
	g := must(t, s, lockmgr.NoWait, file("f"))[0]
	rule, _ := first(swallowed, writes("file", "update"))
	l.obey(rule)
	if err := s.Release(within(t, patience), g); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Fatalf("Release: %v", err)
	}
	// If the watch has not shown that the entry is gone, a request is sent.
	if err := s.Release(within(t, patience), g); err != nil && !errors.Is(err, lockmgr.ErrNotHeld) {
		t.Fatalf("again: %v", err)
	}
}

// A release that a proxy sends twice is made, and told so. Another mount may have the lock by then.
func TestReleaseSentTwice(t *testing.T) {
	t.Parallel()
	for _, overtaken := range []bool{false, true} {
		name, l := newName(), &link{}
		s, other := open(t, newBackendAt(t, l.to(as(mountUser)), name)), open(t, newBackend(t, name))
		g := must(t, s, lockmgr.NoWait, file("f"))[0]
		rule, met := first(repeated, writes("file", "update"))
		var overtake sync.Once
		l.obey(func(c *call) fate {
			if overtaken && c.verb == "get" && len(met) > 0 {
				overtake.Do(func() { must(t, other, lockmgr.Queue, file("f")) })
			}
			return rule(c)
		})
		if err := s.Release(within(t, patience), g); err != nil || len(met) != 1 {
			t.Fatalf("overtaken %v: Release: %v; %d sent twice", overtaken, err, len(met))
		}
		if err := s.Release(within(t, patience), g); !errors.Is(err, lockmgr.ErrNotHeld) {
			t.Fatalf("overtaken %v: again: %v", overtaken, err)
		}
	}
}

// A renewal whose answer was lost does not keep the next from succeeding; one
// that comes after the session's end does not bring it back.
func TestRenewals(t *testing.T) {
	t.Parallel()
	name, l := newName(), &link{}
	s := open(t, newBackendAt(t, l.to(as(mountUser)), name))
	rule, _ := first(swallowed, writes("pulse", "update"))
	l.obey(rule)
	if err := s.Renew(within(t, patience)); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Fatalf("Renew: %v", err)
	}
	for range 3 {
		if err := s.Renew(within(t, patience)); err != nil {
			t.Fatalf("Renew: %v", err)
		}
	}
	rule, met := first(late, writes("pulse", "update"))
	l.obey(rule)
	if err := s.Renew(within(t, patience)); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Fatalf("Renew: %v", err)
	}
	expire(t, s)
	(<-met).send(t)
	if err := s.Renew(within(t, patience)); !errors.Is(err, lockmgr.ErrSessionLost) {
		t.Fatalf("Renew: %v", err)
	}
	sessions, err := newBackend(t, name).Sessions(within(t, patience))
	if err != nil || len(sessions) != 0 {
		t.Fatalf("sessions after the end: %v, %v", sessions, err)
	}
}

// A watch that ends, and cannot go on where it was, misses nothing.
func TestWatchExpires(t *testing.T) {
	t.Parallel()
	name, l := newName(), &link{}
	s1, b2 := open(t, newBackend(t, name)), newBackendAt(t, l.to(as(mountUser)), name)
	s2 := open(t, b2)
	g := must(t, s1, lockmgr.NoWait, file("f"))
	got := make(chan error, 1)
	waits := make(chan struct{})
	req := request(lockmgr.Queue, file("f"))
	req.Waits = func() { close(waits) }
	go func() { _, err := s2.Acquire(within(t, patience), req); got <- err }()
	<-waits
	l.obey(func(c *call) fate {
		if c.verb == "watch" {
			return gone
		}
		return passed
	})
	watches := l.count("watch")
	for !kubelease.BreakWatch(b2) { // it had not begun yet
	}
	eventually(t, "the watch is refused", func() bool { return l.count("watch") > watches+1 })
	release(t, s1, g...)
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	l.mend()
	release(t, s1, must(t, s1, lockmgr.NoWait, file("g"))...)
	eventually(t, "the watch stands", func() bool { return kubelease.Connected(b2) })
}

// Without a watch all works as well, by reading.
func TestWithoutWatch(t *testing.T) {
	t.Parallel()
	name, l := newName(), &link{}
	s1, b2 := open(t, newBackend(t, name)), newBackendAt(t, l.to(as(mountUser)), name)
	s2 := open(t, b2)
	l.obey(func(c *call) fate {
		if c.verb == "watch" {
			return cut
		}
		return passed
	})
	kubelease.BreakWatch(b2)
	for range 3 {
		g := must(t, s1, lockmgr.NoWait, tree("d"))
		_, err := s2.Acquire(within(t, patience), request(lockmgr.NoWait, file("d/f")))
		if !errors.Is(err, lockmgr.ErrContended) {
			t.Fatalf("below a directory that is held: %v", err)
		}
		release(t, s1, g...)
		g = must(t, s2, lockmgr.NoWait, file("d/f"))
		if _, err = s1.Acquire(within(t, patience), request(lockmgr.NoWait, tree("d"))); !errors.Is(err, lockmgr.ErrContended) {
			t.Fatalf("above a file that is held: %v", err)
		}
		release(t, s2, g...)
	}
}

// The API server dies and comes back: holders still hold, and waiters still wait.
func TestServerRestart(t *testing.T) {
	if !kube.Own() {
		t.Skip("the API server is not ours to kill")
	}
	name := newName()
	s1, s2 := open(t, newBackend(t, name)), open(t, newBackend(t, name))
	g := must(t, s1, lockmgr.NoWait, file("f"))
	got := make(chan error, 1)
	waits := make(chan struct{})
	req := request(lockmgr.Queue, file("f"))
	req.Waits = func() { close(waits) }
	go func() { _, err := s2.Acquire(t.Context(), req); got <- err }()
	<-waits
	kube.Kill()
	if _, err := s1.Acquire(within(t, patience), request(lockmgr.NoWait, file("g"))); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Errorf("Acquire from nobody: %v", err)
	}
	if err := s1.Renew(within(t, patience)); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Errorf("Renew by nobody: %v", err)
	}
	if err := kube.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a renewal succeeds", func() bool { return s1.Renew(within(t, patience)) == nil })
	held, err := s1.Held(within(t, patience), g)
	if err != nil || !held[0] {
		t.Fatalf("Held: %v, %v", held, err)
	}
	release(t, s1, g...)
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

// A renewal that is answered by an etcd which was restored ends the session, though
// it knows that: the locks it may not.
func TestRenewalOfAnotherEra(t *testing.T) {
	b := newBackend(t, newName())
	s := open(t, b)
	kubelease.SeeMore(b)
	if err := s.Renew(within(t, patience)); !errors.Is(err, lockmgr.ErrSessionLost) {
		t.Errorf("Renew: %v", err)
	}
	<-s.Done()
	again := open(t, b)
	release(t, again, must(t, again, lockmgr.NoWait, file("f"))...)
}

// A store that was restored may count on from a revision that nobody has seen. What
// it has of a Lease is older than what was seen all the same.
func TestRestoredAndBumped(t *testing.T) {
	t.Parallel()
	t.Run("a reading", func(t *testing.T) {
		l := &link{}
		b := newBackendAt(t, l.to(as(mountUser)), newName())
		s := open(t, b)
		must(t, s, lockmgr.Queue, file("f"))
		must(t, s, lockmgr.Queue, file("g"))
		kubelease.SeeLater(b, file("f"))
		behind, _ := first(gone, func(c *call) bool { return c.verb == "watch" })
		l.obey(behind)
		for !kubelease.BreakWatch(b) { // it had not begun yet
		}
		select {
		case <-s.Done():
		case <-within(t, patience).Done():
			t.Fatal("the session goes on")
		}
	})
	t.Run("a renewal", func(t *testing.T) {
		s := open(t, newBackend(t, newName()))
		must(t, s, lockmgr.Queue, file("f"))
		kubelease.RenewedLater(s)
		if err := s.Renew(within(t, patience)); !errors.Is(err, lockmgr.ErrSessionLost) {
			t.Errorf("Renew: %v", err)
		}
		<-s.Done()
	})
}

// What a proxy sends again the server refuses, for it has it. A session that was
// opened so is worth another try.
func TestSessionIsOpenedTwice(t *testing.T) {
	for _, kind := range []string{"pulse", "session"} {
		t.Run(kind, func(t *testing.T) {
			l := &link{}
			b := newBackendAt(t, l.to(as(mountUser)), newName())
			twice, met := first(repeated, writes(kind, "create"))
			l.obey(twice)
			if _, err := b.OpenSession(within(t, patience), lockmgr.SessionInfo{}, time.Minute); !errors.Is(err, lockmgr.ErrUnavailable) {
				t.Errorf("OpenSession: %v", err)
			}
			<-met
			open(t, b)
			if found, err := b.Sessions(within(t, patience)); err != nil || len(found) != 1 {
				t.Errorf("there are %v, %v", found, err)
			}
		})
	}
}

// A session that has ended, which the watch does not tell, locks nothing.
func TestTryOnEndedSession(t *testing.T) {
	l := &link{}
	b := newBackendAt(t, l.to(as(mountUser)), newName())
	s := open(t, b)
	l.obey(func(c *call) fate {
		if c.verb == "watch" {
			return cut
		}
		return passed
	})
	kubelease.BreakWatch(b)
	expire(t, s)
	if _, err := s.Acquire(within(t, patience), request(lockmgr.NoWait, file("f"))); !errors.Is(err, lockmgr.ErrSessionLost) {
		t.Errorf("Acquire: %v", err)
	}
}

// What a mount's own request has left, which was not answered, keeps the mount's next
// out neither while it is being removed, nor after, on whichever of its sessions.
func TestOwnLeftoverKeepsNobodyOut(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]lockmgr.Wait{"a try": lockmgr.NoWait, "a wait": lockmgr.Queue} {
		for what, test := range map[string]struct {
			kind    string
			key     lockmgr.Key
			another bool // session
		}{
			"file":                     {"file", file("d/f"), false},
			"tree":                     {"tree", tree("d"), false},
			"file, on another session": {"file", file("d/f"), true},
			"tree, on another session": {"tree", tree("d"), true},
		} {
			t.Run(name+" after a "+what, func(t *testing.T) {
				t.Parallel()
				volume, l := newName(), &link{}
				b := newBackendAt(t, l.to(as(mountUser)), volume)
				s := open(t, b)
				next := s
				if test.another {
					next = open(t, b)
				}
				again := request(wait, file("d/f"))
				lost, met := first(swallowed, writes(test.kind, "create"))
				l.obey(func(c *call) fate {
					if f := lost(c); f != passed {
						return f
					}
					if c.verb == "update" && !c.has(again.Holder.AcquisitionID.String()) {
						return cut // what would remove it
					}
					return passed
				})
				if _, err := s.Acquire(within(t, patience), request(lockmgr.NoWait, test.key)); !errors.Is(err, lockmgr.ErrUnavailable) {
					t.Fatalf("Acquire: %v", err)
				}
				<-met
				if list := entries(t, volume); len(list) != 1 {
					t.Fatalf("nothing was left: %v", list)
				}
				g, err := next.Acquire(within(t, patience), again)
				if err != nil {
					t.Fatalf("Acquire again: %v", err)
				}
				l.mend()
				eventually(t, "what was left is gone", func() bool { return len(entries(t, volume)) == 1 })
				if held, err := next.Held(within(t, patience), g); err != nil || !held[0] {
					t.Fatalf("Held: %v, %v", held, err)
				}
			})
		}
	}
}

// What a session holds is read at once, though the locks' requests have used up what
// they may send: writes wait for that.
func TestHeldIsNotLimited(t *testing.T) {
	t.Parallel()
	conf := as(mountUser)
	conf.QPS, conf.Burst = 0.001, 10
	s := open(t, newBackendAt(t, conf, newName()))
	g := must(t, s, lockmgr.NoWait, file("f"))
	for {
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := s.Acquire(short, request(lockmgr.NoWait, file("g"+uuid.NewString())))
		cancel()
		if err != nil {
			break // no more may be sent
		}
	}
	if held, err := s.Held(within(t, patience), g); err != nil || !held[0] {
		t.Fatalf("Held: %v, %v", held, err)
	}
}

// Without a watch, each question for the holder of a file is a read.
func TestRivalsWithoutWatch(t *testing.T) {
	t.Parallel()
	name, l := newName(), &link{}
	other, b := open(t, newBackend(t, name)), newBackendAt(t, l.to(as(mountUser)), name)
	open(t, b)
	eventually(t, "its watch stands", func() bool { return kubelease.Connected(b) })
	l.obey(func(c *call) fate {
		if c.verb == "watch" || c.verb == "list" {
			return cut
		}
		return passed
	})
	eventually(t, "its watch has ended", func() bool { kubelease.BreakWatch(b); return !kubelease.Connected(b) })
	for range 8 {
		g := must(t, other, lockmgr.NoWait, file("f"))[0]
		list, err := b.Rivals(within(t, patience), file("f"))
		if err != nil || len(list) != 1 || list[0].Token != g.Token {
			t.Fatalf("Rivals: %v, %v, want token %d", list, err, g.Token)
		}
		release(t, other, g)
	}
}
