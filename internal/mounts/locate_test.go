package mounts

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A mount that goes away while it is looked up was not there.
func TestLookBesideUnmounts(t *testing.T) {
	dir := t.TempDir()
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	mount(t, "first", dir, "tmpfs", 0, "size=64k")
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-over:
				return
			default:
			}
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
				return
			}
			if err := unix.Mount("next", dir, "tmpfs", 0, "size=64k"); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for range 2000 {
		m, found, err := Find(dir)
		if err != nil || found && m.FSType != "tmpfs" {
			t.Errorf("found %t: %+v, %v", found, m, err)
			break
		}
		if path, err := Resolve(dir); path != dir || err != nil {
			t.Errorf("Resolve = %s, %v", path, err)
			break
		}
	}
	close(over)
	<-ended
}

// A mount is found where it is, also when the directory that it shows has lost its name.
func TestFindAnUnlinkedDirectory(t *testing.T) {
	root := tree(t, "x", "at")
	x, at := filepath.Join(root, "x"), filepath.Join(root, "at")
	mount(t, x, at, "", unix.MS_BIND, "")
	if err := os.Remove(x); err != nil {
		t.Fatal(err)
	}
	m, ok, err := Find(at)
	if !ok || err != nil || !m.Unlinked || filepath.Base(m.Root) != "x" {
		t.Errorf("Find: %+v, %t, %v", m, ok, err)
	}
	if m, below, err := Containing(filepath.Join(at, "f")); m.Point != at || below != "f" || err != nil {
		t.Errorf("Containing: %+v, %q, %v", m, below, err)
	}
}
