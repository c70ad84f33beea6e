package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/renew"
)

// recalls measures how long another mount waits for a file in a directory that is delegated, with
// n files open below it.
func recalls(n int) func(context.Context, *bench, *cluster, string) ([]float64, error) {
	return func(ctx context.Context, _ *bench, c *cluster, _ string) (_ []float64, err error) {
		volume := c.volume()
		var mounts [2]*manager
		for i := range mounts {
			if mounts[i], err = keeping(ctx, c, i, volume, keepFor); err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, mounts[i].close(ctx)) }()
		}
		delegate, other := mounts[0], mounts[1]
		for i := 0; delegate.Stats().Dirs == 0; i++ {
			if err := lockOnce(ctx, delegate, fmt.Sprintf("dir/evidence-%d", i)); err != nil {
				return nil, err
			}
		}
		var unlocks []func(context.Context) error
		for i := range n {
			unlock, err := delegate.lock(ctx, fmt.Sprintf("dir/file-%d", i))
			if err != nil {
				return nil, err
			}
			unlocks = append(unlocks, unlock)
		}
		rev, err := c.revision(ctx)
		if err != nil {
			return nil, err
		}
		began := time.Now()
		unlock, err := other.lock(ctx, "dir/other")
		took := time.Since(began)
		if err != nil {
			return nil, err
		}
		last, err := c.revision(ctx)
		for _, unlock := range append(unlocks, unlock) {
			err = errors.Join(err, unlock(ctx))
		}
		return []float64{us(took) / 1000, float64(last - rev)}, err
	}
}

// keepFor is lockfs mount's default.
const keepFor = 2 * time.Second

// keeping opens a mount that keeps locks, over the i-th connection.
func keeping(ctx context.Context, c *cluster, i int, volume string, keep time.Duration) (*manager, error) {
	client, err := c.client(ctx, i)
	if err != nil {
		return nil, err
	}
	b, err := newBackend(client, volume)
	if err != nil {
		return nil, err
	}
	m, err := lockmgr.New(ctx, lockmgr.Config{
		Backend: b, Session: lockmgr.SessionInfo{Node: "bench"}, Renew: renew.Config{TTL: ttl},
		Keep: keep, Logger: slog.New(slog.DiscardHandler),
	})
	return &manager{Manager: m}, err
}

func lockOnce(ctx context.Context, l locker, key string) error {
	unlock, err := l.lock(ctx, key)
	if err != nil {
		return err
	}
	return unlock(ctx)
}

// recallsOfIdle measures how long another mount waits for a file whose lock is kept, and from a
// release to the next grant where both mounts want a file.
func recallsOfIdle(ctx context.Context, b *bench, c *cluster, _ string) (_ []float64, err error) {
	volume := c.volume()
	var mounts [2]*manager
	for i := range mounts {
		if mounts[i], err = keeping(ctx, c, i, volume, time.Hour); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, mounts[i].close(ctx)) }()
	}
	keeper, other := mounts[0], mounts[1]
	var recalls, handoffs []time.Duration
	for i := range b.opts.handoffs {
		// Not many in one directory, which would be delegated.
		key := fmt.Sprintf("dir-%d/file", i)
		for keeper.Stats().Kept == 0 {
			if err := lockOnce(ctx, keeper, key); err != nil {
				return nil, err
			}
		}
		began := time.Now()
		unlock, err := other.lock(ctx, key)
		recalls = append(recalls, time.Since(began))
		if err != nil {
			return nil, err
		}
		type grant struct {
			at  time.Time
			err error
		}
		granted := make(chan grant, 1)
		go func() {
			again, err := keeper.lock(ctx, key)
			at := time.Now()
			if err == nil {
				err = again(ctx)
			}
			granted <- grant{at, err}
		}()
		time.Sleep(holdFor) // it is in line
		released := time.Now()
		err = unlock(ctx)
		next := <-granted
		if err = errors.Join(err, next.err); err != nil {
			return nil, err
		}
		handoffs = append(handoffs, next.at.Sub(released))
	}
	slices.Sort(recalls)
	slices.Sort(handoffs)
	recall, handoff := ms(quantile(recalls, 0.5)), ms(quantile(handoffs, 0.5))
	return []float64{recall, handoff, recall / handoff}, nil
}

// turns measures how long two mounts take that have one file in turn, several times each.
func turns(ctx context.Context, b *bench, c *cluster, system string) (_ []float64, err error) {
	volume := c.volume()
	keep := time.Duration(0)
	if system == "keeping" {
		keep = keepFor
	}
	var mounts [2]*manager
	for i := range mounts {
		if mounts[i], err = keeping(ctx, c, i, volume, keep); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, mounts[i].close(ctx)) }()
	}
	rev, err := c.revision(ctx)
	if err != nil {
		return nil, err
	}
	const opens = 3 // of a turn
	n, began := 0, time.Now()
	for ; n < 10 || time.Since(began) < b.opts.each; n++ {
		for range opens {
			if err := lockOnce(ctx, mounts[n%2], "dir/file"); err != nil {
				return nil, err
			}
		}
	}
	took := time.Since(began)
	last, err := c.revision(ctx)
	return []float64{us(took) / float64(n), float64(last-rev) / float64(n)}, err
}

// mostKept is how many idle locks a mount keeps, and some fewer.
const mostKept = 500

// keptIdle measures what n idle locks cost, over mounts without any.
func keptIdle(n int) func(context.Context, *bench, *cluster, string) ([]float64, error) {
	return func(ctx context.Context, b *bench, c *cluster, _ string) (_ []float64, err error) {
		volume := c.volume()
		mounts := make([]*manager, (n+mostKept-1)/mostKept)
		for i := range mounts {
			if mounts[i], err = keeping(ctx, c, i, volume, time.Hour); err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, mounts[i].close(ctx)) }()
		}
		before, err := c.watch(ctx, b.opts.held)
		if err != nil {
			return nil, err
		}
		err = all(len(mounts), func(m int) error {
			for i := range min(n, mostKept) {
				key := fmt.Sprintf("dir-%d-%d/file", m, i)
				for mounts[m].Stats().Kept <= i {
					if err := lockOnce(ctx, mounts[m], key); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if err := pause(ctx, min(settleFor, 2*b.opts.held)); err != nil {
			return nil, err
		}
		cost, err := c.watch(ctx, b.opts.held)
		of := float64(len(mounts))
		return []float64{share(cost.client-before.client, b.opts.held) / of, share(cost.etcd-before.etcd, b.opts.held) / of, of}, err
	}
}
