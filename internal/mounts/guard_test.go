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
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0 {
		t.Errorf("its mode is %v, want that nobody reads it", fi.Mode())
	}
	if err := checkUnguarded(dir); err == nil || !strings.Contains(err.Error(), "chattr -i "+dir) {
		t.Errorf("checkUnguarded = %v", err)
	}
	if got, err := CheckMountpoint(t.TempDir(), dir); got != dir || err != nil {
		t.Errorf("root may not mount there: %v", err)
	}
}

// A directory that is immutable, and can be read, is one that an older lockfs
// has guarded, or an administrator.
func TestGuardOfImmutable(t *testing.T) {
	dir := t.TempDir()
	if err := exec.Command("chattr", "+i", dir).Run(); err != nil {
		t.Skip("no file system that can:", err)
	}
	t.Cleanup(func() { _ = exec.Command("chattr", "-i", dir).Run() })
	if set, err := Guard(dir); !set || err != nil {
		t.Errorf("set: %v, %v", set, err)
	}
	if err := unix.Chmod(dir, 0o755); !errors.Is(err, unix.EPERM) {
		t.Errorf("chmod: %v, want EPERM", err)
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0 {
		t.Errorf("its mode is %v, want that nobody reads it", fi.Mode())
	}
}

// A file system without the flag is an error that says so, and still users do not
// get in.
func TestGuardUnsupported(t *testing.T) {
	dir := t.TempDir()
	mount(t, "none", dir, "ramfs", 0, "")
	if _, err := Guard(dir); !errors.Is(err, unix.ENOTTY) && !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("Guard = %v", err)
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0 {
		t.Errorf("its mode is %v, want that nobody reads it", fi.Mode())
	}
}
