package serve

import (
	"context"
	"log/slog"
	"time"

	"github.com/lockfs/lockfs/internal/netvolume"
)

// lookEvery is how often the options of a volume are looked at, while it is served.
const lookEvery = time.Minute

// watch follows what becomes of the volume below the view until ctx ends.
func (v *Volume) watch(ctx context.Context, c *Config) {
	options := time.NewTicker(lookEvery)
	defer options.Stop()
	for {
		select {
		case <-options.C:
			v.lookAgain(ctx, c)
		case <-ctx.Done():
			return
		}
	}
}

// lookAgain looks at the volume's options: an operator may have changed them.
func (v *Volume) lookAgain(ctx context.Context, c *Config) {
	var found []netvolume.Finding
	err := unless(ctx, func() (err error) { found, err = netvolume.Look(c.Source, c.Embedded); return err })
	if err != nil {
		v.log.Debug("cannot look at the volume's options", slog.Any("error", err))
		return
	}
	v.health.found(found)
}
