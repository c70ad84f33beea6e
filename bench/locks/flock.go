package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/bench/internal/report"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/advisory"
	"github.com/lockfs/lockfs/policy"
)

// flockRows are of the locks of flock(2) and fcntl(2) with --flock cluster.
func flockRows() []row {
	rows := []row{{
		name: "flock, a pair", nodes: 1, view: true, systems: []string{"kernel", "local", "rule", "lockfs"},
		lines: []line{
			{name: "flock", unit: micros, targets: []report.Target{report.Most("local", 1.2)}},
			{name: "fcntl", unit: micros, targets: []report.Target{report.Most("local", 1.2)}},
		},
		measure: pairs,
	}}
	for _, waiters := range []int{1, 16} {
		rows = append(rows, row{
			name: "flock, handoff, " + count(waiters, "waiter"), nodes: 1, systems: []string{"mutex", "lockfs"}, rounds: 5,
			lines: []line{{name: "p50", unit: millis}, {name: "p99", unit: millis}},
			measure: func(ctx context.Context, b *bench, c *cluster, system string) ([]float64, error) {
				if system == "lockfs" {
					system = "flock"
				}
				return handoffs(waiters)(ctx, b, c, system)
			},
		})
	}
	return rows
}

// pairs measures lock and unlock of a file that nobody else has locked, by system calls.
func pairs(ctx context.Context, b *bench, c *cluster, system string) (_ []float64, err error) {
	dir := c.dir
	if system != "kernel" {
		flock, rules := policy.FlockCluster, ""
		switch system {
		case "local":
			flock = policy.FlockLocal
		case "rule":
			rules = "** lock flock=local"
		}
		var end func() error
		if dir, end, err = startView(ctx, c, flock, rules); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, end()) }()
	}
	file, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	fd := int(file.Fd())
	byte := func(kind int16) *unix.Flock_t { return &unix.Flock_t{Type: kind, Start: 7, Len: 1} }
	var took []float64
	for _, pair := range []struct{ lock, unlock func() error }{
		{func() error { return unix.Flock(fd, unix.LOCK_EX) }, func() error { return unix.Flock(fd, unix.LOCK_UN) }},
		{
			func() error { return unix.FcntlFlock(uintptr(fd), unix.F_SETLKW, byte(unix.F_WRLCK)) },
			func() error { return unix.FcntlFlock(uintptr(fd), unix.F_SETLKW, byte(unix.F_UNLCK)) },
		},
	} {
		one := func() error {
			if err := pair.lock(); err != nil {
				return fmt.Errorf("lock: %w", err)
			}
			return pair.unlock()
		}
		if err := one(); err != nil { // the table becomes private
			return nil, err
		}
		n, began := 0, time.Now()
		for ; n == 0 || time.Since(began) < b.opts.each; n++ {
			if err := one(); err != nil {
				return nil, err
			}
		}
		took = append(took, us(time.Since(began))/float64(n))
	}
	return took, nil
}

// flocks lock as a view does for flock(2), but are asked without the kernel. Their tables are never
// private.
type flocks struct {
	*manager
	advisory *lockmgr.Advisory
}

func newFlocks(m *manager) (*flocks, error) {
	a, err := m.NewAdvisory(lockmgr.AdvisoryConfig{OnLost: func(*lockmgr.AdvisoryTable) {}})
	return &flocks{m, a}, err
}

func (f *flocks) lock(ctx context.Context, _ string) (func(context.Context) error, error) {
	key, err := lockmgr.InodeKey("", 7)
	if err != nil {
		return nil, err
	}
	t := f.advisory.Open(key, nil)
	l := advisory.Lock{
		Owner: f.advisory.Owner(advisory.Flock, 1), End: advisory.EOF, Exclusive: true,
		PID: os.Getpid(), Comm: "locks", Since: time.Now(),
	}
	if _, err := t.Lock(ctx, l, true); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		t.Unlock(ctx.Done(), l.Owner, l.Start, l.End)
		t.Close()
		return nil
	}, nil
}
