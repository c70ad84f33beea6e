package lockmgrtest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// Volume is a backend that also keeps its volume's record and names its service: both do.
type Volume interface {
	lockmgr.Backend
	VolumeRecord(ctx context.Context, want []byte) (stored []byte, err error)
	ReplaceVolumeRecord(ctx context.Context, old, want []byte) error
	Service(ctx context.Context) (lockmgr.Service, error)
	FindService(ctx context.Context) (lockmgr.Service, error)
}

// MustRecord puts the record want, unless one stands, and compares the one that stands then.
func MustRecord(t *testing.T, v Volume, want, stands string) {
	t.Helper()
	if got, err := v.VolumeRecord(Within(t, Patience), []byte(want)); err != nil || string(got) != stands {
		t.Fatalf("VolumeRecord(%q): %q, %v; want %q", want, got, err, stands)
	}
}

// OpenErr opens a session and closes it. It returns the error of the open.
func OpenErr(t *testing.T, b lockmgr.Backend) error {
	t.Helper()
	s, err := b.OpenSession(Within(t, Patience), lockmgr.SessionInfo{}, time.Minute)
	if err == nil {
		_ = s.Close(Within(t, Patience))
	}
	return err
}

// ServiceOf is the service of a volume, which gets an id if it has none.
func ServiceOf(t *testing.T, v Volume) lockmgr.Service {
	t.Helper()
	s, err := v.Service(Within(t, Patience))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// FoundService is the service of a volume, without an id if it has none.
func FoundService(t *testing.T, v Volume) lockmgr.Service {
	t.Helper()
	s, err := v.FindService(Within(t, Patience))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// NoSessionBesideAnotherRecord tests two backends of one new volume. One of them is away while the
// record changes. It opens no session afterwards, and so takes no lock by the former record.
func NoSessionBesideAnotherRecord(t *testing.T, v, away Volume) {
	MustRecord(t, v, "old", "old")
	MustRecord(t, away, "old", "old")
	if err := v.ReplaceVolumeRecord(Within(t, Patience), []byte("old"), []byte("new")); err != nil {
		t.Fatal(err)
	}
	if err := OpenErr(t, away); !errors.Is(err, lockmgr.ErrVolumeChanged) {
		t.Errorf("OpenSession = %v, want ErrVolumeChanged", err)
	}
}
