package etcdlock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
)

// The record is replaced only while nobody has the volume mounted.
func TestReplaceVolumeRecord(t *testing.T) {
	client, kv := flawed(t)
	b, etcd := newVolume(t, client)
	other := newBackend(t, dial(t), etcd.name)
	mustRecord(t, b, "old", "old")
	mustRecord(t, other, "old", "old")

	s, err := other.OpenSession(within(t, patience), lockmgr.SessionInfo{Node: "n1", Mountpoint: "/mnt/n1"}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	err = b.ReplaceVolumeRecord(within(t, patience), []byte("old"), []byte("new"), "")
	if inUse := new(*lockmgr.VolumeInUseError); !errors.As(err, inUse) || !strings.Contains(err.Error(), "/mnt/n1 on n1") {
		t.Errorf("while it is mounted: %v", err)
	}
	mustRecord(t, b, "old", "old")
	if err := s.Close(within(t, patience)); err != nil {
		t.Fatal(err)
	}

	kv.next(lostReply)
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

// The record changes beside mounts that enforce its next policy too.
func TestRecordChangesAmongThoseWhoEnforceIt(t *testing.T) {
	b, etcd := newVolume(t, dial(t))
	lockmgrtest.RecordChangesAmongThoseWhoEnforceIt(t, b, newBackend(t, dial(t), etcd.name), newBackend(t, dial(t), etcd.name))
}

// No session slips in between the look at the sessions and the new record.
func TestEitherTheRecordOrASession(t *testing.T) {
	b, etcd := newVolume(t, dial(t))
	lockmgrtest.EitherTheRecordOrASession(t, b, newBackend(t, dial(t), etcd.name), false)
}

// A mount that was away while the record changed opens no session, and so
// takes no lock by what it used to be.
func TestNoSessionBesideAnotherRecord(t *testing.T) {
	b, etcd := newVolume(t, dial(t))
	lockmgrtest.NoSessionBesideAnotherRecord(t, b, newBackend(t, dial(t), etcd.name))
}

// An etcd that has forgotten everything gets the record back from the mounts
// that live.
func TestForgottenRecordIsPutAgain(t *testing.T) {
	b, etcd := newVolume(t, dial(t))
	mustRecord(t, b, "old", "old")
	if _, err := etcd.Delete(t.Context(), etcd.admin("volume")); err != nil {
		t.Fatal(err)
	}
	if err := openErr(t, b); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Errorf("OpenSession = %v, want ErrUnavailable, to be tried again", err)
	}
	mustRecord(t, b, "old", "old")
	if err := openErr(t, b); err != nil {
		t.Error(err)
	}
}
