package procid

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestHasOpen(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	w, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var st syscall.Stat_t
	if err := syscall.Fstat(int(w.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	self := os.Getpid()
	file := File{Dev: fmt.Sprintf("%d:%d", st.Dev>>8&0xfff, st.Dev&0xff), Ino: st.Ino}
	var p Proc
	if !p.FamilyHasOpen(t.Context(), self, file, false) {
		t.Error("we have it open for write")
	}
	if p.FamilyHasOpen(t.Context(), self, File{Dev: "0:0", Ino: file.Ino}, false) {
		t.Error("an inode of another file system counts")
	}
	if p.FamilyHasOpen(t.Context(), 1, file, false) || p.FamilyHasOpen(t.Context(), 1<<22, file, false) {
		t.Error("others have it open")
	}
	if !p.FamilyHasOpen(t.Context(), startSleep(t).Process.Pid, file, false) {
		t.Error("its parent has it open")
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if p.FamilyHasOpen(over, self, file, false) {
		t.Error("it looks on after the end of the context")
	}
	w.Close()
	r, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if p.FamilyHasOpen(t.Context(), self, file, false) {
		t.Error("a reader counts")
	}
}

// Before Linux 5.14 fdinfo has no inode number.
func TestHasOpenByTheDescriptor(t *testing.T) {
	root := t.TempDir()
	p := Proc{Root: root}
	file := func(name string) File {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, filepath.Join(root, name), 0, unix.STATX_INO, &st); err != nil {
			t.Fatal(err)
		}
		return File{Dev: fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor), Ino: st.Ino}
	}
	held, read, other := file("held"), file("read"), file("other")
	for _, dir := range []string{"7/fd", "7/fdinfo"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	table := fmt.Sprintf("22 27 %s / /view rw - fuse.lockfs /src rw\n23 27 0:1 / /elsewhere rw - nfs /src rw\n", held.Dev)
	if err := os.WriteFile(filepath.Join(root, "7/mountinfo"), []byte(table), 0o644); err != nil {
		t.Fatal(err)
	}
	for fd, d := range map[string]struct{ name, flags, mount string }{
		"3": {"held", "0100001", "22"},
		"4": {"read", "0100000", "22"},
		"5": {"other", "0100001", "23"}, // its own file system must not be asked
	} {
		info := fmt.Sprintf("pos:\t0\nflags:\t%s\nmnt_id:\t%s\n", d.flags, d.mount)
		if err := os.WriteFile(filepath.Join(root, "7/fdinfo", fd), []byte(info), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(root, d.name), filepath.Join(root, "7/fd", fd)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		what    string
		file    File
		readers bool
		want    bool
	}{
		{"a writer's", held, false, true},
		{"a reader's", read, false, false},
		{"a reader's, which counts", read, true, true},
		{"a file on another file system", other, true, false},
		{"the number on another file system", File{Dev: "0:1", Ino: held.Ino}, false, false},
	} {
		left := maxDescriptors
		if got := p.hasOpen(t.Context(), 7, c.file, c.readers, &left); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}

// A family of very many descriptors is not looked through.
func TestFamilyOfManyDescriptors(t *testing.T) {
	root := t.TempDir()
	fdinfo := filepath.Join(root, "7", "fdinfo")
	if err := os.MkdirAll(fdinfo, 0o755); err != nil {
		t.Fatal(err)
	}
	table := filepath.Join(root, "7", "mountinfo")
	if err := os.WriteFile(table, []byte("22 27 0:20 / /view rw - fuse.lockfs /src rw\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for fd := range 2 * maxDescriptors {
		if err := os.WriteFile(filepath.Join(fdinfo, fmt.Sprint(fd)), []byte("flags:\t0100001\nmnt_id:\t22\nino:\t5\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p, left := Proc{Root: root}, maxDescriptors
	if p.hasOpen(t.Context(), 7, File{Dev: "0:20", Ino: 6}, false, &left) || left != 0 {
		t.Errorf("%d of %d descriptors were left out", left, maxDescriptors)
	}
	if left = 1; !p.hasOpen(t.Context(), 7, File{Dev: "0:20", Ino: 5}, false, &left) {
		t.Error("the first one is not looked at")
	}
}

func TestMountDev(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "7"), 0o755); err != nil {
		t.Fatal(err)
	}
	table := `22 27 0:20 / /proc rw - proc proc rw
40 27 0:38 / /mnt/a\040b rw shared:1 - fuse.lockfs /src rw
41 27 0:39 / /mnt/a\040b rw - fuse.lockfs /src rw
`
	if err := os.WriteFile(filepath.Join(root, "7", "mountinfo"), []byte(table), 0o644); err != nil {
		t.Fatal(err)
	}
	p := Proc{Root: root}
	if dev, err := p.MountDev(7, "/mnt/a b"); dev != "0:39" || err != nil {
		t.Errorf("got %q, %v; want the topmost, 0:39", dev, err)
	}
	if _, err := p.MountDev(7, "/mnt"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no mount: %v", err)
	}
}
