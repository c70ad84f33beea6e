package mounts

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// immutable is FS_IMMUTABLE_FL, what chattr +i sets.
const immutable = 0x10

// Guard closes the bare directory below a future mount, so that no program uses it without a view.
// Mode 0 hides it from users, the immutable flag (chattr +i) keeps root from writing. Only 'lockfs
// cleanup', or chattr -i and chmod, undo it. set: it was not guarded before.
func Guard(mountpoint string) (set bool, err error) {
	fd, err := unix.Open(mountpoint, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("open %s: %w", mountpoint, err)
	}
	defer unix.Close(fd)
	return guard(fd, mountpoint)
}

// GuardFile is Guard for an open directory.
func GuardFile(dir *os.File) error {
	_, err := guard(int(dir.Fd()), dir.Name())
	return err
}

func guard(fd int, mountpoint string) (set bool, err error) {
	guarded, flags, flagsErr, err := look(fd, mountpoint)
	if err != nil || guarded {
		return false, err
	}
	if flagsErr == nil && flags&immutable != 0 { // an immutable directory keeps its mode
		if err := setFlags(fd, flags&^immutable); err != nil {
			return false, fmt.Errorf("set the flags of %s: %w", mountpoint, err)
		}
	}
	// On a file system without flags, the mode alone is better than nothing.
	if err := unix.Fchmod(fd, 0); err != nil {
		return false, fmt.Errorf("chmod %s: %w", mountpoint, err)
	}
	if flagsErr != nil {
		return false, fmt.Errorf("read the flags of %s: %w", mountpoint, flagsErr)
	}
	if err := setFlags(fd, flags|immutable); err != nil {
		return false, fmt.Errorf("make %s immutable: %w", mountpoint, err)
	}
	return true, nil
}

// Unguard makes a guarded directory removable, and leaves other immutable ones alone.
func Unguard(dir *os.File) (was bool, err error) {
	fd := int(dir.Fd())
	was, flags, _, err := look(fd, dir.Name())
	if err != nil || !was {
		return false, err
	}
	if err := setFlags(fd, flags&^immutable); err != nil {
		return true, fmt.Errorf("set the flags of %s: %w", dir.Name(), err)
	}
	return true, nil
}

func look(fd int, name string) (guarded bool, flags uint32, flagsErr, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, 0, nil, fmt.Errorf("stat %s: %w", name, err)
	}
	flags, flagsErr = unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	return st.Mode&0o7777 == 0 && flagsErr == nil && flags&immutable != 0, flags, flagsErr, nil
}

func setFlags(fd int, flags uint32) error {
	return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags))
}

// checkUnguarded refuses a guarded mountpoint to users: fusermount3 needs write permission on it.
func checkUnguarded(mountpoint string) error {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, mountpoint, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE, &st)
	if err != nil && !errors.Is(err, unix.ENOSYS) {
		return pathError("MOUNTPOINT", mountpoint, err)
	}
	if st.Attributes&unix.STATX_ATTR_IMMUTABLE != 0 {
		return fmt.Errorf("MOUNTPOINT %s is guarded by a mount that root made: mount as root, remove the guard as root (chattr -i %s; chmod 755 %s), or choose another", mountpoint, mountpoint, mountpoint)
	}
	return nil
}
