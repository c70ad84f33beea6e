package fs

import (
	"errors"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// A client that fails to answer once, and is the one of before, is not given up: programs
// would lose what they have open.
func TestReachOfTheSameClient(t *testing.T) {
	f := nodesOf(t, linked(t))
	f.source = procPath(f.backing.root)
	n := f.learn(t, f.nodes.get(rootID), "g")
	root := f.backing.root
	f.backing.root = -1 // which no client answers
	again, err := f.Reach(func(string) error { return nil })
	f.backing.root = root
	if again || !errors.Is(err, ErrOutOfReach) || !errors.Is(err, unix.EBADF) {
		t.Errorf("Reach() = %v, %v", again, err)
	}
	if f.nodes.get(n.id) != n {
		t.Error("the files of a client that is alive are given up")
	}
	if again, err := f.Reach(nil); again || err != nil {
		t.Errorf("Reach() when it answers = %v, %v", again, err)
	}
}

// A daemon without descriptors knows nothing of its volume: it is not out of reach.
func TestReachWithoutDescriptors(t *testing.T) {
	f := nodesOf(t, linked(t))
	f.source = procPath(f.backing.root)
	withoutDescriptors(t, func() {
		if again, err := f.Reach(nil); again || err != nil {
			t.Errorf("Reach() = %v, %v", again, err)
		}
		root := f.backing.root
		f.backing.root = -1 // which no client answers
		if _, err := f.Reach(nil); !errors.Is(err, ErrOutOfReach) || !errors.Is(err, unix.EBADF) {
			t.Errorf("Reach() of a client that does not answer = %v", err)
		}
		f.backing.root = root
	})
}

// A file that is made while the client is replaced has a handle of the former one: its
// lock does not stay behind where the file's names cannot be followed.
func TestCreateWhileTheClientIsReplaced(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		one := thread{v, 1}
		root := v.fs.nodes.get(rootID)
		in := fuse.CreateIn{InHeader: one.header(rootID), Flags: unix.O_WRONLY, Mode: 0o644}
		c := &creation{fs: v.fs, in: &in, dir: root, name: "new"}
		root.gone.Store(true) // since the request found it
		out := fuse.CreateOut{}
		if s := c.create(nil, "", &out); !s.Ok() {
			t.Fatal(s)
		}
		h := v.fs.handles.get(out.Fh)
		if err := h.hold.Check(); !errors.Is(err, lockmgr.ErrVolumeGone) {
			t.Errorf("the new file's hold: %v, want that it is given up", err)
		}
		v.fs.Release(nil, &fuse.ReleaseIn{InHeader: in.InHeader, Fh: out.Fh})
	})
}
