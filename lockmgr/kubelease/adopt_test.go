package kubelease_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/kubelease"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
)

func TestAdoption(t *testing.T) {
	t.Parallel()
	lockmgrtest.Adoption(t, func(t *testing.T) func() lockmgr.Backend {
		name := newName()
		return func() lockmgr.Backend { return newBackend(t, name) }
	})
}

// A session whose grants are of a later revision than there is, is not adopted: the store was set
// back, and may have granted the same again.
func TestAdoptedAfterASetback(t *testing.T) {
	t.Parallel()
	name := newName()
	former := open(t, newBackend(t, name))
	later := lockmgr.Grant{Key: file("f"), Token: 1 << 40}
	_, err := newBackend(t, name).AdoptSession(within(t, patience), lockmgr.SessionInfo{}, former.ID(), time.Minute, []lockmgr.Grant{later})
	if !errors.Is(err, lockmgr.ErrSessionLost) {
		t.Error(err)
	}
}

// An entry that goes between the former process's last look and the first of the next one is missed.
func TestAdoptedLockIsGone(t *testing.T) {
	t.Parallel()
	name := newName()
	former := open(t, newBackend(t, name))
	g := must(t, former, lockmgr.NoWait, file("f"))
	removeEntry(t, nil, g[0].Key, g[0].Mode, g[0].AcquisitionID)
	next, err := newBackend(t, name).AdoptSession(within(t, patience), lockmgr.SessionInfo{}, former.ID(), time.Minute, g)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(next.(lockmgr.HandedOn).Abandon)
	ctx, cancel := context.WithTimeout(t.Context(), missedWithin)
	defer cancel()
	lost := false
	next.Watch(ctx, func() []lockmgr.Grant { return g }, func(lockmgr.Grant) { lost = true; cancel() })
	if !lost {
		t.Error("nobody has missed it")
	}
}

// missedWithin is less than it takes to look again although nothing was told.
const missedWithin = 20 * time.Second

// What was sent and not answered is void once the locks are frozen: it can arrive whenever it likes.
func TestFreezeVoidsWhatIsLate(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"create", "update"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			name, l := newName(), &link{}
			b := newBackendAt(t, l.to(as(mountUser)), name)
			s := open(t, b)
			if verb == "update" {
				release(t, s, must(t, s, lockmgr.NoWait, file("f"))...)
			}
			rule, met := first(late, writes("file", verb))
			var lost, tried atomic.Bool
			cleansUp := make(chan struct{})
			l.obey(func(c *call) fate {
				f := rule(c)
				if f == late {
					lost.Store(true)
				}
				// The acquisition must not clean up by itself.
				if lost.Load() && c.verb == "get" && c.has("-file-") && tried.CompareAndSwap(false, true) {
					close(cleansUp)
					return cut
				}
				return f
			})
			if _, err := s.Acquire(within(t, patience), request(lockmgr.NoWait, file("f"))); !errors.Is(err, lockmgr.ErrUnavailable) {
				t.Fatalf("a try without an answer: %v", err)
			}
			<-cleansUp
			thaw, err := b.Freeze(within(t, patience))
			if err != nil {
				t.Fatal(err)
			}
			defer thaw()
			(<-met).send(t)
			if list := entries(t, name); len(list) != 0 {
				t.Errorf("a late request has put %v", list)
			}
		})
	}
}

// A session that is opened while the locks are handed on is given up with its caller. A daemon that
// had lost its session at that moment did not end.
func TestSessionIsNotOpenedWhileFrozen(t *testing.T) {
	t.Parallel()
	b := newBackend(t, newName(), func(c *kubelease.Config) { c.RequestTimeout = time.Second })
	if err := b.Connect(within(t, patience)); err != nil { // and so it watches
		t.Fatal(err)
	}
	thaw, err := b.Freeze(within(t, patience))
	if err != nil {
		t.Fatal(err)
	}
	defer thaw()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	returned := make(chan error, 1)
	go func() {
		_, err := b.OpenSession(ctx, lockmgr.SessionInfo{Node: "n"}, time.Minute)
		returned <- err
	}()
	select {
	case err := <-returned:
		if !errors.Is(err, lockmgr.ErrUnavailable) {
			t.Errorf("%v, want ErrUnavailable", err)
		}
	case <-within(t, patience).Done():
		t.Fatal("it does not return")
	}
}
