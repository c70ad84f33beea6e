package mounts

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// FSType is the type of lockfs's mounts in the mount table.
const FSType = "fuse.lockfs"

// Dead reports whether a killed daemon left a view at mountpoint. Errors: as ClearStale's.
func Dead(mountpoint string) (bool, error) {
	_, dead, err := stale(mountpoint)
	return dead, err
}

// ClearStale lazily unmounts what killed daemons left at mountpoint. It waits for a frozen daemon
// until that thaws or dies. Errors: *MountedError for another mount, or a served one.
func ClearStale(mountpoint string) error {
	cleared := map[int]bool{}
	for {
		m, ok, err := stale(mountpoint)
		if err != nil || !ok {
			return err
		}
		if cleared[m.ID] {
			return fmt.Errorf("the dead mount at %s is still there after its unmount; try umount -l %s", m.Point, m.Point)
		}
		cleared[m.ID] = true
		if err := detach(m.Point); err != nil {
			return fmt.Errorf("cannot unmount the dead lockfs mount at %s: %w; try umount -l %s as root", m.Point, err, m.Point)
		}
	}
}

// Served reports whether the lockfs mount at mountpoint is served. It may hang with its SOURCE.
func Served(mountpoint string) bool {
	_, ok, err := stale(mountpoint)
	return !ok || err != nil
}

func stale(path string) (Mount, bool, error) {
	l, err := open(path)
	if err != nil {
		return Mount{}, false, pathError("MOUNTPOINT", path, err)
	}
	defer l.close()
	m, ok, err := l.mountedAt()
	if err != nil || !ok {
		return Mount{}, false, err
	}
	if m.FSType != FSType || !l.dead() {
		return Mount{}, false, &MountedError{Mount: m}
	}
	return m, true, nil
}

// dead asks with FORCE_SYNC: for a second after a kill the kernel answers from its attribute
// cache.
func (l *location) dead() bool {
	var st unix.Statx_t
	err := unix.Statx(int(l.file.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_TYPE, &st)
	return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED)
}

// detach unmounts path lazily: a dead mount may have files open.
func detach(path string) error {
	if os.Geteuid() == 0 {
		return unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	tool, err := fusermount()
	if err != nil {
		return err
	}
	out, err := exec.Command(tool, "-uz", "--", path).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", tool, err, bytes.TrimSpace(out))
	}
	return nil
}
