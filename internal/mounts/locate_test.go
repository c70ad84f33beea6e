package mounts

import (
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
