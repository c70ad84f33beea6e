package serve

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/lifeline"
	"github.com/lockfs/lockfs/internal/mounts"
	"github.com/lockfs/lockfs/lockmgr"
)

// fakeSessions are the sessions of a lock service.
type fakeSessions map[string]lockmgr.SessionInfo

func (f fakeSessions) Sessions(context.Context) (map[string]lockmgr.SessionInfo, error) {
	return maps.Clone(f), nil
}

func (f fakeSessions) Revoke(_ context.Context, id string) error {
	delete(f, id)
	return nil
}

// lateSessions are those of a lock service where one more becomes known after the
// first look, and which fails to end one.
type lateSessions struct {
	fakeSessions
	late   map[string]lockmgr.SessionInfo
	failed string
}

func (f *lateSessions) Sessions(ctx context.Context) (map[string]lockmgr.SessionInfo, error) {
	defer maps.Copy(f.fakeSessions, f.late)
	return f.fakeSessions.Sessions(ctx)
}

func (f *lateSessions) Revoke(ctx context.Context, id string) error {
	if id == f.failed {
		return lockmgr.ErrUnavailable
	}
	return f.fakeSessions.Revoke(ctx, id)
}

// deadMount returns a state directory with the proof that a mount of source has ended.
func deadMount(t *testing.T) (dir, source string, st unix.Stat_t, line *lifeline.Line) {
	t.Helper()
	dir, source = t.TempDir(), t.TempDir()
	if err := unix.Stat(source, &st); err != nil {
		t.Fatal(err)
	}
	line, err := lifeline.Hold(dir, st.Dev)
	if err != nil {
		t.Fatal(err)
	}
	line.Leave()
	return dir, source, st, line
}

// A mount of many locks has many sessions, and dies with all of them: also with those
// that it opened while somebody looked. Its proof is kept until the last one is ended.
func TestSuccessorEndsAllSessions(t *testing.T) {
	dir, source, st, line := deadMount(t)
	const boot = "this boot"
	info := lockmgr.SessionInfo{BootID: boot, Lifeline: line.ID}
	service := &lateSessions{fakeSessions{"1": info, "2": info, "3": info, "another's": {BootID: boot}}, map[string]lockmgr.SessionInfo{"late": info}, "2"}
	s := &successor{service: service, dir: dir, source: source, dev: st.Dev, bootID: boot, flush: mounts.Sync, log: slog.New(slog.DiscardHandler)}
	s.succeed(t.Context())
	if got := slices.Sorted(maps.Keys(service.fakeSessions)); !slices.Equal(got, []string{"2", "another's"}) {
		t.Errorf("sessions left: %q", got)
	}
	service.late, service.failed = nil, ""
	s.succeed(t.Context())
	if got := slices.Sorted(maps.Keys(service.fakeSessions)); !slices.Equal(got, []string{"another's"}) {
		t.Errorf("sessions left by the next: %q", got)
	}
	if _, err := lifeline.Claim(dir, line.ID); !errors.Is(err, lifeline.ErrUnknown) {
		t.Errorf("the proof is still there: %v", err)
	}
}

// A volume that takes long to sync leaves the sessions of the dead, and leaves the mount half of its
// time: the lock service must still be asked for a session.
func TestSuccessorOnABusyVolume(t *testing.T) {
	dir, source, st, line := deadMount(t)
	const boot = "this boot"
	synctest.Test(t, func(t *testing.T) {
		service, over := fakeSessions{"dead": {BootID: boot, Lifeline: line.ID}}, make(chan struct{})
		busy := func(string) error { <-over; return nil }
		s := &successor{service: service, dir: dir, source: source, dev: st.Dev, bootID: boot, flush: busy, log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithTimeout(t.Context(), StartTimeout)
		defer cancel()
		begin := time.Now()
		s.succeed(ctx)
		if took := time.Since(begin); took != StartTimeout/2 || len(service) != 1 {
			t.Errorf("%v of %v, sessions left: %v", took, StartTimeout, service)
		}
		close(over)
	})
}

// A successor ends the sessions that it can prove dead, and no other.
func TestSuccessorNeedsProof(t *testing.T) {
	dir, source := t.TempDir(), t.TempDir()
	var st unix.Stat_t
	if err := unix.Stat(source, &st); err != nil {
		t.Fatal(err)
	}
	line := func(dev uint64, dead bool) string {
		t.Helper()
		l, err := lifeline.Hold(dir, dev)
		if err != nil {
			t.Fatal(err)
		}
		if dead {
			l.Leave()
		} else {
			t.Cleanup(l.Close)
		}
		return l.ID
	}
	const boot = "this boot"
	service := fakeSessions{
		"dead":                       {BootID: boot, Lifeline: line(st.Dev, true)},
		"alive":                      {BootID: boot, Lifeline: line(st.Dev, false)},
		"dead, of another boot":      {BootID: "another", Lifeline: line(st.Dev, true)},
		"dead, on another device":    {BootID: boot, Lifeline: line(st.Dev+1, true)},
		"of another state directory": {BootID: boot, Lifeline: uuid.NewString()},
		"that names no proof":        {BootID: boot},
	}
	s := &successor{service: service, dir: dir, source: source, dev: st.Dev, bootID: boot, flush: mounts.Sync, log: slog.New(slog.DiscardHandler)}
	s.succeed(t.Context())
	s.succeed(t.Context()) // the proofs that it needs not yet are there for the next
	got := slices.Sorted(maps.Keys(service))
	want := []string{"alive", "dead, of another boot", "dead, on another device", "of another state directory", "that names no proof"}
	if !slices.Equal(got, want) {
		t.Errorf("sessions left: %q, want %q", got, want)
	}
	for id, info := range service {
		_, err := lifeline.Claim(dir, info.Lifeline)
		if dead := id[:4] == "dead"; (err == nil) != dead {
			t.Errorf("the proof of the one %s: %v", id, err)
		}
	}
}
