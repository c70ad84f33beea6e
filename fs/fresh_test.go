package fs

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Of replies that overlap the kernel may have kept the older. Whoever opens a file for write
// gets the size that it has now, however long ago it changed. The kernel keeps what it has if
// no reply can have told it anything else.
func TestOpenForWriteDropsAttributes(t *testing.T) {
	grow := func(th thread, size int64) {
		th.t.Helper()
		if err := os.Truncate(filepath.Join(th.source, "f"), size); err != nil {
			th.t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		change func(one thread, node uint64)
		drops  int // of three opens
	}{
		"it was told once": {func(thread, uint64) {}, 0},
		"it was told two sizes": {func(one thread, _ uint64) {
			grow(one, 10)
			one.look("f")
		}, 1},
		"a reply cannot be dropped": {func(one thread, _ uint64) {
			grow(one, 10)
			one.look("f")
			one.fs.invalidate = func(uint64, int64, int64) fuse.Status {
				one.drops++
				return fuse.EIO
			}
		}, 3},
		"it is told another size while it drops": {func(one thread, _ uint64) {
			grow(one, 10)
			one.look("f")
			one.fs.invalidate = func(uint64, int64, int64) fuse.Status {
				if one.drops++; one.drops == 1 {
					grow(one, 20)
					one.look("f")
				}
				return fuse.OK
			}
		}, 2},
		"it has found an earlier end of file": {func(one thread, node uint64) {
			grow(one, 10)
			one.look("f")
			grow(one, 5)
			one.read(node)
			one.drops = 0
			grow(one, 10)
			one.fs.nodes.get(node).told.mtime = one.mtime() // as if all were within one tick
		}, 1},
		"it was told by chmod": {func(one thread, node uint64) {
			var out fuse.AttrOut
			if s := one.fs.SetAttr(nil, &fuse.SetAttrIn{SetAttrInCommon: fuse.SetAttrInCommon{InHeader: one.header(node), Valid: fuse.FATTR_MODE, Mode: 0o600}}, &out); !s.Ok() {
				one.t.Fatal(s)
			}
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			inMovedView(t, func(v *movedView) {
				v.fs.invalidate = func(_ uint64, off, _ int64) fuse.Status {
					if off >= 0 {
						v.t.Error("pages are dropped")
					}
					v.drops++
					return fuse.OK
				}
				one := thread{v, 1}
				node := one.look("f")
				test.change(one, node)
				for range 3 {
					one.open("for write", node, fuse.OK)
					time.Sleep(doubtFor / 2)
				}
				if v.drops != test.drops {
					v.t.Errorf("the kernel has dropped what it had %d times, want %d", v.drops, test.drops)
				}
			})
		})
	}
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
			h := newHandle(n, -1, unix.O_RDONLY, nil)
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

// read reads a node to its end.
func (th thread) read(node uint64) {
	th.t.Helper()
	var out fuse.OpenOut
	in := th.header(node)
	if s := th.fs.Open(nil, &fuse.OpenIn{InHeader: in}, &out); !s.Ok() {
		th.t.Fatal(s)
	}
	defer th.fs.Release(nil, &fuse.ReleaseIn{InHeader: in, Fh: out.Fh})
	if _, s := th.fs.Read(nil, &fuse.ReadIn{InHeader: in, Fh: out.Fh, Size: 100}, make([]byte, 100)); !s.Ok() {
		th.t.Fatal(s)
	}
}

// mtime is that of f.
func (v *movedView) mtime() unix.Timespec {
	v.t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(v.source, "f"), &st); err != nil {
		v.t.Fatal(err)
	}
	return st.Mtim
}
