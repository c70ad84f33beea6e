package serve

import (
	"context"
	"log/slog"
	"time"

	"github.com/lockfs/lockfs/internal/volume"
)

// awaitNotice is how long a network volume may take to open a file before the log says
// what a mount waits for.
const awaitNotice = 2 * time.Second

// await returns when the network volume at source opens files: the lock service's
// answers are waited for then, and not so long.
func (v *Volume) await(ctx context.Context, source string) error {
	notice := time.AfterFunc(awaitNotice, func() {
		v.log.Warn("waiting for the volume to open a file; an NFS server that was just started opens none for its grace period, mostly 90 s",
			slog.String("source", source))
	})
	defer notice.Stop()
	return unless(ctx, func() error {
		volume.Await(source)
		return nil
	})
}
