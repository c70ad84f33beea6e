package programs

import (
	"bufio"
	"encoding/gob"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab/agent"
)

// An actor is a program of the differential test: it makes the system calls of
// steps and tells what a program sees of them, and nothing that may differ
// between two file systems that are both right.

// actorEnv makes the test binary an actor.
const actorEnv = "LOCKFS_TEST_ACTOR"

// slots is how many descriptors an actor has. Slot 0 is none: the working directory as a
// directory's descriptor, a bad descriptor elsewhere.
const slots = 6

// step is one system call. Its fields mean what the call's arguments do; those
// that are not obvious are explained at the operation.
type step struct {
	Who     int // the index of the actor
	Op      string
	Dir     int // slot that Path and Path2 are relative to
	Path    string
	Path2   string
	FD, FD2 int // slots
	Flags   int
	Mode    uint32
	Off     int64
	Off2    int64
	N       int
	Data    string // of a write: repeated to N bytes
}

// user is an actor's identity.
type user struct {
	UID, GID int
	Groups   []int
}

// order is what an actor is told to do: begin anew below Root, remove Root, or
// make Step.
type order struct {
	Begin, Clean bool // else make Step

	Root string
	User user
	Step step
	PID  int // of the process that 'take' takes from
	Get  int // and its descriptor
}

// reply is what came of it.
type reply struct {
	Text string
	FDs  [slots]int
}

type actor struct {
	root int // descriptor of the real root directory
	proc int // of /proc/self/fd
	fds  [slots]int
	maps [slots]mapping
}

// mapping is a mapped part of a file.
type mapping struct {
	b    []byte
	fd   int   // of the file
	from int64 // where it begins in the file
}

// storable cuts a mapping off at the end of the file: FUSE's kernel writes what
// was stored behind it when the file grows (see the case "a store behind the end").
func (m mapping) storable() []byte {
	var st unix.Statx_t
	if unix.Statx(m.fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_SIZE, &st) != nil {
		return m.b
	}
	return m.b[:min(max(int64(st.Size)-m.from, 0), int64(len(m.b)))]
}

func serveActor() {
	debug.SetPanicOnFault(true) // a load from beyond the end of a file
	a := &actor{}
	var err error
	if a.root, err = unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0); err == nil {
		a.proc, err = unix.Open("/proc/self/fd", unix.O_PATH|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "actor:", err)
		return
	}
	for i := range a.fds {
		a.fds[i] = -1
	}
	out := bufio.NewWriter(os.Stdout)
	in, enc := gob.NewDecoder(bufio.NewReader(os.Stdin)), gob.NewEncoder(out)
	for {
		var o order
		if in.Decode(&o) != nil {
			return
		}
		var r reply
		switch {
		case o.Begin:
			if err := a.begin(o.Root, o.User); err != nil {
				r.Text = "begin: " + err.Error()
			}
		case o.Clean:
			if err := a.clean(o.Root); err != nil {
				r.Text = "clean: " + err.Error()
			}
		default:
			r.Text = a.perform(&o)
		}
		r.FDs = a.fds
		if enc.Encode(r) != nil || out.Flush() != nil {
			return
		}
	}
}

// leave closes all, and makes the actor root in the real root directory.
func (a *actor) leave() error {
	for i := range a.maps {
		a.unmap(i)
	}
	for i := range a.fds {
		a.set(i, -1)
	}
	unix.Umask(0)
	return errors.Join(syscall.Setresuid(0, 0, 0), syscall.Setresgid(0, 0, 0), unix.Fchdir(a.root), unix.Chroot("."))
}

// begin makes the actor u, and shows it nothing but root. It keeps root's id
// as its saved one, without the rights, to come back.
func (a *actor) begin(root string, u user) error {
	return errors.Join(a.leave(), unix.Chroot(root), unix.Chdir("/"), syscall.Setgroups(u.Groups),
		syscall.Setresgid(u.GID, u.GID, 0), syscall.Setresuid(u.UID, u.UID, 0))
}

func (a *actor) clean(root string) error {
	err := a.leave()
	if root != "" {
		err = errors.Join(err, os.RemoveAll(root))
	}
	return err
}

func (a *actor) set(slot, fd int) {
	if a.fds[slot] >= 0 {
		unix.Close(a.fds[slot])
	}
	a.fds[slot] = fd
}

func (a *actor) unmap(slot int) {
	if m := a.maps[slot]; m.b != nil {
		_ = unix.Munmap(m.b)
		unix.Close(m.fd)
		a.maps[slot] = mapping{}
	}
}

func (a *actor) dir(slot int) int {
	if slot == 0 {
		return unix.AT_FDCWD
	}
	return a.fds[slot]
}

