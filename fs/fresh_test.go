package fs

import (
	"slices"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
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

// A file on a network volume changes by the clock of its server, which may be late: its cache
// is kept once nobody has changed the file for a while by the clock of this machine.
func TestCacheIsKeptByTheOwnClock(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		v.onNetwork()
		one := thread{v, 1}
		n := v.fs.nodes.get(one.look("f"))
		var st unix.Stat_t
		st.Ctim.Sec = time.Now().Add(-time.Minute).Unix()
		// reads opens the file, reads, and says whether the cache was kept.
		reads := func() bool {
			h := new(files).newHandle(n, -1, unix.O_RDONLY, nil, &reservation{})
			flags := v.fs.cacheFlags(h, unix.O_RDONLY, &st)
			h.filling()
			return flags&fuse.FOPEN_KEEP_CACHE != 0
		}
		for _, step := range []struct {
			what string
			want bool
		}{
			{"the first open", false},
			{"an open at once", false},
			{"an open after a while, which fills the cache", false},
			{"the next open", true},
		} {
			if got := reads(); got != step.want {
				t.Errorf("%s keeps the cache: %v", step.what, got)
			}
			if step.what == "an open at once" {
				time.Sleep(coarsest + time.Second)
			}
		}
		st.Ctim.Nsec++
		for range 2 {
			if reads() {
				t.Error("the file has changed, and its cache is kept")
			}
		}
	})
}
