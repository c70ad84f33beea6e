package fs

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// rights are what file systems decide by: who may do what.
type rights struct {
	uid, gid int
	groups   []uint32
	caps     uint64 // effective capabilities
}

// as runs act, one system call, with the rights of a request's caller. So the backing decides,
// at the instant of the call. The kernel of the view has decided by attributes that may be a
// second old. What act makes is the caller's from the first moment on.
//
// act is tried with the caller's user and group alone, which suffice for most calls. If they
// do not, it is repeated with all that the caller has: to find that out takes longer than most
// calls. A call that succeeds and does less for a caller with fewer rights takes asExactly.
//
// The backing applies the umask: it knows whether the directory has a default ACL, which
// replaces the umask.
func (f *FS) as(in *fuse.InHeader, umask uint32, act func() error) error {
	if !f.root {
		return onThread(umask, nil, act)
	}
	err := onThread(umask, &rights{uid: int(in.Uid), gid: int(in.Gid)}, act)
	switch err {
	case unix.EACCES, unix.EPERM, unix.ENOSPC, unix.EDQUOT: // some blocks may be reserved
	default:
		return err
	}
	r, lookErr := callerRights(in)
	if lookErr != nil {
		return lookErr
	}
	if len(r.groups) == 0 && r.caps == 0 {
		return err
	}
	return onThread(umask, &r, act)
}

// asExactly is as for calls that clear set-id bits if the caller is not in the file's group, or
// lacks CAP_FSETID.
func (f *FS) asExactly(in *fuse.InHeader, umask uint32, act func() error) error {
	if !f.root {
		return onThread(umask, nil, act)
	}
	r, err := callerRights(in)
	if err != nil {
		return err
	}
	return onThread(umask, &r, act)
}

// asForMode returns as or asExactly, for a call that gives a file a mode.
func (f *FS) asForMode(mode uint32) func(in *fuse.InHeader, umask uint32, act func() error) error {
	if mode&unix.S_ISGID != 0 {
		return f.asExactly
	}
	return f.as
}

// openAs opens the inode of an O_PATH descriptor for I/O with the rights of a
// request's caller.
func (f *FS) openAs(in *fuse.InHeader, fd int, flags int) (int, error) {
	if flags&fmodeExec != 0 {
		return f.openToRun(in, fd, flags)
	}
	file := -1
	err := f.as(in, 0, func() (err error) {
		file, err = reopen(fd, flags)
		return err
	})
	if err == unix.EACCES && flags == unix.O_RDONLY {
		// The kernel opens the file by itself for an ioctl. A program's open has O_LARGEFILE,
		// or cannot read from this descriptor.
		return reopen(fd, unix.O_PATH)
	}
	return file, err
}

// fmodeExec is the flag (FMODE_EXEC of linux/fs.h) by which the kernel opens a
// program to run it. No other open has it.
const fmodeExec = 0x20

// openToRun opens a program that the caller may run, but perhaps not read.
func (f *FS) openToRun(in *fuse.InHeader, fd, flags int) (int, error) {
	err := byDescriptor(f.as(in, 0, func() error { return unix.Faccessat2(fd, "", unix.X_OK, unix.AT_EACCESS|unix.AT_EMPTY_PATH) }))
	if err != nil {
		return -1, err
	}
	return reopen(fd, flags)
}

