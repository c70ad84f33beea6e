package fs

import (
	"os"
	"runtime"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// as runs make as the caller, so that what it makes is the caller's from the
// first moment on. The kernel has checked the caller's permission already; the
// daemon keeps its own (SECBIT_NO_SETUID_FIXUP), for on the way to the
// directory it is root's that count.
//
// The umask is left to the backing: it alone knows whether the directory has
// a default ACL, which takes the umask's place.
//
// User, group and umask are the thread's alone: these are raw system calls on
// a thread that runs nothing else meanwhile.
func (f *FS) as(in *fuse.InHeader, umask uint32, make func() error) error {
	other := f.root && (in.Uid != 0 || in.Gid != 0)
	if !other && umask == 0 {
		return make()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if umask != 0 {
		// Threads share a umask, and a new one shares its maker's: each time anew.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return err
		}
		unix.Umask(int(umask))
		defer unix.Umask(0)
	}
	if !other {
		return make()
	}
	// Without this bit the thread loses its capabilities over files while its
	// user is another. Where it may not be set, the backing checks the caller's
	// permission once more, and no harm is done.
	_ = unix.Prctl(unix.PR_SET_SECUREBITS, secbitNoSetuidFixup, 0, 0, 0)
	unix.RawSyscall(unix.SYS_SETFSGID, uintptr(in.Gid), 0, 0)
	unix.RawSyscall(unix.SYS_SETFSUID, uintptr(in.Uid), 0, 0)
	defer unix.RawSyscall(unix.SYS_SETFSGID, uintptr(os.Getegid()), 0, 0)
	defer unix.RawSyscall(unix.SYS_SETFSUID, uintptr(os.Geteuid()), 0, 0)
	err := make()
	if err == unix.EACCES || err == unix.EPERM {
		// Not a local file system: a server that goes by the groups too. They
		// are not worth a look at each creation.
		return withGroups(callerGroups(in), make)
	}
	return err
}

// withGroups runs make as a member of groups. The thread is locked.
func withGroups(groups []uint32, make func() error) error {
	own, err := os.Getgroups()
	if err != nil {
		return err
	}
	before := []uint32{}
	for _, g := range own {
		before = append(before, uint32(g))
	}
	if err := setGroups(groups); err != nil {
		return err
	}
	defer setGroups(before)
	return make()
}

// setGroups sets those of the thread; that of package syscall does for all.
func setGroups(groups []uint32) error {
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(unsafe.SliceData(groups))), 0); e != 0 {
		return e
	}
	return nil
}

const secbitNoSetuidFixup = 1 << 2 // linux/securebits.h
