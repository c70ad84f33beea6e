package fs

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// connected reports whether a view's connection has not ended. Until then no other view has its
// device number.
func connected(device int) bool {
	p := []unix.PollFd{{Fd: int32(device)}}
	_, err := ignoringEINTR(func() (int, error) { return unix.Poll(p, 0) })
	return err == nil && p[0].Revents&unix.POLLERR == 0
}

// openAbort opens the file by which root ends a view's connection. dev is the connection's number
// until it ends. The descriptor survives a reuse of dev.
func openAbort(device int, dev string) (fd int, err error) {
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
	if !connected(device) {
		unix.Close(fd)
		return -1, errors.New("it has ended")
	}
	return fd, nil
}
