package embedetcd

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// tryLock returns the locked lock file, or errHeld. It is never removed: two processes could then
// each lock a different inode.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStateDir, err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		err = errHeld
	default:
		err = fmt.Errorf("%w: flock %s: %w", ErrStateDir, path, err)
	}
	f.Close()
	return nil, err
}

// Served reports whether a process has the lock service in dir. It may still be starting.
func Served(dir string) bool {
	f, err := os.Open(lockPath(dir))
	if err != nil {
		return false
	}
	defer f.Close()
	// Shared, so that two that ask do not take each other for a server. A mount that wants the lock
	// meanwhile tries again after pollInterval.
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// lockSource returns the directory source, open and locked, or ErrServedElsewhere. Take the
// lock file first: an etcd process releases it last.
func lockSource(source string) (*os.File, error) {
	f, err := os.OpenFile(source, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("%w: %s has a flock on it; mount it as the same user with the same LOCKFS_STATE_DIR, or give --endpoints",
				ErrServedElsewhere, source)
		}
		return nil, err
	}
	return f, nil
}

// writeHolder notes the server's PID for people, so errors do not matter. The width is fixed, so
// that no reader finds the file truncated.
func writeHolder(lock *os.File, pid int) {
	_, _ = lock.WriteAt(fmt.Appendf(nil, "%-10d\n", pid), 0)
}

// holder names the process that serves, or served last, for error messages.
func holder(dir string) string {
	b, err := os.ReadFile(lockPath(dir))
	pid := strings.TrimSpace(string(b))
	if err != nil || pid == "" {
		return ""
	}
	return ", last served by pid " + pid
}
