package fs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
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
