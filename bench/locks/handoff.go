package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// holdFor lets the former holder get in line again, so that the number of waiters is constant.
const holdFor = 10 * time.Millisecond

// handoffs measures from a release to the next grant. Each waiter has a connection and a session.
func handoffs(waiters int) func(context.Context, *bench, *cluster, string) ([]float64, error) {
	return func(ctx context.Context, b *bench, c *cluster, system string) (_ []float64, err error) {
		q := queue{laps: make([]int, waiters+1), want: b.opts.handoffs}
		volume := c.volume()
		var mounts []locker
		defer func() {
			err = errors.Join(err, all(len(mounts), func(i int) error { return mounts[i].close(ctx) }))
		}()
		for i := range waiters + 1 {
			l, err := b.locker(ctx, c, i, system, volume)
			if err != nil {
				return nil, err
			}
			mounts = append(mounts, l)
		}
		waiting, giveUp := context.WithCancel(ctx)
		defer giveUp()
		err = all(len(mounts), func(i int) error {
			err := q.stand(waiting, mounts[i], i)
			if err != nil {
				giveUp()
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		slices.Sort(q.took)
		return []float64{ms(quantile(q.took, 0.5)), ms(quantile(q.took, 0.99))}, nil
	}
}

// queue is the mounts that want one lock.
type queue struct {
	sync.Mutex // never contended, if the lock is good

	released time.Time
	laps     []int // how often each mount had the lock
	took     []time.Duration
	want     int
}

var errTwoHolders = errors.New("somebody else holds the lock as well")

// stand takes the lock again and again until there were enough handoffs.
func (q *queue) stand(ctx context.Context, l locker, mount int) error {
	for enough := false; !enough; {
		unlock, err := l.lock(ctx, "dir/file")
		granted := time.Now()
		if err != nil {
			return fmt.Errorf("mount %d: %w", mount, err)
		}
		if !q.TryLock() {
			return fmt.Errorf("mount %d: %w", mount, errTwoHolders)
		}
		// In the first and the last lap not all are in line.
		if enough = len(q.took) >= q.want; !enough && q.laps[mount] > 0 {
			q.took = append(q.took, granted.Sub(q.released))
		}
		q.laps[mount]++
		if !enough {
			time.Sleep(holdFor)
		}
		q.released = time.Now()
		q.Unlock()
		if err := unlock(ctx); err != nil {
			return fmt.Errorf("mount %d: %w", mount, err)
		}
	}
	return nil
}

func quantile(v []time.Duration, q float64) time.Duration { return v[int(q*float64(len(v)-1)+0.5)] }

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
