package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/bench/internal/command"
)

// As root, go-fuse's loopback asks the kernel to pass reads and writes through to the
// backing (FOPEN_PASSTHROUGH). Then it is ext4 itself, does not see what is written, and is
// measured as 'passthrough'. A view that must see each write compares with loopback as
// other users run it. Without CAP_SYS_ADMIN it runs so for root too. It cannot mount then,
// so the bench mounts for it.

// loopbackArgs make the view usable like lockfs'.
var loopbackArgs = []string{"-q", "-allow-other"}

func (b *bench) buildLoopback(ctx context.Context) (string, error) {
	bin := filepath.Join(b.tmp, "loopback.bin")
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", bin, "github.com/hanwen/go-fuse/v2/example/loopback")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build go-fuse's loopback (run this inside the module): %w: %s", err, out)
	}
	return bin, nil
}

func (s *system) passthrough(bin string) *exec.Cmd {
	return exec.Command(bin, append(loopbackArgs, "-directmountstrict", s.dir, s.backing)...)
}

// loopback is the daemon without passthrough, for an existing mount.
func (s *system) loopback(b *bench, bin string) (*exec.Cmd, error) {
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	s.release = func() { dev.Close() } // the mount ends with the daemon, which has the other
	// As go-fuse mounts: MaxWrite is 128 KiB unless said otherwise.
	opts := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,max_read=131072,default_permissions,allow_other", dev.Fd())
	if err := unix.Mount(s.backing, s.dir, "fuse.loopback", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		dev.Close()
		return nil, fmt.Errorf("mount loopback: %w", err)
	}
	s.unmount = true
	cmd := exec.Command(b.self, append(append([]string{bin}, loopbackArgs...), "/dev/fd/3", s.backing)...)
	cmd.Env = command.Environ("plain")
	cmd.ExtraFiles = []*os.File{dev}
	return cmd, nil
}

// execPlain is the hidden mode that executes another program without CAP_SYS_ADMIN.
func execPlain(args []string) error {
	if len(args) == 0 {
		return errors.New("want a program")
	}
	runtime.LockOSThread() // a thread's capabilities are those of the program that it executes
	if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_ADMIN, 0, 0, 0); err != nil {
		return fmt.Errorf("drop CAP_SYS_ADMIN: %w", err)
	}
	return unix.Exec(args[0], args, os.Environ())
}
