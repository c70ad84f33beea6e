package mounts

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// The oldest Linux on which the tests pass. faccessat2 (5.8) and openat2 (5.6) would
// suffice, but that is not tested.
const oldestMajor, oldestMinor = 5, 10

// CheckKernel fails on a Linux older than that.
func CheckKernel() error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("uname: %w", err)
	}
	return checkRelease(unix.ByteSliceToString(u.Release[:]))
}

func checkRelease(release string) error {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return fmt.Errorf("the kernel's release %q is not one of Linux", release)
	}
	if major < oldestMajor || major == oldestMajor && minor < oldestMinor {
		return fmt.Errorf("this machine runs Linux %s; lockfs needs %d.%d or later", release, oldestMajor, oldestMinor)
	}
	return nil
}
