package main

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/lockfs/lockfs/bench/internal/report"
	"github.com/lockfs/lockfs/internal/kubetest"
	"github.com/lockfs/lockfs/internal/longtest"
)

// TestMain makes the test binary a member of etcd and a holder as well.
func TestMain(m *testing.M) {
	program.RunMode()
	os.Exit(m.Run())
}

func parsed(t *testing.T, args ...string) options {
	t.Helper()
	o, err := parse(append([]string{"-short", "-dir", t.TempDir()}, args...))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func nothingLeft(t *testing.T, o options) {
	t.Helper()
	if left, err := os.ReadDir(o.dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// Every kind of row has a number for every system that is there: Kubernetes needs an API server.
// How good they are is not a test's business.
func TestRows(t *testing.T) {
	longtest.Only(t)
	o := parsed(t, "-time", "20ms", "-handoffs", "3", "-held", "100ms",
		"-rows", "cycle, . nodes?, [18] caller|handoff, . nodes?, 2 w|recall|ping-pong|kept, 5|takeover|held, 100 l|flock|Leases, .*, [12] ")
	res, err := run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]figures)
	for _, f := range res.figures {
		got[f.name()] = f
	}
	if !slices.Contains(res.systems, kubernetes) {
		if _, err := kubetest.Start(); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v, though there is an API server: %v", res.notes, err)
		}
	}
	for _, r := range o.rows {
		if r.view && mounts() != nil {
			continue
		}
		for _, l := range r.lines {
			f := figures{row: r.name, line: l}
			for _, s := range r.systems {
				if !slices.Contains(res.systems, s) {
					continue
				}
				v := report.Median(got[f.name()].of[s])
				// What held locks cost is a difference.
				if math.IsNaN(v) || math.IsInf(v, 0) || v <= 0 && l.unit != percent {
					t.Errorf("%s of %s: %v", f.name(), s, v)
				}
			}
		}
	}
	nothingLeft(t, o)
}

// A run that is interrupted leaves nothing behind.
func TestInterrupted(t *testing.T) {
	o := parsed(t, "-rows", "cycle, 3 nodes, 64", "-time", "1h")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := run(ctx, o); err == nil {
		t.Error("an hour in three seconds")
	}
	nothingLeft(t, o)
}
