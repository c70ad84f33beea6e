package mounts

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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
		old, ok, err := Find(target)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		if err := Replace(clone(t, source(t, "a"), 0), old, nil); err != nil {
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
	container := startContainer(t, `echo; read _; stat "$0/a"`, target)
	old := container.mount(target)
	if old.FSType != FSType {
		t.Fatal("the container does not have the mount")
	}
	if err := Replace(clone(t, source(t, "a"), 0), old, container.namespace); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(target); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("our own mount is another: %v", err)
	}
	container.end()
}

func TestListIn(t *testing.T) {
	dir := t.TempDir()
	container := startContainer(t, `mount -t tmpfs there "$0"; echo; read _`, dir)
	table, err := ListIn(container.namespace)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(table, container.mounts()) {
		t.Errorf("%v, want %v", table, container.mounts())
	}
	if !slices.ContainsFunc(table, func(m Mount) bool { return m.Source == "there" && m.Point == dir }) {
		t.Errorf("no mount at %s: %v", dir, table)
	}
}

// container is a process whose mount namespace has the mounts of ours, and hears of no other.
type container struct {
	t         *testing.T
	pid       int
	namespace *os.File
	end       func() // lets its script go on, and waits
}

// startContainer runs a shell script with $0. The script writes a byte when it is ready, and reads
// a line before it ends.
func startContainer(t *testing.T, script, arg string) *container {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	cmd := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-c", script, arg)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &container{t: t, pid: cmd.Process.Pid}
	c.end = sync.OnceFunc(func() {
		_, _ = in.Write([]byte("\n"))
		if err := cmd.Wait(); err != nil {
			t.Errorf("in the container: %v", err)
		}
	})
	t.Cleanup(c.end)
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	c.namespace, err = os.Open(fmt.Sprintf("/proc/%d/ns/mnt", c.pid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.namespace.Close() })
	return c
}

func (c *container) mounts() []Mount {
	c.t.Helper()
	table, err := ListOf(c.pid)
	if err != nil {
		c.t.Fatal(err)
	}
	return table
}

// mount returns the last mount at a path that the container sees.
func (c *container) mount(point string) (found Mount) {
	c.t.Helper()
	for _, m := range c.mounts() {
		if m.Point == point {
			found = m
		}
	}
	return found
}

// A container can exchange the directories on the way to its mount. Another one that shares them can
// exchange the mount point itself. Neither leads to another mount.
func TestReplaceWhileNamesChange(t *testing.T) {
	for _, names := range [][2]string{{"x", "y"}, {"x/sys", "x/mask"}} {
		t.Run(names[0], func(t *testing.T) { testReplaceWhileNamesChange(t, names) })
	}
}

func testReplaceWhileNamesChange(t *testing.T, names [2]string) {
	e := t.TempDir()
	mount(t, "e", e, "tmpfs", 0, "size=64k")
	for _, dir := range []string{"x/sys", "x/mask", "other/sys"} {
		if err := os.MkdirAll(filepath.Join(e, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link(t, "other", filepath.Join(e, "y"))
	container := startContainer(t, `cd "$0" && mount -t tmpfs old x/sys &&
		mount -t tmpfs mask x/mask && mount -t tmpfs mask other/sys && cd / && echo; read _`, e)
	exchange := func() error {
		return unix.Renameat2(unix.AT_FDCWD, filepath.Join(e, names[0]),
			unix.AT_FDCWD, filepath.Join(e, names[1]), unix.RENAME_EXCHANGE)
	}
	// Another text: a mask is gone, a mount is beneath it, or one is on it.
	masks := func() (said string) {
		var ids []int
		for _, m := range container.mounts() {
			if m.Source == "mask" {
				ids = append(ids, m.ID)
				said += fmt.Sprintln("mask", m.ID, "on", m.Parent)
			} else if slices.Contains(ids, m.Parent) {
				said += fmt.Sprintln(m, "on a mask")
			}
		}
		return said
	}
	untouched := masks()
	dir := source(t, "a")
	replace := func() error {
		var old Mount
		for _, m := range container.mounts() {
			if m.Source == "old" || m.Source == "a" && strings.HasPrefix(m.Point, e+"/") {
				old = m
			}
		}
		return Replace(clone(t, dir, 0), old, container.namespace)
	}

	old := container.mount(filepath.Join(e, "x/sys"))
	if err := exchange(); err != nil {
		t.Fatal(err)
	}
	if err := Replace(clone(t, dir, 0), old, container.namespace); err == nil {
		t.Error("it replaced what the path leads to by now")
	}
	if now := masks(); now != untouched {
		t.Fatalf("now:\n%sbefore:\n%s", now, untouched)
	}

	stop := make(chan struct{})
	var flips sync.WaitGroup
	flips.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := exchange(); err != nil {
				t.Error(err)
				return
			}
		}
	})
	done := 0
	for range 200 {
		if replace() == nil {
			done++
		}
		if now := masks(); now != untouched {
			t.Errorf("now:\n%sbefore:\n%s", now, untouched)
			break
		}
	}
	close(stop)
	flips.Wait()
	t.Logf("replaced %d times of 200", done)
	if err := replace(); err != nil {
		t.Errorf("when the names keep still: %v", err)
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
				if err := inNamespace(ns, func() error { return nil }); err != nil {
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
