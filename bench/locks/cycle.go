package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// cycles measures acquire and release without waiting.
func cycles(callers int) func(context.Context, *bench, *cluster, string) ([]float64, error) {
	return func(ctx context.Context, b *bench, c *cluster, system string) (_ []float64, err error) {
		l, err := b.locker(ctx, c, 0, system, c.volume())
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, l.close(ctx)) }()
		cycle := func(caller int) error {
			unlock, err := l.lock(ctx, fmt.Sprintf("dir/file-%d", caller))
			if err != nil {
				return err
			}
			return unlock(ctx)
		}
		if err := all(callers, cycle); err != nil { // warm up the session
			return nil, err
		}
		rev, err := c.revision(ctx)
		if err != nil {
			return nil, err
		}
		before, err := c.usage()
		if err != nil {
			return nil, err
		}
		var done atomic.Int64
		began := time.Now()
		err = all(callers, func(caller int) error {
			for first := true; first || time.Since(began) < b.opts.each; first = false { // it may get no CPU for so long
				if err := cycle(caller); err != nil {
					return err
				}
				done.Add(1)
			}
			return nil
		})
		took := time.Since(began)
		if err != nil {
			return nil, err
		}
		after, err := c.usage()
		if err != nil {
			return nil, err
		}
		last, err := c.revision(ctx)
		if err != nil {
			return nil, err
		}
		n, spent := float64(done.Load()), after.since(before)
		speed := n / took.Seconds()
		if callers == 1 {
			speed = us(took) / n
		}
		return []float64{speed, float64(last-rev) / n, us(spent.client) / n, us(spent.etcd) / n}, nil
	}
}

func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// all runs f for 0 to n-1 at once.
func all(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
