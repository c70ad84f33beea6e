package fs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/policy"
)

// tryRename renames from to to, both paths of two names at most.
func (th thread) tryRename(from, to string) fuse.Status {
	th.t.Helper()
	parent := func(path string) uint64 {
		if dir := filepath.Dir(path); dir != "." {
			return th.look(dir)
		}
		return rootID
	}
	in := fuse.RenameIn{InHeader: th.header(parent(from)), Newdir: parent(to)}
	return th.fs.Rename(nil, &in, filepath.Base(from), filepath.Base(to))
}

// onNetwork makes the view one of a volume that other machines change: what a name was
// is remembered, and is a guess.
func (v *movedView) onNetwork() {
	v.t.Helper()
	v.fs.backing.local = false
	st, err := v.fs.backing.stat(v.fs.backing.root, anew)
	if err != nil {
		v.t.Fatal(err)
	}
	root := v.fs.nodes.get(rootID)
	delete(v.fs.nodes.byInode, root.inode)
	root.inode = inodeOf(&st)
	v.fs.nodes.byInode[root.inode] = root
}

// Another mount may put a directory in a file's place, and the other way round. A rename
// is refused for what is there now, not for what was seen before.
func TestRenameOfAnotherKind(t *testing.T) {
	// replace has another mount put a file, or a directory, in the place of a name.
	replace := func(v *movedView, name string, dir bool) {
		path := filepath.Join(v.source, name)
		err := os.Remove(path)
		if err == nil && dir {
			err = os.Mkdir(path, 0o755)
		}
		if err != nil {
			v.t.Fatal(err)
		}
		if !dir {
			v.make(name)
		}
	}
	for name, test := range map[string]struct {
		rules    string
		dir      bool // from is seen to be a directory first
		from, to string
		change   func(v *movedView)
		want     fuse.Status
	}{
		"a directory moves to where a file could not": {
			rules: "/g nolock", from: "f", to: "g",
			change: func(v *movedView) { replace(v, "f", true) },
			want:   fuse.OK,
		},
		"a file moves to where a directory could not": {
			rules: "/full/*/** nolock", dir: true, from: "d", to: "full/d",
			change: func(v *movedView) { replace(v, "d", false) },
			want:   fuse.OK,
		},
		"a file does not replace a directory": {
			dir: true, from: "d", to: "full",
			change: func(v *movedView) { replace(v, "d", false) },
			want:   fuse.EISDIR,
		},
		"nothing does not replace a directory": {
			dir: true, from: "d", to: "full",
			change: func(v *movedView) { replace(v, "d", false); v.renameElsewhere("d", "away") },
			want:   fuse.ENOENT,
		},
		"a directory does not replace one that has entries": {
			from: "f", to: "full",
			change: func(v *movedView) { replace(v, "f", true) },
			want:   fuse.Status(unix.ENOTEMPTY),
		},
	} {
		t.Run(name, func(t *testing.T) {
			inMovedView(t, func(v *movedView) {
				v.onNetwork()
				rules, err := policy.Parse(policy.Source{Text: test.rules})
				if err != nil {
					t.Fatal(err)
				}
				v.fs.policy = rules
				for _, dir := range []string{"d", "full"} {
					if err := os.Mkdir(filepath.Join(v.source, dir), 0o755); err != nil {
						t.Fatal(err)
					}
				}
				v.make("full/f")
				one := thread{v, 1}
				one.look(test.from)
				test.change(v)
				if s := one.tryRename(test.from, test.to); s != test.want {
					t.Errorf("rename: %v, want %v", s, test.want)
				}
			})
		})
	}
}
