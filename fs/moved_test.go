package fs

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
	"github.com/lockfs/lockfs/policy"
	"github.com/lockfs/lockfs/renew"
)

// movedView is a view without a kernel, of a directory in which files are moved.
type movedView struct {
	t      *testing.T
	fs     *FS
	source string
	svc    *lockmgrtest.Memory
}

// inMovedView runs test with a view of a directory that has the file f.
func inMovedView(t *testing.T, test func(v *movedView)) {
	source := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		b, err := openBacking(source)
		if err != nil {
			t.Fatal(err)
		}
		v := &movedView{t: t, source: source, svc: lockmgrtest.NewMemory()}
		v.fs = &FS{
			RawFileSystem: fuse.NewDefaultRawFileSystem(),
			locker: locker{
				locks: v.another(), rules: rules{scope: policy.ScopeHandle}, nameWait: time.Second,
				log: slog.New(slog.DiscardHandler), files: files{backing: b, nodes: newNodes(b.root, b.inode, NewPool())},
			},
		}
		v.fs.invalidate = func(uint64, int64, int64) fuse.Status { return fuse.OK }
		v.fs.gates = v.fs.newGates(newBudget(backlogSize), v.fs.log)
		defer v.fs.nodes.close()
		v.make("f")
		test(v)
	})
}

// another takes locks as another mount does.
func (v *movedView) another() *lockmgr.Manager {
	v.t.Helper()
	m, err := lockmgr.New(v.t.Context(), lockmgr.Config{Backend: v.svc, Renew: renew.Config{TTL: 15 * time.Second, Clock: bubbleClock{}}})
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { m.Close(context.WithoutCancel(v.t.Context())) })
	return m
}

func (v *movedView) make(name string) {
	v.t.Helper()
	if err := os.WriteFile(filepath.Join(v.source, name), nil, 0o644); err != nil {
		v.t.Fatal(err)
	}
}

// putAway renames a file as another mount does, and makes another of its name.
func (v *movedView) putAway(name, to string) {
	v.t.Helper()
	if err := os.Rename(filepath.Join(v.source, name), filepath.Join(v.source, to)); err != nil {
		v.t.Fatal(err)
	}
	v.make(name)
}

// thread is one whose requests the view gets.
type thread struct {
	*movedView
	tid uint32
}

func (th thread) header(node uint64) fuse.InHeader {
	return fuse.InHeader{NodeId: node, Caller: fuse.Caller{Pid: th.tid}}
}

func (th thread) look(name string) (node uint64) {
	th.t.Helper()
	return th.lookIn(rootID, name)
}

func (th thread) lookIn(dir uint64, name string) (node uint64) {
	th.t.Helper()
	var out fuse.EntryOut
	in := th.header(dir)
	if s := th.fs.Lookup(nil, &in, name, &out); !s.Ok() {
		th.t.Fatalf("lookup of %s: %v", name, s)
	}
	return out.NodeId
}

func (th thread) rename(name, to string) {
	th.t.Helper()
	in := th.header(rootID)
	if s := th.fs.Rename(nil, &fuse.RenameIn{InHeader: in, Newdir: rootID}, name, to); !s.Ok() {
		th.t.Fatalf("rename of %s: %v", name, s)
	}
}

func (th thread) cannotRename(name, to string) {
	th.t.Helper()
	in := th.header(rootID)
	if s := th.fs.Rename(nil, &fuse.RenameIn{InHeader: in, Newdir: rootID}, name, to); s != fuse.EBUSY {
		th.t.Fatalf("rename of %s: %v, want EBUSY", name, s)
	}
}

// open opens a node for write, and closes it again if it could.
func (th thread) open(what string, node uint64, want fuse.Status) {
	th.t.Helper()
	in, out := fuse.OpenIn{InHeader: th.header(node), Flags: unix.O_WRONLY}, fuse.OpenOut{}
	s := th.fs.Open(nil, &in, &out)
	if s != want {
		th.t.Fatalf("%s: %v, want %v", what, s, want)
	}
	if s.Ok() {
		th.fs.Release(nil, &fuse.ReleaseIn{InHeader: in.InHeader, Fh: out.Fh})
	}
}

// An open that arrives behind a rename may mean the name of before: the kernel
// learns of a rename with the answer, and looks names up until then. The caller
// is sent to look, once, and does not get what was put away for what has the name.
func TestOpenBehindRename(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		one := thread{v, 1}
		node := one.look("f")
		one.rename("f", "old")
		one.open("right behind the rename", node, stale)
		one.look("old")
		one.open("by the new name", node, fuse.OK)
	})
}

