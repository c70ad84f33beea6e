package semantics

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// deep is a directory that is reached step by step, for its path is too long for one
// call.
type deep struct {
	t    *testing.T
	fd   int
	path int // its length, from the volume's root
}

func descend(t *testing.T, root string) *deep {
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return &deep{t: t, fd: fd, path: -1}
}

// step makes a directory, unless it is there, and goes into it.
func (d *deep) step(name string) error {
	if err := unix.Mkdirat(d.fd, name, 0o755); err != nil && err != unix.EEXIST {
		return err
	}
	fd, err := unix.Openat(d.fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	unix.Close(d.fd)
	d.fd, d.path = fd, d.path+1+len(name)
	return nil
}

// names makes a file of each kind, and returns what each got.
func (d *deep) names(old string, suffix string) map[string]error {
	got := make(map[string]error)
	fd, err := unix.Openat(d.fd, "c"+suffix, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
	if got["creation"] = err; err == nil {
		unix.Close(fd)
	}
	got["mkdir"] = unix.Mkdirat(d.fd, "d"+suffix, 0o755)
	got["mknod"] = unix.Mknodat(d.fd, "n"+suffix, unix.S_IFREG|0o644, 0)
	got["symlink"] = unix.Symlinkat("target", d.fd, "s"+suffix)
	got["link"] = unix.Linkat(unix.AT_FDCWD, old, d.fd, "l"+suffix, 0)
	got["rename"] = unix.Renameat(unix.AT_FDCWD, old, d.fd, "r"+suffix)
	return got
}

// A path is at most as long as one system call could name it. What is longer, because
// it was made on the bare directory, can be removed.
func TestLongPaths(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	m := v.Mount("m")
	v.Write("old", "")
	name := strings.Repeat("x", 250)
	d := descend(t, m.Dir)
	defer func() { unix.Close(d.fd) }()
	var err error
	for err == nil && d.path < 16<<10 {
		err = d.step(name)
	}
	if err != unix.ENAMETOOLONG || d.path <= 8191-251 || d.path > 8191 {
		t.Fatalf("a path of %d bytes, then %v", d.path, err)
	}
	room := 8191 - d.path - 1 - 1 // for the slash and the first letter
	for op, err := range d.names(m.Path("old"), strings.Repeat("y", room+1)) {
		if err != unix.ENAMETOOLONG {
			t.Errorf("%s of a path of 8192 bytes: %v", op, err)
		}
	}
	for op, err := range d.names(m.Path("old"), strings.Repeat("y", room)) {
		if err != nil {
			t.Errorf("%s of a path of 8191 bytes: %v", op, err)
		}
	}

	// Behind the view's back.
	for _, size := range []int{15000, 17000} {
		top := fmt.Sprint(size)
		bare := descend(t, v.Source)
		if err := bare.step(top); err != nil {
			t.Fatal(err)
		}
		for bare.path < size {
			if err := bare.step(name); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Mknodat(bare.fd, "f", unix.S_IFREG|0o644, 0); err != nil {
			t.Fatal(err)
		}
		unix.Close(bare.fd)
		seen := descend(t, m.Dir)
		for seen.path < size {
			step := name
			if seen.path < 0 {
				step = top
			}
			if err := seen.step(step); err != nil {
				t.Fatalf("into a path of %d bytes: %v", seen.path, err)
			}
		}
		var want error
		if size > 16<<10 {
			want = unix.ENAMETOOLONG
		}
		fd, err := unix.Openat(seen.fd, "f", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Errorf("open for read of a path of %d bytes: %v", size, err)
		}
		unix.Close(fd)
		fd, err = unix.Openat(seen.fd, "f", unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if unix.Close(fd); err != want {
			t.Errorf("open for write of a path of %d bytes: %v", size, err)
		}
		if err := unix.Unlinkat(seen.fd, "f", 0); err != want {
			t.Errorf("unlink of a path of %d bytes: %v", size, err)
		}
		unix.Close(seen.fd)
		if want != nil {
			continue
		}
		if err := os.RemoveAll(filepath.Join(m.Dir, top)); err != nil {
			t.Errorf("remove what is below a path of %d bytes: %v", size, err)
		}
	}
	if err := os.RemoveAll(m.Path(name)); err != nil {
		t.Error(err)
	}
}
