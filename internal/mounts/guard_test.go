package mounts

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestGuard(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	if err := checkUnguarded(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = exec.Command("chattr", "-i", dir).Run() })
	set, err := Guard(dir)
	if err != nil {
		t.Skip("no file system that can:", err)
	}
	if again, err := Guard(dir); !set || again || err != nil {
		t.Errorf("set: %v, again: %v, %v", set, again, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o644); !errors.Is(err, unix.EPERM) {
		t.Errorf("writing to it: %v, want EPERM", err)
	}
	if err := checkUnguarded(dir); err == nil || !strings.Contains(err.Error(), "chattr -i "+dir) {
		t.Errorf("checkUnguarded = %v", err)
	}
	if got, err := CheckMountpoint(t.TempDir(), dir); got != dir || err != nil {
		t.Errorf("root may not mount there: %v", err)
	}
}

// A file system without the flag is an error that says so.
func TestGuardUnsupported(t *testing.T) {
	dir := t.TempDir()
	mount(t, "none", dir, "ramfs", 0, "")
	if _, err := Guard(dir); !errors.Is(err, unix.ENOTTY) && !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("Guard = %v", err)
	}
}