// perform makes a step's call and says what came of it.
func (a *actor) perform(o *order) (said string) {
	defer func() {
		if e, ok := recover().(error); ok {
			said = "fault"
			if !strings.Contains(e.Error(), "fault") && !strings.Contains(e.Error(), "invalid memory address") {
				said = e.Error()
			}
		}
	}()
	n, data, err := a.syscall(o)
	for err == unix.EINTR { // Go's own signals
		n, data, err = a.syscall(o)
	}
	var errno syscall.Errno
	if err != nil && !errors.As(err, &errno) {
		return "cannot: " + err.Error()
	}
	if errno != 0 {
		return unix.ErrnoName(errno)
	}
	return strings.TrimSpace(strconv.Itoa(n) + " " + data)
}

func (a *actor) syscall(o *order) (n int, data string, err error) {
	s := &o.Step
	fd, fd2, dir := a.fds[s.FD], a.fds[s.FD2], a.dir(s.Dir)
	switch s.Op {
	case "open":
		return a.opened(s.FD, func() (int, error) { return unix.Openat(dir, s.Path, s.Flags|unix.O_CLOEXEC, s.Mode) })
	case "reopen": // FD2 into FD
		return a.opened(s.FD, func() (int, error) { return unix.Openat(a.proc, strconv.Itoa(fd2), s.Flags|unix.O_CLOEXEC, s.Mode) })
	case "take": // the descriptor in slot FD2 of actor N into FD
		return a.opened(s.FD, func() (int, error) { return takeFD(o.PID, o.Get) })
	case "dup": // FD2 into FD
		if s.FD == s.FD2 {
			return 0, "", nil
		}
		return a.opened(s.FD, func() (int, error) { return unix.FcntlInt(uintptr(fd2), unix.F_DUPFD_CLOEXEC, 0) })
	case "close":
		a.fds[s.FD] = -1
		return 0, "", unix.Close(fd)
	case "read":
		buf := make([]byte, s.N)
		n, err = unix.Read(fd, buf)
		return n, digest(buf[:max(n, 0)]), err
	case "pread":
		buf := make([]byte, s.N)
		n, err = unix.Pread(fd, buf, s.Off)
		return n, digest(buf[:max(n, 0)]), err
	case "write":
		n, err = unix.Write(fd, s.bytes())
	case "pwrite":
		n, err = unix.Pwrite(fd, s.bytes(), s.Off)
	case "append": // whatever the descriptor's flags
		n, err = unix.Pwritev2(fd, [][]byte{s.bytes()}, s.Off, unix.RWF_APPEND)
	case "seek":
		if _, err := unix.Read(fd, nil); err == unix.EISDIR && (s.Off != 0 || s.Flags != unix.SEEK_SET) {
			return 0, "positions in a directory are the file system's own", nil
		}
		var off int64
		off, err = unix.Seek(fd, s.Off, s.Flags)
		n = int(off)
	case "ftruncate":
		err = unix.Ftruncate(fd, s.Off)
	case "truncate":
		err = unix.Truncate(s.Path, s.Off)
	case "fallocate":
		err = unix.Fallocate(fd, uint32(s.Flags), s.Off, int64(s.N))
	case "copy": // from FD2; negative offsets stand for the descriptors' own
		from, to := s.Off2, s.Off
		n, err = unix.CopyFileRange(fd2, position(&from), fd, position(&to), s.N, 0)
	case "rename":
		err = unix.Renameat2(dir, s.Path, dir, s.Path2, uint(s.Flags))
	case "link":
		err = unix.Linkat(dir, s.Path, dir, s.Path2, s.Flags)
	case "linkfd": // gives FD the name Path
		err = unix.Linkat(a.proc, strconv.Itoa(fd), dir, s.Path, unix.AT_SYMLINK_FOLLOW)
	case "symlink":
		err = unix.Symlinkat(s.Data, dir, s.Path)
	case "readlink":
		buf := make([]byte, 300)
		n, err = unix.Readlinkat(dir, s.Path, buf)
		data = string(buf[:max(n, 0)])
	case "mkdir":
		err = unix.Mkdirat(dir, s.Path, s.Mode)
	case "mknod":
		err = unix.Mknodat(dir, s.Path, s.Mode, 0)
	case "unlink":
		err = unix.Unlinkat(dir, s.Path, s.Flags)
	case "chmod":
		err = unix.Fchmodat(dir, s.Path, s.Mode, 0)
	case "fchmod":
		err = unix.Fchmod(fd, s.Mode)
	case "chown": // to user Off and group Off2
		err = unix.Fchownat(dir, s.Path, int(s.Off), int(s.Off2), s.Flags)
	case "fchown":
		err = unix.Fchown(fd, int(s.Off), int(s.Off2))
	case "utimens": // Off is the time of access and Off2 that of modification; see timespec
		err = unix.UtimesNanoAt(dir, s.Path, []unix.Timespec{timespec(s.Off), timespec(s.Off2)}, s.Flags)
	case "futimens":
		ts := []unix.Timespec{timespec(s.Off), timespec(s.Off2)}
		if _, _, e := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&ts[0])), 0, 0, 0); e != 0 {
			err = e
		}
	case "setxattr": // Path2 to Data, in hex
		err = unix.Lsetxattr(s.Path, s.Path2, unhex(s.Data), s.Flags)
	case "fsetxattr":
		err = unix.Fsetxattr(fd, s.Path2, unhex(s.Data), s.Flags)
	case "getxattr":
		buf := make([]byte, s.N)
		n, err = unix.Lgetxattr(s.Path, s.Path2, buf)
		data = hex.EncodeToString(buf[:min(max(n, 0), len(buf))])
	case "listxattr":
		buf := make([]byte, 4096)
		n, err = unix.Llistxattr(s.Path, buf)
		data = agent.Names(buf[:max(n, 0)])
	case "flistxattr":
		buf := make([]byte, 4096)
		n, err = unix.Flistxattr(fd, buf)
		data = agent.Names(buf[:max(n, 0)])
	case "removexattr":
		err = unix.Lremovexattr(s.Path, s.Path2)
	case "umask":
		n = unix.Umask(int(s.Mode))
	case "chdir":
		err = unix.Chdir(s.Path)
	case "fchdir":
		err = unix.Fchdir(fd)
	case "fsync":
		err = unix.Fsync(fd)
	case "fdatasync":
		err = unix.Fdatasync(fd)
	case "access":
		err = unix.Faccessat(dir, s.Path, s.Mode, s.Flags)
	case "flock":
		err = unix.Flock(fd, s.Flags|unix.LOCK_NB)
	case "setlk":
		err = unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: int16(s.Flags), Start: s.Off, Len: int64(s.N)})
	case "setfl":
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, s.Flags)
	case "getfl":
		n, err = unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	case "mmap": // N bytes at Off, for slot FD, with the protection Mode
		a.unmap(s.FD)
		m := mapping{from: s.Off}
		if m.b, err = unix.Mmap(fd, s.Off, s.N, int(s.Mode), s.Flags); err != nil {
			break
		}
		m.fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		a.maps[s.FD] = m
	case "munmap":
		a.unmap(s.FD)
	case "store":
		if m := a.maps[s.FD].storable(); s.Off < int64(len(m)) {
			n = storeAll(m[s.Off:], s.bytes())
		}
	case "store anywhere":
		n = storeAll(a.maps[s.FD].b[s.Off:], s.bytes())
	case "load":
		if m := a.maps[s.FD].b; s.Off < int64(len(m)) {
			m = m[s.Off:]
			data = digest(slices.Clone(m[:min(s.N, len(m))]))
		}
	case "msync":
		if m := a.maps[s.FD].b; m != nil {
			err = unix.Msync(m, s.Flags)
		}
	case "stat":
		var st unix.Statx_t
		err = unix.Statx(dir, s.Path, s.Flags, unix.STATX_BASIC_STATS, &st)
		data = describe(&st)
	case "fstat":
		var st unix.Statx_t
		err = unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, &st)
		data = describe(&st)
	case "list":
		data, err = list(dir, s.Path)
	case "flist":
		if _, err = unix.Seek(fd, 0, io.SeekStart); err == nil {
			data, err = listFD(fd)
		}
	case "tree": // all that there is, as root sees it
		var b strings.Builder
		err = tree(&b, ".")
		data = b.String()
	default:
		err = fmt.Errorf("unknown op %q", s.Op)
	}
	if err != nil {
		data = ""
	}
	return n, data, err
}

