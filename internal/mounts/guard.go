package mounts

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// immutable is FS_IMMUTABLE_FL, what chattr +i sets.
const immutable = 0x10

// Guard makes the bare directory below a mount immutable (chattr +i), so that
// programs get EPERM instead of writing to it while the view is away. Call it
// before the mount. Only chattr -i takes it back. set reports that the
// directory was not guarded before.
func Guard(mountpoint string) (set bool, err error) {
	fd, err := unix.Open(mountpoint, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("open %s: %w", mountpoint, err)
	}
	defer unix.Close(fd)
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err != nil {
		return false, fmt.Errorf("read the flags of %s: %w", mountpoint, err)
	}
	if flags&immutable != 0 {
		return false, nil
	}
	if err := unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags|immutable)); err != nil {
		return false, fmt.Errorf("make %s immutable: %w", mountpoint, err)
	}
	return true, nil
}

// checkUnguarded refuses a guarded mountpoint to users: fusermount3 mounts only
// on what they may write to.
func checkUnguarded(mountpoint string) error {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, mountpoint, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &st)
	if err != nil && !errors.Is(err, unix.ENOSYS) {
		return pathError("MOUNTPOINT", mountpoint, err)
	}
	if st.Attributes&unix.STATX_ATTR_IMMUTABLE != 0 {
		return fmt.Errorf("MOUNTPOINT %s is guarded by a mount that root made: mount as root, remove the guard as root (chattr -i %s), or choose another", mountpoint, mountpoint)
	}
	return nil
}
