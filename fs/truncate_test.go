package fs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// truncate is truncate(2) of a node.
func (th thread) truncate(what string, node uint64, want fuse.Status) {
	th.t.Helper()
	in := fuse.SetAttrIn{SetAttrInCommon: fuse.SetAttrInCommon{InHeader: th.header(node), Valid: fuse.FATTR_SIZE}}
	if s := th.fs.SetAttr(nil, &in, &fuse.AttrOut{}); s != want {
		th.t.Fatalf("%s: %v, want %v", what, s, want)
	}
}

// A truncation by a name that another mount has taken from a file is not of that file, whatever
// other names the file has.
func TestTruncateOfWhatWasPutAway(t *testing.T) {
	for name, test := range map[string]func(v *movedView, one, two thread, node uint64){
		"renamed": func(v *movedView, one, two thread, node uint64) {
			v.renameElsewhere("f", "away")
			one.truncate("by the old name", node, stale)
			one.looksInVain("f")
			two.truncate("by the old name, which one has asked for", node, stale)
		},
		"removed, and it has one name left": func(v *movedView, one, two thread, node uint64) {
			v.remove("f")
			one.truncate("by the old name", node, stale)
			one.looksInVain("f")
			two.truncate("which name it means is not known", node, stale)
			two.truncate("by its name", two.look("g"), fuse.OK)
		},
		"replaced": func(v *movedView, one, _ thread, node uint64) {
			v.make("other")
			v.renameElsewhere("other", "f")
			one.truncate("by the old name", node, stale)
			one.truncate("what has the name", one.look("f"), fuse.OK)
		},
		"replaced twice": func(v *movedView, one, _ thread, node uint64) {
			v.remove("g")
			one.truncate("which name it means is not known", node, stale)
			one.look("f")
			v.link("f", "h")
			v.remove("f")
			v.make("f")
			one.truncate("by the old name again", node, stale)
			one.truncate("what has the name", one.look("f"), fuse.OK)
		},
		"another name is gone": func(v *movedView, one, _ thread, node uint64) {
			v.remove("g")
			one.truncate("which name it means is not known", node, stale)
			one.look("f")
			one.truncate("by its name", node, fuse.OK)
		},
		"a descriptor": func(v *movedView, one, _ thread, node uint64) {
			v.remove("f")
			one.truncate("which name it means is not known", node, stale)
			one.truncate("by a descriptor, which is not looked up", node, fuse.OK)
		},
		"nothing has changed": func(_ *movedView, one, _ thread, node uint64) {
			one.truncate("by its name", node, fuse.OK)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inMovedView(t, func(v *movedView) {
				one, two := thread{v, 1}, thread{v, 2}
				v.link("f", "g")
				node := one.look("f")
				one.look("g") // the node is known as g, the kernel believes both
				test(v, one, two, node)
			})
		})
	}
}

func (v *movedView) link(name, to string) {
	v.t.Helper()
	if err := os.Link(filepath.Join(v.source, name), filepath.Join(v.source, to)); err != nil {
		v.t.Fatal(err)
	}
}

func (v *movedView) remove(name string) {
	v.t.Helper()
	if err := os.Remove(filepath.Join(v.source, name)); err != nil {
		v.t.Fatal(err)
	}
}

func (th thread) looksInVain(name string) {
	th.t.Helper()
	in := th.header(rootID)
	if s := th.fs.Lookup(nil, &in, name, &fuse.EntryOut{}); s != fuse.ENOENT {
		th.t.Fatalf("lookup of %s: %v, want ENOENT", name, s)
	}
}
