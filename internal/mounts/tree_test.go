package mounts

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// clone returns a mount of dir that is nowhere yet.
func clone(t *testing.T, dir string, attrs Attrs) *os.File {
	t.Helper()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	tree, err := Clone(d, attrs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	return tree
}

// source makes a file system with one file of that name.
func source(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	mount(t, name, dir, "tmpfs", 0, "size=64k")
	if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func has(t *testing.T, dir, name string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
		t.Error(err)
	}
}

func TestAttach(t *testing.T) {
	target := t.TempDir()
	if err := Attach(clone(t, source(t, "a"), ReadOnly|NoExec), target); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = Detach(target) })
	has(t, target, "a")
	if err := os.WriteFile(filepath.Join(target, "b"), nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("a write to a read-only mount: %v", err)
	}
	m, ok, err := Find(target)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	if m.Flags[:2] != "ro" {
		t.Errorf("its flags are %q", m.Flags)
	}
}

// The dead mount is gone, and one is there in its place: also where it was mounted on itself, in a
// shared mount, and in another namespace.
func TestReplaceADeadMount(t *testing.T) {
	for _, propagation := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		parent := t.TempDir()
		mount(t, "parent", parent, "tmpfs", 0, "size=64k")
		if err := unix.Mount("", parent, "", propagation, ""); err != nil {
			t.Fatal(err)
		}
		target := filepath.Join(parent, "target")
		if err := os.Mkdir(target, 0o755); err != nil {
			t.Fatal(err)
		}
		mountDead(t, "/srv/data", target)
		if err := Replace(clone(t, source(t, "a"), 0), target); err != nil {
			t.Fatal(err)
		}
		has(t, target, "a")
		table, err := List()
		if err != nil {
			t.Fatal(err)
		}
		there := 0
		for _, m := range table {
			if m.Point == target {
				there++
			}
		}
		if there != 1 {
			t.Errorf("%d mounts at the path", there)
		}
		if err := Detach(target); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := Find(target); ok || err != nil {
			t.Errorf("something is left: %v, %v", ok, err)
		}
	}
}

func TestReplaceInAnotherNamespace(t *testing.T) {
	target := t.TempDir()
	mountDead(t, "/srv/data", target)
	// A container: it has the mount, and hears of no other.
	script := `echo; read _; stat "$0/a"`
	container := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-c", script, target)
	in, err := container.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := container.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	container.Stderr = os.Stderr
	if err := container.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	pid := container.Process.Pid
	theirs, err := ListOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, m := range theirs {
		found = found || m.Point == target && m.FSType == FSType
	}
	if !found {
		t.Fatal("the container does not have the mount")
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	tree := clone(t, source(t, "a"), 0)
	if err := Inside(ns, func() error { return Replace(tree, target) }); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(target); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("our own mount is another: %v", err)
	}
	if _, err := in.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	if err := container.Wait(); err != nil {
		t.Errorf("in the container: %v", err)
	}
}

// Whatever thread it was done on, the process is where it was: /proc/self is its first thread's.
func TestInsideAndBack(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	container := exec.Command("unshare", "-m", "cat")
	in, err := container.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	if err := container.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = container.Wait() })
	path := fmt.Sprintf("/proc/%d/ns/mnt", container.Process.Pid)
	for there := own; there == own; { // until unshare has done it
		if there, err = os.Readlink(path); err != nil {
			t.Fatal(err)
		}
	}
	ns, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	for range 100 {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if err := Inside(ns, func() error { return nil }); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if now, err := os.Readlink("/proc/self/ns/mnt"); now != own || err != nil {
			t.Fatalf("the process is in %s, and was in %s: %v", now, own, err)
		}
	}
}
