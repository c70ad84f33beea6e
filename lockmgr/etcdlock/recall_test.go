package etcdlock_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/lockfs/lockfs/lockmgr"
)

// One who tries a directory below which many kept files are idle gets it.
func TestTryOfADirectoryWithManyKeptLocks(t *testing.T) {
	b, _ := newVolume(t, dial(t))
	mine, theirs := open(t, b), open(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(map[lockmgr.AcquisitionID]lockmgr.Grant)
	for i := range 100 {
		req := request(lockmgr.NoWait, file(fmt.Sprintf("d/%03d", i)))
		req.Keep = true
		g := acquire(t, mine, req)[0]
		kept[g.AcquisitionID] = g
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		b.WatchRecalls(ctx, func(r lockmgr.Recall) {
			for _, id := range r.Entries {
				if g, ok := kept[id]; ok {
					delete(kept, id)
					if err := mine.Release(ctx, g); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}()
	defer func() { cancel(); <-over }()
	if _, err := theirs.Acquire(within(t, patience), request(lockmgr.NoWait, tree("d"))); err != nil {
		t.Error(err)
	}
}
