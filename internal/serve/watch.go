package serve

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/fs"
	"github.com/lockfs/lockfs/internal/netvolume"
	"github.com/lockfs/lockfs/internal/volume"
)

const (
	// lookEvery is how often the mount options of a volume are checked while it is served.
	lookEvery = time.Minute
	// reachEvery is how often the view checks that the volume is within reach, retryEvery how often
	// while it is not.
	reachEvery = 5 * time.Second
	retryEvery = time.Second
	// reachPause is the least time between two such checks that are made because a request has
	// failed.
	reachPause = 200 * time.Millisecond
)

type watcher struct {
	*Volume
	cfg  *Config
	view *fs.FS
	id   uuid.UUID // the volume's
}

// run watches the volume until ctx ends. It waits for a volume that hangs.
func (w *watcher) run(ctx context.Context) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		pause := reachEvery
		if w.health.err() != nil {
			pause = retryEvery
		}
		select {
		case <-look.C:
			w.look(ctx)
		case <-time.After(pause):
			w.reach(ctx)
		case <-w.view.Doubts():
			w.reach(ctx)
			select {
			case <-time.After(reachPause):
			case <-ctx.Done():
			}
		case <-ctx.Done():
			return
		}
	}
}

// look checks the volume's mount options: an operator may have changed them.
func (w *watcher) look(ctx context.Context) {
	var found []netvolume.Finding
	err := unless(ctx, func() (err error) { found, err = netvolume.Look(w.cfg.Source, w.cfg.Embedded); return err })
	if err != nil {
		w.log.Debug("cannot look at the volume's options", slog.Any("error", err))
		return
	}
	w.health.found(found)
}

// reach has the view check that it reaches its volume, and otherwise look for the volume at SOURCE.
func (w *watcher) reach(ctx context.Context) {
	again := false
	err := unless(ctx, func() (err error) {
		again, err = w.view.Reach(func(dir string) error { return volume.Verify(dir, w.id) })
		return err
	})
	if ctx.Err() != nil {
		return
	}
	if again {
		w.log.Warn("the volume is mounted anew; what programs had open on the former mount fails", slog.String("source", w.cfg.Source))
	}
	w.health.reached(err)
	if again {
		w.look(ctx)
	}
}
