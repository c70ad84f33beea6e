package mounts

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestClearStale(t *testing.T) {
	dir := t.TempDir()
	if err := ClearStale(dir); err != nil {
		t.Fatalf("nothing mounted: %v", err)
	}
	for range 3 { // one on the other
		mountDead(t, "/srv/data", dir)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if err := ClearStale(link); err != nil {
		t.Fatal(err)
	}
	if m, ok, err := Find(dir); ok || err != nil {
		t.Errorf("still mounted: %+v, %v", m, err)
	}
	if _, err := os.ReadDir(dir); err != nil {
		t.Error(err)
	}
}

// What was below the dead mount is not ours to touch.
func TestClearStaleStops(t *testing.T) {
	dir := t.TempDir()
	mount(t, "below", dir, "tmpfs", 0, "size=64k")
	mountDead(t, "/srv/data", dir)
	wantMounted(t, dir, "tmpfs", "below")
}

func TestClearStaleRefuses(t *testing.T) {
	t.Run("tmpfs", func(t *testing.T) {
		dir := t.TempDir()
		mount(t, "mine", dir, "tmpfs", 0, "size=64k")
		wantMounted(t, dir, "tmpfs", "mine")
	})
	t.Run("a bind mount", func(t *testing.T) {
		dir := t.TempDir()
		mount(t, t.TempDir(), dir, "", unix.MS_BIND, "")
		var me *MountedError
		if err := ClearStale(dir); !errors.As(err, &me) {
			t.Errorf("ClearStale = %v, want a *MountedError", err)
		}
	})
	t.Run("a live view", func(t *testing.T) {
		dir := t.TempDir()
		serve(t, mountFuse(t, "/srv/my data", dir, FSType), dir)
		wantMounted(t, dir, FSType, "/srv/my data")
	})
	t.Run("another's dead mount", func(t *testing.T) {
		dir := t.TempDir()
		mountFuse(t, "host:", dir, "fuse.sshfs").Close()
		wantMounted(t, dir, "fuse.sshfs", "host:")
	})
	t.Run("not there", func(t *testing.T) {
		var pe *PathError
		if err := ClearStale(filepath.Join(t.TempDir(), "no")); !errors.As(err, &pe) || !errors.Is(err, os.ErrNotExist) {
			t.Errorf("ClearStale = %v, want a *PathError", err)
		}
	})
}

func wantMounted(t *testing.T, dir, fstype, source string) {
	t.Helper()
	err := ClearStale(dir)
	var me *MountedError
	if !errors.As(err, &me) || me.Mount.FSType != fstype || me.Mount.Source != source || me.Mount.Point != dir {
		t.Fatalf("ClearStale = %v, want a *MountedError for %s of %s", err, fstype, source)
	}
	if !strings.Contains(err.Error(), source) {
		t.Errorf("message does not name %s: %v", source, err)
	}
	t.Log(err)
}

// The table lists mounts that cannot be reached any more: the path decides.
func TestFindIgnoresCoveredMounts(t *testing.T) {
	parent := t.TempDir()
	child := filepath.Join(parent, "child")
	if err := os.Mkdir(child, 0o755); err != nil {
		t.Fatal(err)
	}
	mount(t, "covered", child, "tmpfs", 0, "size=64k")
	mount(t, "cover", parent, "tmpfs", 0, "size=64k")
	if err := os.Mkdir(child, 0o755); err != nil {
		t.Fatal(err)
	}
	if m, ok, err := Find(child); ok || err != nil {
		t.Errorf("Find(child) = %+v, %v, %v, want none", m, ok, err)
	}
	if m, ok, err := Find(parent); !ok || err != nil || m.Source != "cover" {
		t.Errorf("Find(parent) = %+v, %v, %v, want cover", m, ok, err)
	}
	if err := unix.Unmount(parent, unix.MNT_DETACH); err != nil { // or the other cannot be reached
		t.Fatal(err)
	}
}

func TestNetworkFS(t *testing.T) {
	dir := t.TempDir()
	mount(t, "t", dir, "tmpfs", 0, "size=64k")
	bind := t.TempDir()
	mount(t, dir, bind, "", unix.MS_BIND, "")
	fuse := t.TempDir()
	mountDead(t, "host:", fuse)
	for path, want := range map[string]string{dir: "tmpfs", bind: "tmpfs", "/proc/self": "proc", fuse: FSType} {
		fstype, network, err := NetworkFS(path)
		if fstype != want || network != (path == fuse) || err != nil {
			t.Errorf("NetworkFS(%s) = %q, %v, %v, want %q", path, fstype, network, err, want)
		}
	}
	if _, _, err := NetworkFS(filepath.Join(dir, "no")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("NetworkFS of nothing: %v", err)
	}
}
