package procid

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
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
	if !p.HasOpen(self, file, false) {
		t.Error("we have it open for write")
	}
	if p.HasOpen(self, File{Dev: "0:0", Ino: file.Ino}, false) {
		t.Error("an inode of another file system counts")
	}
	if p.HasOpen(1, file, false) || p.HasOpen(1<<22, file, false) {
		t.Error("others have it open")
	}
	w.Close()
	r, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if p.HasOpen(self, file, false) {
		t.Error("a reader counts")
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
