package fs

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

func (th thread) tryLink(node uint64, to string) fuse.Status {
	th.t.Helper()
	in := fuse.LinkIn{InHeader: th.header(rootID), Oldnodeid: node}
	return th.fs.Link(nil, &in, to, &fuse.EntryOut{})
}

// A link by any name that the kernel remembers is of the file that has the name now. That
// the file of before has no name any more is nothing to the program.
func TestLinkOfWhatWasReplaced(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		one, two := thread{v, 1}, thread{v, 2}
		node := one.look("f")
		for _, name := range []string{"g", "h"} { // by which it is known from then on
			if err := os.Link(filepath.Join(v.source, "f"), filepath.Join(v.source, name)); err != nil {
				v.t.Fatal(err)
			}
			two.look(name)
		}
		for _, name := range []string{"f", "g", "h"} {
			if err := os.Remove(filepath.Join(v.source, name)); err != nil {
				v.t.Fatal(err)
			}
		}
		v.make("f")
		if s := one.tryLink(node, "new"); s != stale {
			v.t.Fatalf("link of what f was: %v, want ESTALE", s)
		}
		if s := one.tryLink(one.look("f"), "new"); !s.Ok() {
			v.t.Errorf("link of what f is: %v", s)
		}
	})
}

// A file that is replaced again while the program looks for it gives ESTALE. The program's
// next call begins anew: it is not taken for one that has a descriptor of the file.
func TestLinkOfWhatWasReplacedTwice(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		replace := func() {
			v.make("other")
			v.renameElsewhere("other", "f")
		}
		one := thread{v, 1}
		var node uint64
		for _, what := range []string{"the first try", "the second try"} {
			node = one.look("f")
			replace()
			if s := one.tryLink(node, "new"); s != stale {
				v.t.Fatalf("%s: %v, want ESTALE", what, s)
			}
		}
		if s := one.tryLink(node, "new"); s != stale {
			v.t.Errorf("the next call, by what the kernel remembers: %v, want ESTALE", s)
		}
		if s := one.tryLink(one.look("f"), "new"); !s.Ok() {
			v.t.Errorf("its second try: %v", s)
		}
	})
}

// A program that has closed a file removes one of its names at once. The close is not known to be over,
// and the view does not know the other name.
func TestUnlinkRightAfterClose(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		one := thread{v, 1}
		path := filepath.Join(v.source, "f")
		for lasts, want := range map[time.Duration]fuse.Status{50 * time.Millisecond: fuse.OK, time.Second: fuse.EBUSY} {
			if err := os.Link(path, filepath.Join(v.source, lasts.String())); err != nil {
				v.t.Fatal(err)
			}
			n := v.fs.nodes.get(one.look("f"))
			var st unix.Stat_t
			if err := unix.Lstat(path, &st); err != nil {
				v.t.Fatal(err)
			}
			keys, err := v.fs.fileKeys("f", rule{}, &st)
			if err != nil {
				v.t.Fatal(err)
			}
			hold, err := v.fs.locks.Acquire(v.t.Context(), lockmgr.Request{Owner: "one", Keys: keys})
			if err != nil {
				v.t.Fatal(err)
			}
			n.addHold(hold)
			hold.Closing()
			time.AfterFunc(lasts, func() {
				n.removeHold(hold)
				hold.Release()
			})
			in := one.header(rootID)
			if s := v.fs.Unlink(nil, &in, "f"); s != want {
				v.t.Errorf("with a close that ends after %v: %v, want %v", lasts, s, want)
			}
			time.Sleep(time.Second)
			_ = os.Remove(path)
			v.make("f")
		}
	})
}

// A file is known by its whole path, because another mount has moved it. Then a directory of that path
// becomes a symbolic link to where the directory is now. The file is not linked under the lock of the
// path that leads through the link: whoever writes to it has the lock of another.
func TestLinkBehindASymbolicLink(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		for _, dir := range []string{"z", "c"} {
			if err := os.Mkdir(filepath.Join(v.source, dir), 0o755); err != nil {
				v.t.Fatal(err)
			}
		}
		v.make("z/b")
		one := thread{v, 1}
		node := one.lookIn(one.look("z"), "b")
		v.renameElsewhere("z/b", "c/b")
		n := v.fs.nodes.get(node)
		if err := v.fs.relocate(n); err != nil {
			v.t.Fatal(err)
		}
		at := v.fs.nodes.nameOf(n)
		if at.name != "c/b" || !v.fs.isNamed(n, at) {
			v.t.Fatalf("it is known as %q, and has that name: %v", at.name, v.fs.isNamed(n, at))
		}
		v.renameElsewhere("c", "d")
		if err := os.Symlink("d", filepath.Join(v.source, "c")); err != nil {
			v.t.Fatal(err)
		}
		if v.fs.isNamed(n, at) {
			v.t.Error("it has the name by a symbolic link")
		}
		if _, err := v.fs.glance(at); err != unix.ENOENT {
			v.t.Errorf("what has the name by a symbolic link: %v, want ENOENT", err)
		}
		hold := v.holdElsewhere(v.another(), "d/b")
		one.tryLink(node, "to") // the kernel may mean another file by the name z/b
		if s := one.tryLink(node, "to"); s != fuse.EBUSY {
			v.t.Errorf("link of what is open for write: %v, want EBUSY", s)
		}
		hold.Release()
		if s := one.tryLink(node, "to"); !s.Ok() {
			v.t.Errorf("link of what nobody has open: %v", s)
		}
	})
}
