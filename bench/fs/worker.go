package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// job is what a worker has to do.
type job struct {
	Row    string
	Dir    string // of the system, as programs see it
	Shared string // files outside of all systems
	Sizes  sizes
	Each   time.Duration // how long to measure a rate
	Count  string        // where the kernel's requests are traced, see requests.go; "" if they are not
	Etcd   bool          // the system has its locks in etcd: commits are counted
}

// outcome is a worker's answer.
type outcome struct {
	Figure   float64            // in the row's unit
	Ops      int64              // system calls, or whatever the row counts
	Requests map[string]float64 `json:",omitempty"` // to the daemon, by name: in all
	Commits  int64              // in etcd, see Etcd
}

// work is a row that runs in a worker.
type work struct {
	job
	fuse bool // Dir is on a FUSE file system

	ops, bytes int64
	spent      time.Duration
	began      time.Time
	fresh      atomic.Bool // begun, and more has not run out of time yet
	requests   map[string]float64
	traced     error
	commits    commits
}

// serveWork is the hidden mode that makes the load for one figure.
func serveWork(args []string) error {
	debug.SetGCPercent(-1) // the process ends before it needs to collect
	// Run on the first thread, like a program with one thread: others take lockfs longer to look
	// up.
	runtime.LockOSThread()
	w := &work{}
	if len(args) != 1 {
		return errors.New("want a job")
	}
	if err := json.Unmarshal([]byte(args[0]), &w.job); err != nil {
		return err
	}
	i := slices.IndexFunc(rows, func(r row) bool { return r.name == w.Row })
	if i < 0 {
		return fmt.Errorf("no row %q", w.Row)
	}
	w.fuse = mounted(w.Dir)
	if err := rows[i].work(w); err != nil {
		return err
	}
	if err := errors.Join(w.traced, w.commits.err); err != nil {
		return err
	}
	if w.spent <= 0 || w.ops == 0 {
		return errors.New("nothing was measured")
	}
	out := outcome{Ops: w.ops, Requests: w.requests, Commits: w.commits.sum}
	switch rows[i].unit {
	case seconds:
		out.Figure = w.spent.Seconds()
	case megabytes:
		out.Figure = float64(w.bytes) / 1e6 / w.spent.Seconds()
	default:
		out.Figure = float64(w.ops) / w.spent.Seconds()
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

// begin and end enclose what is measured. They may be called repeatedly.
func (w *work) begin() {
	if w.Count != "" {
		w.traced = errors.Join(w.traced, clearTrace(w.Count))
	}
	if w.Etcd {
		w.commits.begin(w.Dir)
	}
	w.fresh.Store(true)
	w.began = time.Now()
}

func (w *work) end() {
	w.spent += time.Since(w.began)
	if w.Etcd {
		w.commits.end(w.Dir)
	}
	if w.Count != "" {
		if w.requests == nil {
			w.requests = make(map[string]float64)
		}
		w.traced = errors.Join(w.traced, addTraced(w.Count, w.Dir, w.requests))
	}
}

// more reports whether to go on, between begin and end.
func (w *work) more() bool {
	// At least once: on a busy machine the time may be over already.
	return w.spent+time.Since(w.began) < w.Each || w.fresh.CompareAndSwap(true, false)
}

// enough reports whether everything was measured, between end and begin.
func (w *work) enough() bool { return w.spent >= w.Each }

func (w *work) path(name string) string { return filepath.Join(w.Dir, name) }

func (w *work) open(name string, flags int) (int, error) {
	fd, err := unix.Open(w.path(name), flags|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", name, err)
	}
	return fd, nil
}

// drop empties the view's page cache, not the backing's: the view is measured, not the disk.
func (w *work) drop(fd int) error {
	if !w.fuse {
		return nil
	}
	return unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED)
}

func (w *work) scratch(f func(dir string) error) error {
	dir, err := os.MkdirTemp(w.Dir, "scratch")
	if err != nil {
		return err
	}
	return errors.Join(f(dir), os.RemoveAll(dir))
}

// program runs a program; measured says whether its time counts.
func (w *work) program(measured bool, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	if measured {
		w.begin()
		w.ops++
	}
	out, err := cmd.CombinedOutput()
	if measured {
		w.end()
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %.500s", name, err, out)
	}
	return nil
}
