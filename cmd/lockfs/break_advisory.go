package main

import (
	"context"
	"slices"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// advisoryHolders returns what each mount has by flock and fcntl on the file.
func (b *breaking) advisoryHolders(ctx context.Context) (holders [][]lockmgr.Entry, err error) {
	entries, err := b.at.advisory(ctx, b.service)
	if err != nil {
		return nil, err
	}
	index := make(map[int64]int) // by the row
	for _, e := range entries {
		if !e.Held {
			continue
		}
		i, known := index[e.Token]
		if !known {
			i = len(holders)
			index[e.Token] = i
			holders = append(holders, nil)
		}
		holders[i] = append(holders[i], e)
	}
	return holders, nil
}

// rowGone waits until a mount's row of flock and fcntl locks is not in the lock service any more.
func (b *breaking) rowGone(ctx context.Context, held lockmgr.Entry) error {
	service := b.service.(lockmgr.AdvisoryBackend)
	watching, stop := context.WithCancel(ctx)
	changed, watched := make(chan struct{}, 1), make(chan struct{})
	defer func() { stop(); <-watched }()
	go func() {
		defer close(watched)
		service.WatchAdvisory(watching, func(table lockmgr.Key, _ int64) {
			if table != held.Key && table != (lockmgr.Key{}) {
				return
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}()
	again := time.NewTicker(time.Second) // the service may have been away
	defer again.Stop()
	for {
		rows, err := service.AdvisoryRows(ctx, held.Key)
		if err == nil && !slices.ContainsFunc(rows.Rows, func(r lockmgr.AdvisoryRow) bool { return r.Created == held.Token }) {
			return nil
		}
		select {
		case <-changed:
		case <-again.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
