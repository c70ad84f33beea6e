package main

import (
	"context"
	"math"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/lockfs/lockfs/internal/longtest"
)

// TestMain makes the test binary the bench's daemon and worker as well.
func TestMain(m *testing.M) {
	program.RunMode()
	os.Setenv("GORACE", "atexit_sleep_ms=0") // of the children: the default is a second each
	os.Exit(m.Run())
}

// Every row runs on the view and on the plain directory, and has numbers. How
// good they are is not a test's business.
func TestEveryRow(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	o, err := parse([]string{"-short", "-time", "20ms", "-systems", "ext4,lockfs", "-dir", t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	res, err := run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]figures)
	for _, f := range res.figures {
		got[f.row.name] = f
	}
	for _, r := range rows {
		if r.needs != "" {
			if _, err := exec.LookPath(r.needs); err != nil {
				continue
			}
		}
		if ratio := got[r.name].ratio("ext4"); !(ratio > 0) || math.IsInf(ratio, 0) {
			t.Errorf("%s: %v, ratio %v", r.name, got[r.name].of, ratio)
		}
	}
	left, err := os.ReadDir(o.dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A run that is interrupted leaves nothing behind.
func TestInterrupted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	o, err := parse([]string{"-short", "-rows", "^seq write 1m", "-time", "1h", "-systems", "lockfs", "-dir", t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := run(ctx, o); err == nil {
		t.Error("an hour in two seconds")
	}
	if left, err := os.ReadDir(o.dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// The systems that are 'lockfs mount' can be measured, and any system can be compared.
func TestMountedAsUsersDo(t *testing.T) {
	longtest.Only(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir, err := os.MkdirTemp("/tmp", "lfs") // short, for the sockets below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	o, err := parse([]string{"-short", "-rows", "^create.4k", "-time", "20ms", "-systems", "kept,etcd,nolock,supervised", "-of", "kept", "-dir", dir})
	if err != nil {
		t.Fatal(err)
	}
	res, err := run(t.Context(), o) // it builds lockfs, which may take minutes
	if err != nil {
		t.Fatal(err)
	}
	for _, system := range o.systems {
		if n := len(res.figures[0].of[system]); n != 1 {
			t.Errorf("%s: %d figures", system, n)
		}
	}
	if _, err := parse([]string{"-systems", "kept", "-of", "etcd"}); err == nil {
		t.Error("ratios of a system that is not measured")
	}
}
