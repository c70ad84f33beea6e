package fs

import (
	"sync/atomic"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// A server gives the number of a file that was removed to another. That is another
// node for the kernel, which keeps the old one while it knows it.
func TestFilesOfOneNumber(t *testing.T) {
	f := nodesOf(t, linked(t))
	root := f.nodes.get(rootID)
	fd, st, err := f.backing.lookAt(root.fd, "g", asUsual)
	if err != nil {
		t.Fatal(err)
	}
	learn := func(generation uint64) *node {
		t.Helper()
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		st.generation = generation
		return f.nodes.learn(root, "g", dup, &st)
	}
	defer unix.Close(fd)
	one, two := learn(1), learn(2)
	if one == two {
		t.Fatal("the second file of a number is the first one's node")
	}
	if again := learn(2); again != two {
		t.Errorf("looked up again, the second is node %d, want %d", again.id, two.id)
	}
	if is, err := f.backing.bears(one.inode, dirName{root, "g"}); is || err != unix.ESTALE {
		t.Errorf("bears() = %v, %v, want that it is not known", is, err)
	}
	f.nodes.forget(two.id, 2)
	if f.nodes.get(one.id) != one || f.nodes.find(one.inode) != one {
		t.Error("the kernel's forgetting the second takes the first along")
	}
}

// Where two files of a number cannot be told apart, a node of which the volume knows
// nothing any more is opened no more, and not found by the number.
func TestSupplanted(t *testing.T) {
	f := nodesOf(t, linked(t))
	n := f.learn(t, f.nodes.get(rootID), "g")
	f.nodes.supplant(n)
	if f.nodes.usable(n) || f.nodes.find(n.inode) != nil {
		t.Error("the node of a file that is gone is found, or can be opened")
	}
	if again := f.learn(t, f.nodes.get(rootID), "g"); again == n {
		t.Error("the other file of its number is that node")
	}
}

// Files are told apart by what this machine knows, wherever the test runs: two of one
// directory, and a file's two descriptors.
func TestGenerations(t *testing.T) {
	f := nodesOf(t, linked(t))
	b := f.backing
	b.local, b.overlaid = false, false
	generation := func(name string) uint64 {
		t.Helper()
		fd, st, err := b.lookAt(b.root, name, asUsual)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if !st.certain {
			t.Skip("this file system has neither handles nor times of birth")
		}
		return st.generation
	}
	if generation("d/f") != generation("g") {
		t.Error("two names of one file are two files")
	}
	if generation("d") == generation("e") {
		t.Error("two directories are one")
	}
}

// A file system that cannot be exported has no handles before Linux 6.5: SMB, 9p. The same
// is seen of a descriptor that is none.
func TestNoHandle(t *testing.T) {
	if handle, err := fileHandle(-1); err == nil || handle != nil {
		t.Errorf("%v, %v, want an error", handle, err)
	}
}

// Files of several file systems below SOURCE have different numbers in the view, which is one file
// system: find takes equal numbers for a loop, and cp and tar for names of one file.
func TestNumbersOfSeveralFileSystems(t *testing.T) {
	b := backing{device: new(atomic.Uint64)}
	b.device.Store(unix.Mkdev(8, 1))
	shown := make(map[uint64]bool)
	for _, dev := range []uint64{unix.Mkdev(8, 1), unix.Mkdev(8, 2), unix.Mkdev(0, 54), unix.Mkdev(0xfff, 0xfffff)} {
		for _, ino := range []uint64{1, 2, 256} {
			var attr fuse.Attr
			b.setAttr(&attr, &unix.Stat_t{Dev: dev, Ino: ino})
			shown[attr.Ino] = true
			if is := attr.Ino == ino; is != (dev == unix.Mkdev(8, 1)) {
				t.Errorf("inode %d of device %#x is shown as %d", ino, dev, attr.Ino)
			}
		}
	}
	if len(shown) != 12 {
		t.Errorf("12 files have %d numbers", len(shown))
	}
}
