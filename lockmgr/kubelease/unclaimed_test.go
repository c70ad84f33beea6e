package kubelease_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/kubelease"
)

// adopt has a backend continue a session, with all that the former process has claimed.
func adopt(t *testing.T, b *kubelease.Backend, former lockmgr.Session, claims ...lockmgr.Grant) (lockmgr.Session, lockmgr.HandedOn) {
	t.Helper()
	if err := b.Connect(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	next, err := b.AdoptSession(within(t, patience), lockmgr.SessionInfo{Node: "next"}, former.ID(), time.Minute, claims)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(next.(lockmgr.HandedOn).Abandon)
	return next, next.(lockmgr.HandedOn)
}

func removeUnclaimed(t *testing.T, s lockmgr.HandedOn) {
	t.Helper()
	if err := s.RemoveUnclaimed(within(t, patience)); err != nil {
		t.Fatal(err)
	}
}

// What a process has left is removed past the limit of requests, side by side, and by one write for each
// Lease: others wait for it.
func TestUnclaimedAreRemovedAtOnce(t *testing.T) {
	t.Parallel()
	const locks = 24
	name, l := newName(), &link{}
	former := open(t, newBackend(t, name))
	for i := range locks {
		must(t, former, lockmgr.NoWait, file(fmt.Sprint("f", i)))
	}
	former.(lockmgr.HandedOn).Abandon()
	conf := l.to(as(mountUser))
	conf.QPS, conf.Burst = 0.001, 1
	_, next := adopt(t, newBackendAt(t, conf, name), former)
	second := make(chan struct{})
	var writing, moved atomic.Int64
	l.obey(func(c *call) fate {
		if !writes("file", "update")(c) {
			return passed
		}
		switch writing.Add(1) {
		case 1:
			select {
			case <-second:
			case <-within(t, patience).Done():
				t.Error("the second write waits for the first")
			}
		case 2:
			close(second)
		case 3: // somebody has written the Lease meanwhile
			list, err := raw(t).List(t.Context(), metav1.ListOptions{LabelSelector: "lockfs.io/kind=file"})
			if err != nil {
				t.Error(err)
				break
			}
			for _, lease := range list.Items {
				if c.has(lease.Name) {
					lease.Annotations["test"] = "x"
					if _, err := raw(t).Update(t.Context(), &lease, metav1.UpdateOptions{}); err != nil {
						t.Error(err)
					}
					moved.Add(1)
				}
			}
		}
		return passed
	})
	removeUnclaimed(t, next)
	l.mend()
	reads := 0
	for _, c := range l.calls("get") {
		if c.has("-file-") {
			reads++
		}
	}
	if n := writing.Load(); n != locks+1 || reads != 1 || moved.Load() != 1 {
		t.Errorf("%d writes and %d reads of %d Leases, of which %d had changed", n, reads, locks, moved.Load())
	}
	if list := entries(t, name); len(list) != 0 {
		t.Errorf("%d entries are left", len(list))
	}
}

// An entry that nobody claims is in no way of its own mount.
func TestUnclaimedAreInNoWayOfTheirMount(t *testing.T) {
	t.Parallel()
	name := newName()
	former := open(t, newBackend(t, name))
	must(t, former, lockmgr.NoWait, file("d/f"))
	must(t, former, lockmgr.NoWait, file("e/f"))
	former.(lockmgr.HandedOn).Abandon()
	next, _ := adopt(t, newBackend(t, name), former)
	must(t, next, lockmgr.NoWait, file("d/f"))
	must(t, next, lockmgr.NoWait, tree("e"))
	for _, e := range entries(t, name) {
		if e.Key.Path == "d/f" && !e.Held {
			t.Error("others do not see that the mount has the lock")
		}
	}
}

// An entry by the id of a request that another process has begun is put anew: a write that removes it
// may be on its way.
func TestEntryOfADeadProcessIsPutAnew(t *testing.T) {
	t.Parallel()
	name := newName()
	former := open(t, newBackend(t, name))
	req := request(lockmgr.NoWait, file("f"))
	had, err := former.Acquire(within(t, patience), req)
	if err != nil {
		t.Fatal(err)
	}
	former.(lockmgr.HandedOn).Abandon()
	next, _ := adopt(t, newBackend(t, name), former)
	got, err := next.Acquire(within(t, patience), req)
	if err != nil || got[0].Token <= had[0].Token {
		t.Errorf("%v, %v; the former process had %v", got, err, had)
	}
	if list := entries(t, name); len(list) != 1 || list[0].Token != got[0].Token {
		t.Errorf("entries %v, want one with token %d", list, got[0].Token)
	}
}
