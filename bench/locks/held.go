package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// settleFor ends before the cost is measured, so that work done once for a long-held lock is over.
const settleFor = 10 * time.Second

// openers is how many locks are taken at once.
const openers = 64

// held measures the cost of n locks that are only held.
func held(n int) func(context.Context, *bench, *cluster, string) ([]float64, error) {
	return func(ctx context.Context, b *bench, c *cluster, system string) (_ []float64, err error) {
		idle, err := b.idle(ctx, c)
		if err != nil {
			return nil, err
		}
		if err := c.compact(ctx); err != nil {
			return nil, err
		}
		l, err := newLocker(ctx, system, c.clients[0], c.volume(), ttl)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, l.close(ctx)) }()
		client, etcd, err := c.memory()
		if err != nil {
			return nil, err
		}
		first, err := openAndClose(ctx, l)
		if err != nil {
			return nil, err
		}
		unlocks := make([]func(context.Context) error, n)
		err = all(openers, func(opener int) (err error) {
			for i := opener; i < n && err == nil; i += openers {
				unlocks[i], err = l.lock(ctx, fmt.Sprintf("dir-%d/file-%d", i%100, i))
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		if l, ok := l.(*leases); ok {
			if err := l.keep(ctx); err != nil {
				return nil, err
			}
		}
		if err := pause(ctx, min(settleFor, 2*b.opts.held)); err != nil {
			return nil, err
		}
		cost, err := c.watch(ctx, b.opts.held)
		if err != nil {
			return nil, err
		}
		clientNow, etcdNow, err := c.memory()
		if err != nil {
			return nil, err
		}
		more, err := openAndClose(ctx, l)
		if err != nil {
			return nil, err
		}
		err = all(openers, func(opener int) (err error) {
			for i := opener; i < n && err == nil; i += openers {
				err = unlocks[i](ctx)
			}
			return err
		})
		perLock := 1024 * float64(n)
		return []float64{
			share(cost.client-idle.client, b.opts.held), share(cost.etcd-idle.etcd, b.opts.held),
			(clientNow - client) / perLock, (etcdNow - etcd) / perLock,
			first.p50, first.p99, more.p50, more.p99,
		}, err
	}
}

// oneMore is how many locks are taken, one after another, to time a single one.
const oneMore = 200

// spread is in microseconds.
type spread struct{ p50, p99 float64 }

func openAndClose(ctx context.Context, l locker) (spread, error) {
	took := make([]time.Duration, oneMore)
	for i := range took {
		begin := time.Now()
		unlock, err := l.lock(ctx, fmt.Sprintf("more/file-%d", i))
		if err != nil {
			return spread{}, err
		}
		took[i] = time.Since(begin)
		if err := unlock(ctx); err != nil {
			return spread{}, err
		}
	}
	slices.Sort(took)
	micros := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	return spread{micros(took[oneMore/2]), micros(took[oneMore*99/100])}, nil
}

// idle measures a mount without locks, and an etcd with such a mount.
func (b *bench) idle(ctx context.Context, c *cluster) (u usage, err error) {
	if c.idle != nil {
		return *c.idle, nil
	}
	l, err := newLocker(ctx, "lockfs", c.clients[0], c.volume(), ttl)
	if err != nil {
		return u, err
	}
	defer func() { err = errors.Join(err, l.close(ctx)) }()
	if u, err = c.watch(ctx, b.opts.held); err != nil {
		return u, err
	}
	c.idle = &u
	b.notes = append(b.notes, fmt.Sprintf("an idle mount takes %.2f %% of a core, its etcd %.2f %%; held locks come on top.",
		share(u.client, b.opts.held), share(u.etcd, b.opts.held)))
	return u, nil
}

func (c *cluster) watch(ctx context.Context, d time.Duration) (usage, error) {
	before, err := c.usage()
	if err != nil {
		return usage{}, err
	}
	if err := pause(ctx, d); err != nil {
		return usage{}, err
	}
	after, err := c.usage()
	return after.since(before), err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// share is in percent of a core.
func share(spent, of time.Duration) float64 { return 100 * float64(spent) / float64(of) }
