package fs

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// nodesOf is the table of a view of a directory, without a kernel.
func nodesOf(t *testing.T, source string) *FS {
	t.Helper()
	b, err := openBacking(source)
	if err != nil {
		t.Fatal(err)
	}
	f := &FS{locker: locker{files: files{backing: b, nodes: newNodes(b.root, b.inode, NewPool())}}}
	t.Cleanup(f.nodes.close)
	return f
}

// learn looks a name up as the kernel does.
func (f *files) learn(t *testing.T, dir *node, name string) *node {
	t.Helper()
	fd, st, err := f.backing.lookAt(dir.fd, name, asUsual)
	if err != nil {
		t.Fatal(err)
	}
	return f.nodes.learn(dir, name, fd, &st)
}

// closed returns when the node's descriptor is.
func closed(t *testing.T, n *node) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		var st unix.Stat_t
		if unix.Fstat(n.fd, &st) == unix.EBADF {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the descriptor of a directory that nobody uses is open")
		}
		runtime.Gosched()
	}
}

// linked makes the file f in one directory, and links it as f in another.
func linked(t *testing.T) (source string) {
	t.Helper()
	source = t.TempDir()
	for _, dir := range []string{"d", "e"} {
		if err := os.Mkdir(filepath.Join(source, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(source, "d/f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"e/f", "g"} {
		if err := os.Link(filepath.Join(source, "d/f"), filepath.Join(source, name)); err != nil {
			t.Fatal(err)
		}
	}
	return source
}

// A file is known by a name in a directory that the kernel has forgotten, and the
// number of that directory's descriptor is another's now. The name is not looked
// for in there.
func TestNameInAForgottenDirectory(t *testing.T) {
	source := linked(t)
	f := nodesOf(t, source)
	root := f.nodes.get(rootID)
	d := f.learn(t, root, "d")
	n := f.learn(t, d, "f")
	f.learn(t, root, "g")
	alias := dirName{d, "f"}
	if !f.isNamed(n, alias) {
		t.Fatal("d/f is not a name of the file")
	}
	f.nodes.forget(d.id, 1)
	closed(t, d)
	for range 100 { // the lowest free number is taken
		fd, err := unix.Open(filepath.Join(source, "e"), pathFlags, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if fd == d.fd {
			break
		}
	}
	if f.isNamed(n, alias) {
		t.Error("a name was looked for in another directory")
	}
	if st, err := f.backing.statNow(alias); err != unix.ESTALE {
		t.Errorf("statNow() = inode %d, %v, want ESTALE", st.Ino, err)
	}
	if path, err := f.currentPath(d); err != unix.ESTALE {
		t.Errorf("currentPath() = %q, %v, want ESTALE", path, err)
	}
}

// A directory that the kernel forgets while something is looked for in it stays
// open until that is over.
func TestForgottenInUse(t *testing.T) {
	f := nodesOf(t, linked(t))
	d := f.learn(t, f.nodes.get(rootID), "d")
	if !d.enter() {
		t.Fatal("a directory that the kernel knows cannot be used")
	}
	f.nodes.forget(d.id, 1)
	if st, err := f.backing.stat(d.fd, asUsual); err != nil || inodeOf(&st) != d.inode {
		t.Errorf("the descriptor is of inode %d, %v, want %d", st.Ino, err, d.inode.ino)
	}
	d.leave()
	closed(t, d)
	if d.enter() {
		t.Error("a directory that is closed can be used")
	}
}
