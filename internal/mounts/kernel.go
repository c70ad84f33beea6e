package mounts

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// The oldest Linux that the tests have passed on. faccessat2 (5.8) and openat2 (5.6)
// would do, but no tests say so.
const oldestMajor, oldestMinor = 5, 10

// CheckKernel checks that this Linux is not older than what lockfs is tested on.
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
