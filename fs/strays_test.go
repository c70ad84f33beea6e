package fs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lockfs/lockfs/internal/procid"
)

// A request whose server was left behind is not told of signals: it looks for them itself, until
// that server is done.
func TestStraysLookForSignals(t *testing.T) {
	const tid, sigkill, sigusr1 = 7, 1 << 8, 1 << 9
	for name, c := range map[string]struct {
		pending, blocked uint64
		anyAfter         time.Duration
		ends             bool
	}{
		"none":                          {anyAfter: time.Second},
		"SIGKILL":                       {pending: sigkill, ends: true},
		"another, which ends an open":   {pending: sigusr1, anyAfter: time.Second, ends: true},
		"another, which ends no call":   {pending: sigusr1},
		"another, which it has blocked": {pending: sigusr1, blocked: sigusr1, anyAfter: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			proc := t.TempDir()
			status := func(pending, blocked uint64) {
				t.Helper()
				dir := filepath.Join(proc, fmt.Sprint(tid))
				text := fmt.Sprintf("Name:\tx\nState:\tD (disk sleep)\nSigPnd:\t%016x\nShdPnd:\t%016x\nSigBlk:\t%016x\n", 0, pending, blocked)
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, "status"), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			status(c.pending, c.blocked)
			synctest.Test(t, func(t *testing.T) {
				cs := &callers{procs: procid.Proc{Root: proc}}
				never := make(chan struct{})
				ended := func(ctx context.Context) bool {
					time.Sleep(time.Minute)
					return ctx.Err() != nil
				}
				before, stop := cs.interrupted(never, tid, c.anyAfter)
				defer stop()
				if ended(before) {
					t.Error("a request ends that nobody has told of a signal")
				}
				done := make(chan struct{})
				cs.strays.add(done)
				later, stop := cs.interrupted(never, tid, c.anyAfter)
				defer stop()
				if b, l := ended(before), ended(later); b != c.ends || l != c.ends {
					t.Errorf("beside strays, a request from before ends: %t, and a later one: %t; want %t", b, l, c.ends)
				}
				close(done)
				synctest.Wait()
				status(sigkill, 0)
				if none, stop := cs.interrupted(never, tid, c.anyAfter); ended(none) {
					t.Error("when there are no strays any more, a request ends that nobody has told of a signal")
				} else {
					stop()
				}
			})
		})
	}
}

// A page that is written back has no caller, whom a signal could end.
func TestStraysEndNoWriteBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cs := &callers{procs: procid.Proc{Root: t.TempDir()}}
		done := make(chan struct{})
		cs.strays.add(done)
		ctx, stop := cs.interrupted(make(chan struct{}), 0, 0)
		defer stop()
		time.Sleep(time.Minute)
		if ctx.Err() != nil {
			t.Error("its wait has ended")
		}
		close(done)
	})
}

// A request that waits at a gate looks for a SIGKILL too.
func TestStraysAtTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var killed bool
		all := &strays{}
		g := newGate(1, func(*fuse.InHeader) payer { return payer{} }, func(*fuse.InHeader) bool { return killed }, newBudget(backlogSize), slog.New(slog.DiscardHandler))
		g.strays = all
		first, second, kernel := &fuse.InHeader{Unique: 1}, &fuse.InHeader{Unique: 2}, &fuse.InHeader{Unique: 3}
		second.Pid = 7
		if err := g.enter(first, guest{}, nil, nil); err != nil {
			t.Fatal(err)
		}
		result, kernels := make(chan error, 1), make(chan error, 1)
		go func() { result <- g.enter(second, guest{}, make(chan struct{}), nil) }()
		go func() { kernels <- g.enter(kernel, guest{}, make(chan struct{}), nil) }()
		killed = true
		time.Sleep(time.Minute)
		if len(result) > 0 {
			t.Fatal("it ends, and nobody has told it of a signal")
		}
		done := make(chan struct{})
		all.add(done)
		time.Sleep(time.Minute)
		if len(result) != 1 || !errors.Is(<-result, errGivenUp) {
			t.Error("the request of a killed program waits on")
		}
		if len(kernels) > 0 {
			t.Errorf("a page that is written back is refused: %v", <-kernels)
		}
		g.leave(first.Unique)
		synctest.Wait()
		if len(kernels) != 1 || <-kernels != nil {
			t.Error("a page that is written back does not get in")
		}
		close(done)
	})
}
