package fs

import (
	"bytes"
	"cmp"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// rights are what file systems check.
type rights struct {
	uid, gid int
	groups   []uint32
	caps     uint64 // effective capabilities
}

// actor acts in the volume with the rights of requests' callers.
type actor struct {
	root bool // the daemon may act for any user
}

// as runs act, one system call, with the rights of a request's caller: the kernel of the view has
// checked attributes that may be a second old. What act makes is the caller's from the start.
//
// act is tried with the caller's user and group alone. That is usually enough, and reading the
// caller's other rights takes longer than most calls. If it fails, it is repeated with all rights.
// A call that succeeds but does less with fewer rights needs asExactly.
//
// The backing applies the umask, because only it knows a directory's default ACL.
func (a actor) as(in *fuse.InHeader, umask uint32, act func() error) error {
	if !a.root {
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

// asExactly is as for calls that may clear set-id bits, by the caller's groups and CAP_FSETID.
func (a actor) asExactly(in *fuse.InHeader, umask uint32, act func() error) error {
	if !a.root {
		return onThread(umask, nil, act)
	}
	r, err := callerRights(in)
	if err != nil {
		return err
	}
	return onThread(umask, &r, act)
}

// asForMode returns as or asExactly for a call that gives a file a mode.
func (a actor) asForMode(mode uint32) func(in *fuse.InHeader, umask uint32, act func() error) error {
	if mode&unix.S_ISGID != 0 {
		return a.asExactly
	}
	return a.as
}

// openAs opens an O_PATH descriptor's inode for I/O with the caller's rights.
func (a actor) openAs(in *fuse.InHeader, fd int, flags int) (int, error) {
	if flags&fmodeExec != 0 {
		return a.openToRun(in, fd, flags)
	}
	file := -1
	err := a.as(in, 0, func() (err error) {
		file, err = reopen(fd, flags)
		return err
	})
	if err == unix.EACCES && flags == unix.O_RDONLY {
		// The kernel itself opens it for an ioctl: a program's open has O_LARGEFILE, or cannot
		// read.
		return reopen(fd, unix.O_PATH)
	}
	return file, err
}

// fmodeExec is FMODE_EXEC of linux/fs.h: the kernel opens a program to run it.
const fmodeExec = 0x20

// openToRun opens a program that the caller may run, but perhaps not read.
func (a actor) openToRun(in *fuse.InHeader, fd, flags int) (int, error) {
	err := byDescriptor(a.as(in, 0, func() error { return unix.Faccessat2(fd, "", unix.X_OK, unix.AT_EACCESS|unix.AT_EMPTY_PATH) }))
	if err != nil {
		return -1, err
	}
	return reopen(fd, flags)
}

// onThread runs act with a umask, and with the rights r unless they are nil. Its thread runs
// nothing else until it has its own rights back.
func onThread(umask uint32, r *rights, act func() error) error {
	if umask == 0 && r == nil {
		return act()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if umask != 0 {
		// A new thread shares the umask of the thread that made it.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return err
		}
		unix.Umask(int(umask))
		defer unix.Umask(0)
	}
	if r == nil {
		return act()
	}
	own, err := ownRights()
	if err != nil {
		return err
	}
	narrowed := *r
	narrowed.caps &= own.caps
	if err = cmp.Or(setIDs(&own.rights, &narrowed), own.setCaps(narrowed.caps)); err == nil {
		err = act()
	}
	for own.takeBack(&narrowed) != nil { // for want of memory
		time.Sleep(takeBackPause)
	}
	return err
}

const takeBackPause = 10 * time.Millisecond

// daemonRights are the daemon's own. A thread has others only during a call.
type daemonRights struct {
	rights
	sets [2]unix.CapUserData
}

var ownRights = sync.OnceValues(func() (*daemonRights, error) {
	groups, err := os.Getgroups()
	if err != nil {
		return nil, err
	}
	own := &daemonRights{rights: rights{uid: os.Geteuid(), gid: os.Getegid()}}
	for _, g := range groups {
		own.groups = append(own.groups, uint32(g))
	}
	if own.sets, err = capabilities(); err != nil {
		return nil, err
	}
	own.caps = uint64(own.sets[1].Effective)<<32 | uint64(own.sets[0].Effective)
	return own, nil
})

// takeBack gives a thread the daemon's rights back. The capabilities come first: some are needed to
// change the rest.
func (own *daemonRights) takeBack(from *rights) error {
	if err := cmp.Or(own.setCaps(own.caps), setIDs(from, &own.rights)); err != nil || from.uid == own.uid {
		return err
	}
	return own.setCaps(own.caps) // the change of the user has changed them
}

// setCaps sets the effective capabilities of this thread.
func (own *daemonRights) setCaps(caps uint64) error {
	sets := own.sets
	sets[0].Effective, sets[1].Effective = uint32(caps), uint32(caps>>32)
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	return unix.Capset(&header, &sets[0])
}

// setIDs sets the ids by which file systems decide, and the groups.
func setIDs(from, to *rights) error {
	if !slices.Equal(from.groups, to.groups) {
		if err := setGroups(to.groups); err != nil {
			return err
		}
	}
	for _, set := range [...]struct {
		call     uintptr
		from, to int
	}{{unix.SYS_SETFSGID, from.gid, to.gid}, {unix.SYS_SETFSUID, from.uid, to.uid}} {
		if set.from == set.to {
			continue
		}
		// These system calls return the former id, and no error.
		unix.RawSyscall(set.call, uintptr(set.to), 0, 0)
		if is, _, _ := unix.RawSyscall(set.call, ^uintptr(0), 0, 0); uint32(is) != uint32(set.to) {
			return unix.EPERM
		}
	}
	return nil
}

// capabilities returns those of this thread.
func capabilities() (sets [2]unix.CapUserData, err error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	err = unix.Capget(&header, &sets[0])
	return sets, err
}

// setGroups sets only this thread's groups; syscall.Setgroups sets all threads'.
func setGroups(groups []uint32) error {
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(unsafe.SliceData(groups))), 0); e != 0 {
		return e
	}
	return nil
}

// callerRights returns a request's rights: only its user and group if its thread is invisible,
// dead, or has its capabilities in another user namespace. It fails for lack of descriptors or
// memory: further rights must not be ignored then.
func callerRights(in *fuse.InHeader) (rights, error) {
	r := rights{uid: int(in.Uid), gid: int(in.Gid)}
	status, err := readStatus(in.Pid)
	switch {
	case exhausted(err):
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

// readStatus is faster than os.ReadFile for threads in fewer than hundreds of groups.
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
