package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/mounts"
)

// What is killed at the end includes a stopped child of a child: others may wait for it.
func TestDescendants(t *testing.T) {
	parent := exec.Command("sh", "-c", "sleep 1000 >/dev/null & kill -STOP $!; echo $!; exec sleep 1000")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	_, err = fmt.Fscan(bufio.NewReader(out), &child)
	found := descendants(os.Getpid())
	for _, pid := range found {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	if err != nil || !slices.Contains(found, parent.Process.Pid) || !slices.Contains(found, child) {
		t.Errorf("found %v, want %d and its child %d (%v)", found, parent.Process.Pid, child, err)
	}
	_ = parent.Wait()
}

// Mounts of others are gone, with what is stacked on them or in them. What is kept stays reachable.
func TestDetachBelow(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount")
	}
	dir := t.TempDir()
	t.Cleanup(func() { _ = detachBelow(dir, nil) })
	for _, name := range []string{"other", "other/in", "other/in", "other", "other/in", "kept", "kept/dir/other"} {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("none", at, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
	}
	kept := filepath.Join(dir, "kept/dir")
	if err := detachBelow(dir, []string{kept}); err != nil {
		t.Fatal(err)
	}
	table, err := mounts.List()
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, m := range table {
		if strings.HasPrefix(m.Point, dir) {
			left = append(left, m.Point)
		}
	}
	if want := []string{filepath.Join(dir, "kept")}; !slices.Equal(left, want) {
		t.Errorf("left: %v, want %v", left, want)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
}