// opened puts a new descriptor in a slot.
func (a *actor) opened(slot int, open func() (int, error)) (int, string, error) {
	fd, err := open()
	if err != nil {
		return 0, "", err
	}
	if slot == 0 {
		return 0, "", unix.Close(fd)
	}
	a.set(slot, fd)
	return 0, "", nil
}

func takeFD(pid, fd int) (int, error) {
	p, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(p)
	return unix.PidfdGetfd(p, fd, 0)
}

// bytes are what a step writes.
func (s *step) bytes() []byte {
	if s.Data == "" {
		return nil
	}
	b := make([]byte, s.N)
	for i := range b {
		b[i] = s.Data[i%len(s.Data)]
	}
	return b
}

// storeAll is copy, byte by byte: where it faults is the same for all sizes.
func storeAll(m, b []byte) int {
	n := 0
	for ; n < min(len(m), len(b)); n++ {
		m[n] = b[n]
	}
	return n
}

func position(off *int64) *int64 {
	if *off < 0 {
		return nil
	}
	return off
}

// timespec is a time from before all clocks, so that those that were set are
// told from those that are now. 0 is now and -1 leaves the time alone.
func timespec(t int64) unix.Timespec {
	switch {
	case t == 0:
		return unix.Timespec{Nsec: unix.UTIME_NOW}
	case t < 0:
		return unix.Timespec{Nsec: unix.UTIME_OMIT}
	}
	return unix.Timespec{Sec: t, Nsec: t % 1000}
}

func unhex(s string) []byte {
	b, _ := hex.DecodeString(s)
	return b
}
