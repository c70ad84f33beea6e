package fs

import (
	"slices"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Of replies that overlap the kernel may have kept the older. Whoever opens a file for
// write gets the size that it has now, however long ago it changed.
func TestOpenForWriteDropsAttributes(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		var dropped []uint64
		v.fs.invalidate = func(node uint64, off, _ int64) fuse.Status {
			if off >= 0 {
				v.t.Error("pages are dropped")
			}
			dropped = append(dropped, node)
			return fuse.OK
		}
		one := thread{v, 1}
		node := one.look("f")
		for range 2 {
			one.open("for write", node, fuse.OK)
			time.Sleep(time.Hour)
		}
		if !slices.Equal(dropped, []uint64{node, node}) {
			v.t.Errorf("the kernel has forgotten %v, want node %d twice", dropped, node)
		}
	})
}
