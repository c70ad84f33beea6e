package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/bench/internal/report"
)

type bench struct {
	opts    options
	self    string // this program
	top     string // all files of the run
	tmp     string // the files that are measured, and the mounts
	sizes   sizes
	systems []*system
	notes   []string // on what was skipped
}

func newBench(o options) (*bench, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	top, err := os.MkdirTemp(o.dir, "lockfs-bench")
	if err != nil {
		return nil, err
	}
	b := &bench{opts: o, self: self, top: top, tmp: top, sizes: sizesFor(o.short)}
	if disk, err := newDisk(top); err == nil {
		b.tmp = disk
	} else {
		b.notes = append(b.notes, fmt.Sprintf("'ext4' is whatever %s is on: an ext4 of our own cannot be made: %v", top, err))
	}
	return b, nil
}

// start makes the files, and mounts the systems.
func (b *bench) start(ctx context.Context) error {
	tree := filepath.Join(b.tmp, treeDir)
	if err := b.sizes.plant(tree); err != nil {
		return err
	}
	if err := pack(ctx, b.tmp, tree); err != nil {
		return err
	}
	for _, name := range b.opts.systems {
		s := &system{name: name, backing: filepath.Join(b.tmp, name), dir: filepath.Join(b.tmp, "mnt-"+name)}
		if name == "ext4" {
			s.dir = s.backing
		}
		if err := os.Mkdir(s.backing, 0o755); err != nil {
			return err
		}
		if err := b.sizes.fill(s.backing, tree); err != nil {
			return err
		}
		b.systems = append(b.systems, s)
		err := s.start(ctx, b)
		if errors.Is(err, errMissing) {
			b.notes = append(b.notes, fmt.Sprintf("%s is skipped: it is not installed (apt-get install %[1]s)", name))
			b.systems = b.systems[:len(b.systems)-1]
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// close ends the daemons, and removes the files if nothing is mounted among them.
func (b *bench) close() error {
	var errs []error
	left := false
	for _, s := range b.systems {
		errs = append(errs, s.stop())
		left = left || mounted(s.dir)
	}
	if !left {
		err := removeDisk(b.top)
		errs = append(errs, err)
		left = err != nil
	}
	if left {
		return errors.Join(append(errs, fmt.Errorf("%s is left as it is", b.top))...)
	}
	return errors.Join(append(errs, os.RemoveAll(b.top))...)
}

func (b *bench) measure(ctx context.Context) (*results, error) {
	res := &results{of: b.opts.of, systems: b.systems, notes: b.notes}
	for _, r := range b.opts.rows {
		if r.needs != "" {
			if _, err := exec.LookPath(r.needs); err != nil {
				res.notes = append(res.notes, fmt.Sprintf("%s is skipped: there is no %s", r.name, r.needs))
				continue
			}
		}
		report.Progress(r.name)
		b.settle()
		fig := figures{row: r, of: make(map[string][]float64), commits: make(map[string][]float64)}
		for round := range b.opts.rounds {
			for i := range b.systems {
				s := b.systems[(i+round)%len(b.systems)] // none is always the first
				out, err := b.work(ctx, r, s, job{Each: b.opts.each, Etcd: inEtcd(s.name)})
				if err != nil {
					return nil, fmt.Errorf("%s on %s: %w\n%s", r.name, s.name, err, s.log())
				}
				fig.of[s.name] = append(fig.of[s.name], out.Figure)
				if inEtcd(s.name) {
					fig.commits[s.name] = append(fig.commits[s.name], 100*float64(out.Commits)/b.sizes.units(r, out))
				}
			}
		}
		res.figures = append(res.figures, fig)
	}
	report.Progress("")
	return res, nil
}

// units are what commits are counted for: files of a tree, or operations.
func (z sizes) units(r row, out *outcome) float64 {
	if r.unit == seconds {
		return float64(z.Dirs * z.FilesPer)
	}
	return float64(out.Ops)
}

// settle waits until the disk has what a row has written.
func (b *bench) settle() {
	fd, err := unix.Open(b.tmp, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	_ = unix.Syncfs(fd)
	unix.Close(fd)
}

// workTimeout bounds one figure, so that a system that hangs does not stop the bench.
const workTimeout = 2 * time.Minute

func (b *bench) work(ctx context.Context, r row, s *system, j job) (*outcome, error) {
	j.Row, j.Dir, j.Shared, j.Sizes = r.name, s.dir, b.tmp, b.sizes
	arg, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, workTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.self, string(arg))
	cmd.Env = append(environ("work"), gitEnv...)
	cmd.SysProcAttr = inGroup()
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) } // tar and the like too
	cmd.WaitDelay = stopTimeout
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	answer, err := cmd.Output()
	if err != nil {
		return nil, errors.Join(ctx.Err(), fmt.Errorf("%w: %s", err, &stderr))
	}
	out := &outcome{}
	return out, json.Unmarshal(answer, out)
}
