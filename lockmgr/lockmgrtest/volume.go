package lockmgrtest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// Volume is a backend that also keeps its volume's record and names its service: both do.
type Volume interface {
	lockmgr.Backend
	VolumeRecord(ctx context.Context, want []byte, admits func(stored []byte) bool) (stored []byte, err error)
	ReplaceVolumeRecord(ctx context.Context, old, want []byte, policy string) error
	Service(ctx context.Context) (lockmgr.Service, error)
	FindService(ctx context.Context) (lockmgr.Service, error)
}

// MustRecord puts the record want, unless one stands, and compares the one that stands then.
func MustRecord(t *testing.T, v Volume, want, stands string) {
	t.Helper()
	if got, err := v.VolumeRecord(Within(t, Patience), []byte(want), nil); err != nil || string(got) != stands {
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
	if err := v.ReplaceVolumeRecord(Within(t, Patience), []byte("old"), []byte("new"), ""); err != nil {
		t.Fatal(err)
	}
	if err := OpenErr(t, away); !errors.Is(err, lockmgr.ErrVolumeChanged) {
		t.Errorf("OpenSession = %v, want ErrVolumeChanged", err)
	}
}

// RecordChangesAmongThoseWhoEnforceIt tests three backends of one new volume. The record changes beside
// mounts that enforce the next policy, and they open sessions by either record. A mount that does not
// is in the way while it lives, and opens no session afterwards.
func RecordChangesAmongThoseWhoEnforceIt(t *testing.T, v, both, former Volume) {
	MustRecord(t, v, "old", "old")
	asGood := func(stored []byte) bool { return string(stored) == "new" }
	for b, admits := range map[Volume]func([]byte) bool{both: asGood, former: nil} {
		if _, err := b.VolumeRecord(Within(t, Patience), []byte("old"), admits); err != nil {
			t.Fatal(err)
		}
	}
	open := func(b Volume, node string, policies ...string) lockmgr.Session {
		t.Helper()
		s := openAs(t, b, lockmgr.SessionInfo{Node: node, Policies: policies}, time.Minute)
		go renewed(t, s)
		return s
	}
	open(both, "both", "former", "next")
	blocking := open(former, "blocking", "former")
	err := v.ReplaceVolumeRecord(Within(t, Patience), []byte("old"), []byte("new"), "next")
	if inUse := new(lockmgr.VolumeInUseError); !errors.As(err, &inUse) || len(inUse.Sessions) != 1 || inUse.Sessions[0].Node != "blocking" {
		t.Fatalf("ReplaceVolumeRecord beside a mount of the former policy: %v", err)
	}
	if err := OpenErr(t, both); err != nil {
		t.Fatalf("a session of the former record: %v", err)
	}
	if err := blocking.Close(Within(t, Patience)); err != nil {
		t.Fatal(err)
	}
	if err := v.ReplaceVolumeRecord(Within(t, Patience), []byte("old"), []byte("new"), "next"); err != nil {
		t.Fatal(err)
	}
	if err := OpenErr(t, former); !errors.Is(err, lockmgr.ErrVolumeChanged) {
		t.Errorf("a session of the former policy: %v, want ErrVolumeChanged", err)
	}
	err = OpenErr(t, both)
	for errors.Is(err, lockmgr.ErrUnavailable) { // it is tried again
		err = OpenErr(t, both)
	}
	if err != nil {
		t.Errorf("a session that enforces both: %v", err)
	}
	if err := v.ReplaceVolumeRecord(Within(t, Patience), []byte("new"), []byte("other"), ""); !errors.As(err, new(*lockmgr.VolumeInUseError)) {
		t.Errorf("for no policy: %v", err)
	}
}

// renewed renews a session until its end. In Leases, one that is not renewed may be a dead mount's.
func renewed(t *testing.T, s lockmgr.Session) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_ = s.Renew(t.Context())
		case <-s.Done():
			return
		case <-t.Context().Done():
			return
		}
	}
}

// EitherTheRecordOrASession tests two backends of one new volume: while one replaces the record, the other
// opens a session by the former one. Never do both succeed. A mount that enforces the next policy lives,
// so that the sessions have to be read. waits: who replaces waits for a session that nobody renews, as in
// Leases.
func EitherTheRecordOrASession(t *testing.T, v, former Volume, waits bool) {
	record := func(n int) []byte { return fmt.Appendf(nil, "record %d", n) }
	won := map[bool]int{} // the record, or the session
	stands := 0
	MustRecord(t, v, string(record(0)), string(record(0)))
	openAs(t, v, lockmgr.SessionInfo{Policies: []string{"next"}}, time.Hour)
	for n := range 40 {
		MustRecord(t, former, string(record(stands)), string(record(stands)))
		ctx, cancel := context.WithCancel(Within(t, Patience))
		replaced := make(chan error, 1)
		go func() {
			time.Sleep(time.Duration(n%8) * time.Millisecond) // at another moment of the open each time
			replaced <- v.ReplaceVolumeRecord(ctx, record(stands), record(stands+1), "next")
		}()
		var s lockmgr.Session
		err := lockmgr.ErrUnavailable
		for errors.Is(err, lockmgr.ErrUnavailable) && ctx.Err() == nil {
			s, err = former.OpenSession(ctx, lockmgr.SessionInfo{Policies: []string{"former"}}, time.Minute)
		}
		if err == nil && waits {
			cancel()
		}
		replaceErr := <-replaced // what is cut off in etcd could have an effect once the session is closed
		cancel()
		switch {
		case err == nil && replaceErr == nil:
			t.Fatalf("round %d: the record is replaced beside a session by the former one", n)
		case err != nil && !errors.Is(err, lockmgr.ErrVolumeChanged):
			t.Fatalf("round %d: OpenSession: %v", n, err)
		case err != nil && replaceErr != nil:
			t.Fatalf("round %d: neither the record is replaced nor a session opened: %v, %v", n, replaceErr, err)
		case replaceErr == nil:
			stands++
		}
		won[replaceErr == nil]++
		if err == nil {
			if err := s.Close(Within(t, Patience)); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("the record was replaced %d times, a session opened %d times", won[true], won[false])
}
