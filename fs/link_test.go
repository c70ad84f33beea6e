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
