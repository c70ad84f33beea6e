package serve

import (
	"context"
	"log/slog"
	"time"

	"github.com/lockfs/lockfs/internal/volume"
)

// awaitNotice is how long opening a file on the volume may take before the log says that a
// mount waits for it.
const awaitNotice = 2 * time.Second

// await returns when files can be opened on the network volume at source. An NFS server opens none
// during its grace period, which is longer than the time-outs of the lock service.
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
