package kubelease_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
)

// The first record stands; what comes later is told of it.
func TestVolumeRecord(t *testing.T) {
	name, l := newName(), &link{}
	b := newBackendAt(t, l.to(as(mountUser)), name)
	rule, _ := first(swallowed, writes("volume", "create"))
	l.obey(rule)
	mustRecord(t, b, "one", "one")
	mustRecord(t, b, "two", "one")
	mustRecord(t, newBackend(t, name), "two", "one")
}

// The record is replaced only while nobody has the volume mounted, and whatever
// answer is lost.
func TestReplaceVolumeRecord(t *testing.T) {
	t.Parallel()
	name, l := newName(), &link{}
	b, other := newBackendAt(t, l.to(as(mountUser)), name), newBackend(t, name)
	mustRecord(t, b, "old", "old")
	mustRecord(t, other, "old", "old")

	s, err := other.OpenSession(within(t, patience), lockmgr.SessionInfo{Node: "n1", Mountpoint: "/mnt/n1"}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	renew(t, s, 100*time.Millisecond)
	err = b.ReplaceVolumeRecord(within(t, patience), []byte("old"), []byte("new"), "")
	if inUse := new(*lockmgr.VolumeInUseError); !errors.As(err, inUse) || !strings.Contains(err.Error(), "/mnt/n1 on n1") {
		t.Errorf("while it is mounted: %v", err)
	}
	mustRecord(t, b, "old", "old")
	if err := openErr(t, other); err != nil {
		t.Errorf("a session after the attempt: %v", err)
	}
}

// Whatever answer is lost, the record is replaced once.
func TestReplaceVolumeRecordUnanswered(t *testing.T) {
	for n := range 2 { // the mark, the record
		name, l := newName(), &link{}
		b := newBackendAt(t, l.to(as(mountUser)), name)
		mustRecord(t, b, "old", "old")
		seen := 0
		l.obey(func(c *call) fate {
			if writes("volume", "update")(c) {
				if seen++; seen == n+1 {
					return swallowed
				}
			}
			return passed
		})
		if err := b.ReplaceVolumeRecord(within(t, patience), []byte("old"), []byte("new"), ""); err != nil {
			t.Error(err)
		}
		if err := b.ReplaceVolumeRecord(within(t, patience), []byte("old"), []byte("third"), ""); !errors.Is(err, lockmgr.ErrVolumeChanged) {
			t.Errorf("with an old record: %v", err)
		}
		if err := openErr(t, b); err != nil {
			t.Errorf("session after the change: %v", err)
		}
	}
}

// The session of a mount that has died keeps the record for its TTL only, also if
// nobody else is there.
func TestReplaceVolumeRecordOfDeadMount(t *testing.T) {
	t.Parallel()
	name, clock, l := newName(), &pace{}, &link{}
	const ttl = 2 * time.Second
	dead := newBackend(t, name, clock.by)
	mustRecord(t, dead, "old", "old")
	openFor(t, dead, ttl)
	dead.Close()
	b := newBackendAt(t, l.to(as(mountUser)), name, clock.by)
	replaced := make(chan error, 1)
	replace := func(ctx context.Context) { replaced <- b.ReplaceVolumeRecord(ctx, []byte("old"), []byte("new"), "") }
	ctx, cancel := context.WithCancel(within(t, patience))
	go replace(ctx)
	eventually(t, "the record is marked, and put back", func() bool { return l.count("update") >= 2 })
	read := l.count("list")
	eventually(t, "the session is waited for", func() bool { return l.count("list") >= read+2 })
	cancel()
	if err := <-replaced; !errors.As(err, new(*lockmgr.VolumeInUseError)) {
		t.Fatalf("before it is known to be dead: %v", err)
	}
	go replace(within(t, patience))
	if err := passUntil(t, clock, ttl/5, "the record is replaced", replaced); err != nil {
		t.Fatal(err)
	}
}

// The record changes beside mounts that enforce its next policy too.
func TestRecordChangesAmongThoseWhoEnforceIt(t *testing.T) {
	t.Parallel()
	name := newName()
	lockmgrtest.RecordChangesAmongThoseWhoEnforceIt(t, newBackend(t, name), newBackend(t, name), newBackend(t, name))
}

// No session slips in between the look at the sessions and the new record.
func TestEitherTheRecordOrASession(t *testing.T) {
	t.Parallel()
	name := newName()
	lockmgrtest.EitherTheRecordOrASession(t, newBackend(t, name), newBackend(t, name), true)
}

// A mount that was away while the record changed opens no session, and so
// takes no lock by what it used to be.
func TestNoSessionBesideAnotherRecord(t *testing.T) {
	name := newName()
	lockmgrtest.NoSessionBesideAnotherRecord(t, newBackend(t, name), newBackend(t, name))
}

// While the record is being replaced no session is opened; a mark whose owner has
// died is taken away, and then its owner changes nothing any more.
func TestMarkedRecord(t *testing.T) {
	t.Parallel()
	name, l := newName(), &link{}
	clock := &pace{}
	b, other := newBackendAt(t, l.to(as(mountUser)), name), newBackend(t, name, clock.by)
	mustRecord(t, b, "old", "old")
	mustRecord(t, other, "old", "old")
	ctx, cancel := context.WithCancel(within(t, patience))
	updates := 0
	l.obey(func(c *call) fate {
		if writes("volume", "update")(c) {
			if updates++; updates > 1 {
				cancel()
				return cut
			}
		}
		return passed
	})
	if err := b.ReplaceVolumeRecord(ctx, []byte("old"), []byte("new"), ""); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Fatalf("ReplaceVolumeRecord: %v", err)
	}
	if err := openErr(t, other); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Fatalf("OpenSession beside the mark: %v", err)
	}
	clock.pass(time.Minute)
	eventually(t, "the mark is taken away", func() bool { return openErr(t, other) == nil })
	mustRecord(t, other, "old", "old")
}

// A record that was deleted with everything else is put again by the mounts that
// live.
func TestForgottenRecordIsPutAgain(t *testing.T) {
	name := newName()
	b := newBackend(t, name)
	mustRecord(t, b, "old", "old")
	if err := raw(t).Delete(t.Context(), names(t, name, "volume")[0], metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := openErr(t, b); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Errorf("OpenSession = %v, want ErrUnavailable, to be tried again", err)
	}
	if err := openErr(t, b); err != nil {
		t.Errorf("again: %v", err)
	}
	mustRecord(t, newBackend(t, name), "new", "old")
}