// An open beside a rename either has the file first, so that the rename is refused, or is sent to
// look. It does not find the file by the name that it has got just then.
func TestOpenBesideRename(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		one, two := thread{v, 1}, thread{v, 2}
		for i := range 2000 {
			name, to := fmt.Sprint("n", i), fmt.Sprint("to", i)
			v.make(name)
			node := one.look(name)
			renamed := make(chan fuse.Status)
			go func() {
				runtime.Gosched()
				renamed <- v.fs.Rename(nil, &fuse.RenameIn{InHeader: two.header(rootID), Newdir: rootID}, name, to)
			}()
			in, out := fuse.OpenIn{InHeader: one.header(node), Flags: unix.O_WRONLY}, fuse.OpenOut{}
			opened := v.fs.Open(nil, &in, &out)
			if s := <-renamed; s.Ok() == opened.Ok() {
				t.Fatalf("round %d: the rename got %v, the open %v", i, s, opened)
			}
			if opened.Ok() {
				v.fs.Release(nil, &fuse.ReleaseIn{InHeader: in.InHeader, Fh: out.Fh})
			}
		}
	})
}

// An open by a name that was looked up to a second ago does not get the file that another mount has
// put away since, even if another program has seen where that file is now.
func TestOpenOfWhatWasPutAway(t *testing.T) {
	// one opens f, which names node, and has to be sent until it gets what f is now.
	followsTheName := func(one thread, node uint64) {
		one.t.Helper()
		one.open("by the old name", node, stale)
		one.open("by what has the name", one.look("f"), fuse.OK)
	}
	for name, test := range map[string]func(v *movedView, one, two thread){
		"nobody has": func(v *movedView, one, _ thread) {
			node := one.look("f")
			v.putAway("f", "old")
			followsTheName(one, node)
		},
		"by its new name": func(v *movedView, one, two thread) {
			node := one.look("f")
			v.putAway("f", "old")
			two.open("by the new name", two.look("old"), fuse.OK)
			two.open("by the new name, again", two.look("old"), fuse.OK)
			followsTheName(one, node)
		},
		"by a descriptor": func(v *movedView, one, two thread) {
			node := one.look("f")
			v.putAway("f", "old")
			two.open("by a descriptor", node, stale)
			two.open("by a descriptor, which is not looked up", node, fuse.OK)
			followsTheName(one, node)
		},
		"between its look and its open": func(v *movedView, one, two thread) {
			node := one.look("f")
			two.rename("f", "new")
			two.rename("new", "f")
			one.open("right behind the rename", node, stale)
			one.look("f")
			two.cannotRename("f", "old") // its lock is kept for one
			v.putAway("f", "old")
			one.open("by what has the name no more", node, stale)
			followsTheName(one, node)
		},
		// The second ESTALE of a system call reaches the program. The next one begins
		// with what the kernel remembers, however long the daemon was frozen before.
		"twice in one call, and a freeze": func(v *movedView, one, _ thread) {
			node := one.look("f")
			v.putAway("f", "old")
			one.open("by the old name", node, stale)
			node = one.look("f")
			v.putAway("f", "older")
			time.Sleep(time.Hour)
			one.open("by what has the name no more", node, stale)
			followsTheName(one, node)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inMovedView(t, func(v *movedView) { test(v, thread{v, 1}, thread{v, 2}) })
		})
	}
}

// A second try that has come through a directory by its name does not follow that
// when it is put away: it gets what has the name.
func TestOpenInDirectoryPutAway(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		in := func(name string) string { return filepath.Join(v.source, name) }
		for _, err := range []error{os.Mkdir(in("d"), 0o755), os.Rename(in("f"), in("d/f")), os.Link(in("d/f"), in("d/g"))} {
			if err != nil {
				t.Fatal(err)
			}
		}
		one := thread{v, 1}
		look := func() uint64 { return one.lookIn(one.look("d"), "f") }
		one.open("one of two names", look(), stale)
		node := look()
		for _, err := range []error{os.Rename(in("d"), in("away")), os.Mkdir(in("d"), 0o755)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		v.make("d/f")
		one.open("in what has the name no more", node, stale)
		one.open("by what has the name", look(), fuse.OK)
	})
}

// A call that was sent to look can end without an OPEN, in the directory in which the program
// stands. The next call may have come from the root: it does not follow that directory.
func TestOpenAfterACallThatFailed(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		in := func(name string) string { return filepath.Join(v.source, name) }
		for _, err := range []error{os.Mkdir(in("d"), 0o755), os.Rename(in("f"), in("d/f")), os.Link(in("d/f"), in("d/g"))} {
			if err != nil {
				t.Fatal(err)
			}
		}
		one := thread{v, 1}
		dir := one.look("d")
		node := one.lookIn(dir, "f")
		one.open("one of two names", node, stale)
		header := one.header(dir)
		if s := v.fs.Lookup(nil, &header, "h", &fuse.EntryOut{}); s != fuse.ENOENT {
			t.Fatal(s)
		}
		one.lookIn(dir, "f")
		for _, err := range []error{os.Rename(in("d"), in("away")), os.Mkdir(in("d"), 0o755)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		v.make("d/f")
		one.open("in what has the name no more", node, stale)
		one.open("by what has the name", one.lookIn(one.look("d"), "f"), fuse.OK)
	})
}
