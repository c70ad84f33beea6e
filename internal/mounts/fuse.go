package mounts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

const devFuse = "/dev/fuse"

// CheckFuse checks that this user can mount FUSE here. The message says what to do.
func CheckFuse() error {
	// fusermount3 is setuid root, but opens the device as its caller.
	f, err := os.OpenFile(devFuse, os.O_RDWR, 0)
	if err != nil {
		return fuseError(err)
	}
	if err := f.Close(); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		_, err = fusermount()
		return err
	}
	return checkCapability()
}

// checkCapability: root in a container often lacks the capability to mount.
func checkCapability() error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return fmt.Errorf("read our capabilities: %w", err)
	}
	if data[0].Effective&(1<<unix.CAP_SYS_ADMIN) == 0 {
		return errors.New("this root may not mount: it lacks CAP_SYS_ADMIN; in a container pass --cap-add SYS_ADMIN")
	}
	return nil
}

func fuseError(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w; let the user open it (chmod 666 %s, as udev does), in a container pass --device %s --cap-add SYS_ADMIN", err, devFuse, devFuse)
	}
	return fmt.Errorf("%w; load the module (modprobe fuse), in a container pass --device %s --cap-add SYS_ADMIN", err, devFuse)
}

func fusermount() (string, error) {
	for _, name := range []string{"fusermount3", "fusermount"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("fusermount3 is missing, without which only root can mount; install it (apt install fuse3)")
}
