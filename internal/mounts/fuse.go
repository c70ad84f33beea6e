package mounts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
)

const devFuse = "/dev/fuse"

// CheckFuse checks that this user can mount FUSE file systems here; the
// message says what to install, load or pass if not.
func CheckFuse() error {
	if os.Geteuid() != 0 {
		// fusermount3 opens the device, as root.
		if _, err := os.Stat(devFuse); err != nil {
			return fuseError(err)
		}
		_, err := fusermount()
		return err
	}
	f, err := os.OpenFile(devFuse, os.O_RDWR, 0)
	if err != nil {
		return fuseError(err)
	}
	return f.Close()
}

// fuseError says what to do when the device cannot be used.
func fuseError(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w; in a container pass --device %s --cap-add SYS_ADMIN", err, devFuse)
	}
	return fmt.Errorf("%w; load the module (modprobe fuse), in a container pass --device %s --cap-add SYS_ADMIN", err, devFuse)
}

// fusermount finds the setuid helper that lets users mount.
func fusermount() (string, error) {
	for _, name := range []string{"fusermount3", "fusermount"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("fusermount3 is missing, without which only root can mount; install it (apt install fuse3)")
}