// onThread runs act with a umask, and with the rights r unless they are nil, on a thread that
// runs nothing else meanwhile. A thread that does not get its own rights back is ended.
func onThread(umask uint32, r *rights, act func() error) error {
	if umask == 0 && r == nil {
		return act()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err, restored := actWith(umask, r, act)
		if restored {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

func actWith(umask uint32, r *rights, act func() error) (err error, restored bool) {
	if umask != 0 {
		// A new thread shares the umask of the thread that made it.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return err, true
		}
		unix.Umask(int(umask))
		defer unix.Umask(0)
	}
	if r == nil {
		return act(), true
	}
	own, err := ownRights()
	if err != nil {
		return err, true
	}
	narrowed := *r
	narrowed.caps &= own.caps
	if err = change(own, &narrowed); err == nil {
		err = act()
	}
	// All capabilities first: without some, the rest cannot be changed.
	return err, setCaps(own.caps) == nil && change(&narrowed, own) == nil
}

func change(from, to *rights) error {
	if !slices.Equal(from.groups, to.groups) {
		if err := setGroups(to.groups); err != nil {
			return err
		}
	}
	for _, set := range [...]struct {
		call uintptr
		id   int
	}{{unix.SYS_SETFSGID, to.gid}, {unix.SYS_SETFSUID, to.uid}} {
		// The system calls report the former id, and no error.
		unix.RawSyscall(set.call, uintptr(set.id), 0, 0)
		if is, _, _ := unix.RawSyscall(set.call, ^uintptr(0), 0, 0); uint32(is) != uint32(set.id) {
			return unix.EPERM
		}
	}
	return setCaps(to.caps) // the change of the user has changed them
}

// ownRights are the daemon's.
var ownRights = sync.OnceValues(func() (*rights, error) {
	groups, err := os.Getgroups()
	if err != nil {
		return nil, err
	}
	own := &rights{uid: os.Geteuid(), gid: os.Getegid()}
	for _, g := range groups {
		own.groups = append(own.groups, uint32(g))
	}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &sets[0]); err != nil {
		return nil, err
	}
	own.caps = uint64(sets[1].Effective)<<32 | uint64(sets[0].Effective)
	return own, nil
})

func setCaps(caps uint64) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return err
	}
	low, high := uint32(caps), uint32(caps>>32)
	if sets[0].Effective == low && sets[1].Effective == high {
		return nil
	}
	sets[0].Effective, sets[1].Effective = low, high
	return unix.Capset(&header, &sets[0])
}

// setGroups sets the groups of this thread. syscall.Setgroups sets those of all threads.
func setGroups(groups []uint32) error {
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(unsafe.SliceData(groups))), 0); e != 0 {
		return e
	}
	return nil
}

// callerRights returns the rights of a request's thread. They are its user and group alone if
// the thread cannot be seen, has ended, or has its capabilities in a user namespace of its
// own. It fails for want of descriptors or memory: the caller's further rights must not be
// ignored then.
func callerRights(in *fuse.InHeader) (rights, error) {
	r := rights{uid: int(in.Uid), gid: int(in.Gid)}
	status, err := readStatus(in.Pid)
	switch {
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
		return r, err
	case err != nil, !slices.Equal(fsIDs(status), []uint32{in.Uid, in.Gid}):
		return r, nil
	}
	r.groups = statusIDs(status, "Groups")
	caps, err := strconv.ParseUint(string(bytes.TrimSpace(statusField(status, "CapEff"))), 16, 64)
	if err == nil && caps != 0 && inOurUserNamespace(in) {
		r.caps = caps
	}
	return r, nil
}

// readStatus reads a thread's /proc status, faster than os.ReadFile unless the thread is in
// hundreds of groups.
func readStatus(tid uint32) ([]byte, error) {
	path := "/proc/" + strconv.FormatUint(uint64(tid), 10) + "/status"
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 4096)
	n, err := unix.Read(fd, buf)
	if n == len(buf) {
		return os.ReadFile(path)
	}
	return buf[:max(n, 0)], err
}

// fsIDs returns the user and the group by which file systems decide.
func fsIDs(status []byte) []uint32 {
	uids, gids := statusIDs(status, "Uid"), statusIDs(status, "Gid")
	if len(uids) != 4 || len(gids) != 4 { // real, effective, saved, for file systems
		return nil
	}
	return []uint32{uids[3], gids[3]}
}

func statusIDs(status []byte, name string) []uint32 {
	var ids []uint32
	for _, field := range bytes.Fields(statusField(status, name)) {
		if id, err := strconv.ParseUint(string(field), 10, 32); err == nil {
			ids = append(ids, uint32(id))
		}
	}
	return ids
}

func statusField(status []byte, name string) []byte {
	_, rest, _ := bytes.Cut(status, []byte("\n"+name+":"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return line
}

func inOurUserNamespace(in *fuse.InHeader) bool {
	ours, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		return false
	}
	theirs, err := os.Readlink("/proc/" + strconv.FormatUint(uint64(in.Pid), 10) + "/ns/user")
	return err == nil && theirs == ours
}
