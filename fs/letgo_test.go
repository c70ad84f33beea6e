package fs

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// inLetGoView runs test with a view of a volume whose client gives a file that is
// removed another name while somebody has a descriptor of it.
func inLetGoView(t *testing.T, test func(t *testing.T, v *movedView, one thread)) {
	inMovedView(t, func(v *movedView) {
		v.fs.backing.renamesRemoved = true
		test(v.t, v, thread{v, 1})
	})
}

// held counts this process's descriptors of a file, and of what it was.
func (v *movedView) held(name string) (n int) {
	v.t.Helper()
	var want unix.Stat_t
	if err := unix.Lstat(filepath.Join(v.source, name), &want); err != nil {
		v.t.Fatal(err)
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		v.t.Fatal(err)
	}
	for _, fd := range fds {
		var st unix.Stat_t
		if unix.Stat("/proc/self/fd/"+fd.Name(), &st) == nil && st.Dev == want.Dev && st.Ino == want.Ino {
			n++
		}
	}
	return n
}

func (th thread) size(node uint64) (size uint64, s fuse.Status) {
	var out fuse.AttrOut
	s = th.fs.GetAttr(nil, &fuse.GetAttrIn{InHeader: th.header(node)}, &out)
	return out.Attr.Size, s
}

// When a file loses a name, by unlink or by a rename over it, nobody here has a
// descriptor of it. The link tells that it is the file of before.
func TestLetGo(t *testing.T) {
	inLetGoView(t, func(t *testing.T, v *movedView, one thread) {
		v.make("g")
		for i, lose := range []func(){
			func() {
				in := one.header(rootID)
				if s := v.fs.Unlink(nil, &in, "f"); !s.Ok() {
					t.Fatal(s)
				}
			},
			func() { one.rename("g", "f") },
		} {
			node := one.look("f")
			if err := os.Link(filepath.Join(v.source, "f"), filepath.Join(v.source, "link")); err != nil {
				t.Fatal(err)
			}
			if v.held("link") != 1 {
				t.Fatal("a file that the kernel knows has no descriptor")
			}
			lose()
			if n := v.held("link"); n != 0 {
				t.Errorf("%d: %d descriptors of a file that has lost its name", i, n)
			}
			if _, s := one.size(node); s != stale {
				t.Errorf("%d: attributes of what has no name that is known: %v", i, s)
			}
			v.fs.Forget(node, 1)
			if err := os.Rename(filepath.Join(v.source, "link"), filepath.Join(v.source, "f")); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// What is let go and keeps its name is found again, and nothing else is in its place:
// whatever asks for it.
func TestFoundAgain(t *testing.T) {
	inLetGoView(t, func(t *testing.T, v *movedView, one thread) {
		node := one.look("f")
		n := v.fs.nodes.get(node)
		for _, ask := range []func() fuse.Status{
			func() fuse.Status { _, s := one.size(node); return s },
			func() fuse.Status {
				in := fuse.SetAttrIn{SetAttrInCommon: fuse.SetAttrInCommon{InHeader: one.header(node), Valid: fuse.FATTR_MODE, Mode: 0o600}}
				return v.fs.SetAttr(nil, &in, &fuse.AttrOut{})
			},
			func() fuse.Status { one.open("found again", node, fuse.OK); return fuse.OK },
			func() fuse.Status {
				in, out := fuse.OpenIn{InHeader: one.header(node)}, fuse.OpenOut{}
				s := v.fs.Open(nil, &in, &out)
				v.fs.letGo(n)
				if s.Ok() && n.fd < 0 {
					t.Error("the descriptor of an open file is let go")
				}
				v.fs.Release(nil, &fuse.ReleaseIn{InHeader: in.InHeader, Fh: out.Fh})
				return s
			},
		} {
			v.fs.letGo(n)
			if n.fd >= 0 {
				t.Fatal("a file that nobody uses is not let go")
			}
			if s := ask(); !s.Ok() {
				t.Errorf("asked for what was let go: %v", s)
			}
		}
		v.fs.letGo(n)
		v.putAway("f", "away")
		if _, s := one.size(node); s != stale {
			t.Errorf("attributes of another file, or %v", s)
		}
		v.fs.Forget(node, 1)
	})
}

// A descriptor is let go while requests use it: each has it, or finds the file again.
func TestLetGoBesideRequests(t *testing.T) {
	inLetGoView(t, func(t *testing.T, v *movedView, one thread) {
		node := one.look("f")
		n := v.fs.nodes.get(node)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 500 {
					if _, s := one.size(node); !s.Ok() {
						t.Errorf("attributes of what is let go: %v", s)
						return
					}
				}
			})
		}
		for range 500 {
			v.fs.letGo(n)
		}
		wg.Wait()
		v.fs.letGo(n)
		if left := v.held("f"); left != 0 {
			t.Errorf("%d descriptors are left", left)
		}
	})
}

// A caller that was sent to look, and is back, gets the file that it has found, though that is
// replaced once more: a second ESTALE would reach the program, whose name is fine.
func TestOpenBetweenReplacements(t *testing.T) {
	inLetGoView(t, func(t *testing.T, v *movedView, one thread) {
		v.make("g")
		v.make("h")
		two := thread{v, 2}
		read := func(node uint64) fuse.Status {
			in, out := fuse.OpenIn{InHeader: one.header(node)}, fuse.OpenOut{}
			s := v.fs.Open(nil, &in, &out)
			if s.Ok() {
				v.fs.Release(nil, &fuse.ReleaseIn{InHeader: in.InHeader, Fh: out.Fh})
			}
			return s
		}
		node := one.look("f")
		two.rename("g", "f")
		if s := read(node); s != stale {
			t.Fatalf("open of what was replaced: %v, want ESTALE", s)
		}
		node = one.look("f")
		two.rename("h", "f")
		if s := read(node); !s.Ok() {
			t.Errorf("the second try, of what was replaced meanwhile: %v", s)
		}
	})
}

// An open for write of a file that was replaced is sent to look with the lock of the name, so that
// nobody replaces it before the caller is back.
func TestOpenToWriteBetweenReplacements(t *testing.T) {
	inLetGoView(t, func(t *testing.T, v *movedView, one thread) {
		v.make("g")
		v.make("h")
		two := thread{v, 2}
		node := one.look("f")
		two.rename("g", "f")
		one.open("what was replaced", node, stale)
		two.cannotRename("h", "f")
		one.open("the second try", one.look("f"), fuse.OK)
	})
}

// An open that overlaps a removal has a file without a name, and its attributes.
func TestOpenedWhileLetGo(t *testing.T) {
	inLetGoView(t, func(t *testing.T, v *movedView, one thread) {
		node := one.look("f")
		n := v.fs.nodes.get(node)
		fd, err := unix.Open(filepath.Join(v.source, "f"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		v.fs.letGo(n)
		if err := os.Remove(filepath.Join(v.source, "f")); err != nil {
			t.Fatal(err)
		}
		h := v.fs.newHandle(n, fd, unix.O_RDONLY, nil, &reservation{})
		defer h.leave()
		if _, s := one.size(node); !s.Ok() {
			t.Errorf("attributes of an open file: %v", s)
		}
	})
}
