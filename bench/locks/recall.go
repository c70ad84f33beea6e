package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
			if mounts[i], err = keeping(ctx, c, i, volume); err != nil {
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

// keeping opens a mount as lockfs mount does by default, over the i-th connection.
func keeping(ctx context.Context, c *cluster, i int, volume string) (*manager, error) {
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
		Keep: 2 * time.Second, Logger: slog.New(slog.DiscardHandler),
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
