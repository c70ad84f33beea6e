package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/pprof"
	"slices"
	"time"

	"github.com/lockfs/lockfs/bench/internal/report"
)

type bench struct {
	opts  options
	notes []string
	kube  *apiServer // nil if no row needs one
}

func (b *bench) measure(ctx context.Context) (*results, error) {
	if b.asksFor(kubernetes) {
		var err error
		if b.kube, err = startAPIServer(); err != nil {
			b.notes = append(b.notes, fmt.Sprintf("%s is left out: %v", kubernetes, err))
			b.opts.systems = slices.DeleteFunc(slices.Clone(b.opts.systems), func(s string) bool { return s == kubernetes })
		} else {
			defer b.kube.close()
		}
	}
	if view := func(r row) bool { return r.view }; slices.ContainsFunc(b.opts.rows, view) {
		if err := mounts(); err != nil {
			b.notes = append(b.notes, fmt.Sprintf("rows with a view are left out: %v", err))
			b.opts.rows = slices.DeleteFunc(slices.Clone(b.opts.rows), view)
		}
	}
	res := &results{systems: slices.DeleteFunc(slices.Clone(b.opts.systems), func(s string) bool { return !b.asksFor(s) })}
	for _, nodes := range []int{1, 3} {
		rows := slices.DeleteFunc(slices.Clone(b.opts.rows), func(r row) bool { return r.nodes != nodes })
		if len(rows) == 0 {
			continue
		}
		figs, err := b.measureOn(ctx, nodes, rows)
		if err != nil {
			return nil, err
		}
		res.figures = append(res.figures, figs...)
	}
	res.notes = b.notes
	report.Progress("")
	return res, nil
}

func (b *bench) asksFor(system string) bool {
	return slices.Contains(b.opts.systems, system) &&
		slices.ContainsFunc(b.opts.rows, func(r row) bool { return slices.Contains(r.systems, system) })
}

func (b *bench) measureOn(ctx context.Context, nodes int, rows []row) (figs []figures, err error) {
	report.Progress("etcd of " + count(nodes, "member"))
	c, err := startCluster(ctx, b.opts.dir, nodes)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	for _, r := range rows {
		fig, err := b.row(ctx, c, r)
		if err != nil {
			return nil, err
		}
		figs = append(figs, fig...)
		c.hangUp()
		if err := c.compact(ctx); err != nil {
			return nil, err
		}
	}
	return figs, nil
}

// figureTimeout bounds one figure, so that a system that hangs does not stop the bench.
const figureTimeout = 2 * time.Minute

// row measures the systems in turn, and returns the figures of each line.
func (b *bench) row(ctx context.Context, c *cluster, r row) ([]figures, error) {
	report.Progress(r.name)
	systems := slices.DeleteFunc(slices.Clone(r.systems), func(s string) bool { return !slices.Contains(b.opts.systems, s) })
	rounds := b.opts.rounds
	if r.rounds > 0 {
		rounds = min(rounds, r.rounds)
	}
	figs := make([]figures, len(r.lines))
	for i, l := range r.lines {
		figs[i] = figures{row: r.name, line: l, of: make(map[string][]float64)}
	}
	for round := range rounds {
		for i := range systems {
			s := systems[(i+round)%len(systems)] // none is always the first
			bounded, cancel := context.WithTimeout(ctx, figureTimeout)
			v, err := r.measure(bounded, b, c, s)
			cancel()
			if err != nil {
				return nil, fmt.Errorf("%s of %s: %w\n%s", r.name, s, err, c.log())
			}
			for i := range figs {
				figs[i].of[s] = append(figs[i].of[s], v[i])
			}
		}
	}
	return figs, nil
}

func profileTo(name string) (stop func() error, err error) {
	if name == "" {
		return func() error { return nil }, nil
	}
	file, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return file.Close()
	}, nil
}
