package fs

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// openAbort opens the file by which root ends a view's connection. It survives a reuse of dev.
func openAbort(dev string) (fd int, err error) {
	_, minor, _ := strings.Cut(dev, ":")
	control, err := unix.Fsopen("fusectl", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("fusectl: %w", err)
	}
	defer unix.Close(control)
	if err := unix.FsconfigCreate(control); err != nil {
		return -1, fmt.Errorf("fusectl: %w", err)
	}
	root, err := unix.Fsmount(control, unix.FSMOUNT_CLOEXEC, 0) // in no mount table
	if err != nil {
		return -1, fmt.Errorf("fusectl: %w", err)
	}
	defer unix.Close(root)
	fd, err = unix.Openat(root, minor+"/abort", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("fusectl: %s/abort: %w", minor, err)
	}
	return fd, nil
}
