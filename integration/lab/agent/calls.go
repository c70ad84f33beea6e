// Package agent is a program under remote control: it makes the system calls that it reads from its
// input, and answers on its output.
package agent

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Env makes a binary with this package an agent.
const Env = "LOCKFS_TEST_AGENT"

// Call is one system call for an agent.
type Call struct {
	Op    string // see perform
	Path  string
	Path2 string
	FD    int
	Flags int
	Mode  int
	Off   int64
	N     int
	Data  string
	Calls []Call // of those that make others
}

// Opened is, in a call of repeat, the descriptor last opened in its round; opened-1 the one
// before.
const Opened = -1

// Result is what it answered.
type Result struct {
	N     int
	Data  string
	Errno syscall.Errno

	Failed map[string]int // of repeat, churn and saves: how often which call failed, and how: "open EBUSY"
}

func (r Result) Err() error {
	if r.Errno == 0 {
		return nil
	}
	return r.Errno
}

// init makes the process an agent before other packages initialize: etcd and Kubernetes take most of
// the time in which a test binary starts.
func init() {
	if os.Getenv(Env) != "" {
		serve()
		os.Exit(0)
	}
}

func serve() {
	runtime.LockOSThread()                               // lockfs knows callers by their threads
	signal.Notify(make(chan os.Signal, 1), unix.SIGUSR1) // a caught signal
	enc := json.NewEncoder(os.Stdout)
	in := json.NewDecoder(bufio.NewReader(os.Stdin))
	maps := make(map[int][]byte)
	_ = enc.Encode(Result{}) // ready: it catches signals now
	for {
		var c Call
		if err := in.Decode(&c); err != nil {
			return
		}
		if err := enc.Encode(answer(c, maps)); err != nil {
			return
		}
	}
}

// floods has what became of the calls that flood made.
var (
	flood  int
	floods = make(chan Result)
)

func answer(c Call, maps map[int][]byte) (r Result) {
	err := perform(c, &r, maps)
	if errno, ok := err.(syscall.Errno); ok {
		r.Errno = errno
	} else if err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
	return r
}

func listed(path string) (names string, err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	all, err := dir.Readdirnames(-1)
	var errno syscall.Errno
	if errors.As(err, &errno) {
		err = errno
	}
	slices.Sort(all)
	return strings.Join(all, " "), err
}

func perform(c Call, r *Result, maps map[int][]byte) (err error) {
	switch c.Op {
	case "open":
		mode := c.Mode
		if mode == 0 {
			mode = 0o644
		}
		r.N, err = unix.Open(c.Path, c.Flags|unix.O_CLOEXEC, uint32(mode))
	case "open and close":
		fd, err := unix.Open(c.Path, c.Flags, uint32(c.Mode))
		if err != nil {
			return err
		}
		return unix.Close(fd)
	case "close":
		err = unix.Close(c.FD)
	case "dup":
		r.N, err = unix.FcntlInt(uintptr(c.FD), unix.F_DUPFD_CLOEXEC, 0)
	case "write":
		r.N, err = unix.Write(c.FD, []byte(c.Data))
	case "write through": // to the volume, by this one call
		r.N, err = unix.Pwritev2(c.FD, [][]byte{[]byte(c.Data)}, c.Off, unix.RWF_DSYNC)
	case "pwrite":
		r.N, err = unix.Pwrite(c.FD, []byte(c.Data), c.Off)
	case "pread":
		buf := make([]byte, c.N)
		r.N, err = unix.Pread(c.FD, buf, c.Off)
		r.Data = string(buf[:max(r.N, 0)])
	case "flock":
		err = unix.Flock(c.FD, c.Flags)
	case "flock and close": // an open file of its own
		fd, err := unix.Open(c.Path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Flock(fd, c.Flags)
	case "setlk", "setlkw", "ofd setlk", "ofd setlkw": // Flags is the type, and Off and N the range
		how := map[string]int{"setlk": unix.F_SETLK, "setlkw": unix.F_SETLKW, "ofd setlk": unix.F_OFD_SETLK, "ofd setlkw": unix.F_OFD_SETLKW}
		err = unix.FcntlFlock(uintptr(c.FD), how[c.Op], &unix.Flock_t{Type: int16(c.Flags), Start: c.Off, Len: int64(c.N)})
	case "getlk": // Data says which lock is in the way, and N whose
		l := unix.Flock_t{Type: int16(c.Flags), Start: c.Off, Len: int64(c.N)}
		err = unix.FcntlFlock(uintptr(c.FD), unix.F_GETLK, &l)
		r.N, r.Data = int(l.Pid), fmt.Sprintf("%c %d %d", "rwu"[l.Type], l.Start, l.Len)
	case "seek":
		var off int64
		off, err = unix.Seek(c.FD, c.Off, c.Flags)
		r.N = int(off)
	case "size":
		var st unix.Stat_t
		err = unix.Fstat(c.FD, &st)
		r.N = int(st.Size)
	case "ask": // the file system for the attributes of Path, whatever the kernel believes
		var st unix.Statx_t
		err = unix.Statx(unix.AT_FDCWD, c.Path, unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &st)
	case "ask for size": // of the file system, whatever the kernel believes
		var st unix.Statx_t
		err = unix.Statx(c.FD, "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_SIZE, &st)
		r.N = int(st.Size)
	case "fsync":
		err = unix.Fsync(c.FD)
	case "ftruncate":
		err = unix.Ftruncate(c.FD, c.Off)
	case "fallocate":
		err = unix.Fallocate(c.FD, 0, c.Off, int64(c.N))
	case "truncate":
		err = unix.Truncate(c.Path, c.Off)
	case "unlink":
		err = unix.Unlink(c.Path)
	case "rename":
		err = unix.Rename(c.Path, c.Path2)
	case "exchange":
		err = unix.Renameat2(unix.AT_FDCWD, c.Path, unix.AT_FDCWD, c.Path2, unix.RENAME_EXCHANGE)
	case "link":
		err = unix.Link(c.Path, c.Path2)
	case "name": // gives FD the name Path
		err = unix.Linkat(unix.AT_FDCWD, ProcFD(c.FD), unix.AT_FDCWD, c.Path, unix.AT_SYMLINK_FOLLOW)
	case "mkdir":
		mode := c.Mode
		if mode == 0 {
			mode = 0o755
		}
		err = unix.Mkdir(c.Path, uint32(mode))
	case "rmdir":
		err = unix.Rmdir(c.Path)
	case "list": // Data is the names in the directory Path
		r.Data, err = listed(c.Path)
	case "getdents": // N bytes of the directory FD; from its beginning if Off is not 0
		if c.Off != 0 {
			if _, err := unix.Seek(c.FD, 0, unix.SEEK_SET); err != nil {
				return err
			}
		}
		r.N, err = unix.Getdents(c.FD, make([]byte, c.N))
	case "mode": // N is the mode of Path
		var st unix.Stat_t
		err = unix.Lstat(c.Path, &st)
		r.N = int(st.Mode & 07777)
	case "copy": // N bytes of FD to Off of itself
		var from int64
		r.N, err = unix.CopyFileRange(c.FD, &from, c.FD, &c.Off, c.N, 0)
	case "copy to": // N bytes of FD to the descriptor Flags
		var from, to int64
		r.N, err = unix.CopyFileRange(c.FD, &from, c.Flags, &to, c.N, 0)
	case "umask":
		unix.Umask(c.Mode)
	case "become": // user and group N, and member of group Off if it is not 0
		groups := []int{int(c.Off)}
		if c.Off == 0 {
			groups = nil
		}
		err = errors.Join(syscall.Setgroups(groups), syscall.Setgid(c.N), syscall.Setuid(c.N))
	case "drop": // all capabilities
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		err = unix.Capset(&header, &make([]unix.CapUserData, 2)[0])
	case "setxattr": // the attribute Path2 to Data, in hex
		var value []byte
		if value, err = hex.DecodeString(c.Data); err == nil {
			err = unix.Setxattr(c.Path, c.Path2, value, 0)
		}
	case "getxattr":
		buf := make([]byte, 4096)
		r.N, err = unix.Getxattr(c.Path, c.Path2, buf)
		r.Data = hex.EncodeToString(buf[:max(r.N, 0)])
	case "listxattr": // into N bytes
		buf := make([]byte, c.N)
		r.N, err = unix.Listxattr(c.Path, buf)
		if c.N > 0 {
			r.Data = Names(buf[:max(r.N, 0)])
		}
	case "removexattr":
		err = unix.Removexattr(c.Path, c.Path2)
	case "chmod":
		err = unix.Chmod(c.Path, uint32(c.Mode))
	case "chown": // to user Off and group N
		err = unix.Chown(c.Path, int(c.Off), c.N)
	case "utimes": // to Off seconds
		err = unix.Utimes(c.Path, []unix.Timeval{{Sec: c.Off}, {Sec: c.Off}})
	case "mtime":
		var st unix.Stat_t
		err = unix.Stat(c.Path, &st)
		r.N = int(st.Mtim.Sec)
	case "birth": // Data is when Path was made
		var st unix.Statx_t
		err = unix.Statx(unix.AT_FDCWD, c.Path, 0, unix.STATX_BTIME, &st)
		r.Data = fmt.Sprint(st.Mask&unix.STATX_BTIME, st.Btime)
	case "getflags": // N is those of lsattr
		r.N, err = unix.IoctlGetInt(c.FD, unix.FS_IOC_GETFLAGS)
	case "setflags":
		err = unix.IoctlSetPointerInt(c.FD, unix.FS_IOC_SETFLAGS, c.Flags)
	case "file_setattr": // of Path, to nothing: since Linux 6.17, else ENOSYS
		var attr [24]byte // a struct file_attr
		path, e := unix.BytePtrFromString(c.Path)
		if e != nil {
			return e
		}
		at := unix.AT_FDCWD
		if _, _, e := unix.Syscall6(unix.SYS_FILE_SETATTR, uintptr(at), uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0, 0); e != 0 {
			err = e
		}
	case "ioctl": // N, with room for Data
		buf := make([]byte, 256)
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(c.FD), uintptr(c.N), uintptr(unsafe.Pointer(&buf[0]))); e != 0 {
			err = e
		}
		r.Data = hex.EncodeToString(buf)
	case "chdir":
		err = unix.Chdir(c.Path)
	case "mmap": // maps N bytes of FD, shared and writable
		var m []byte
		m, err = unix.Mmap(c.FD, 0, c.N, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		maps[c.FD] = m
	case "mapread": // Data is N bytes of FD, by a mapping for read with Flags
		var m []byte
		if m, err = unix.Mmap(c.FD, 0, c.N, unix.PROT_READ, c.Flags); err == nil {
			r.Data = string(m)
			err = unix.Munmap(m)
		}
	case "store": // into the mapping of FD
		copy(maps[c.FD][c.Off:], c.Data)
	case "msync":
		err = unix.Msync(maps[c.FD], unix.MS_SYNC)
	case "munmap":
		err = unix.Munmap(maps[c.FD])
	case "unmap": // the first page of the mapping of FD
		if _, _, e := unix.Syscall(unix.SYS_MUNMAP, uintptr(unsafe.Pointer(&maps[c.FD][0])), uintptr(os.Getpagesize()), 0); e != 0 {
			err = e
		}
	case "dup2": // FD becomes N too
		err = unix.Dup3(c.FD, c.N, unix.O_CLOEXEC)
	case "listen": // N is a socket of the name Path
		if r.N, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err == nil {
			err = unix.Bind(r.N, &unix.SockaddrUnix{Name: c.Path})
		}
	case "send": // FD to the socket Path
		err = sendFD(c.Path, c.FD)
	case "receive": // N is a descriptor that was sent to the socket FD
		r.N, err = receiveFD(c.FD)
	case "exec": // becomes a program that has FD and does nothing
		if _, err = unix.FcntlInt(uintptr(c.FD), unix.F_SETFD, 0); err == nil {
			err = unix.Exec("/bin/sleep", []string{"sleep", "1000"}, nil)
		}
	case "incore": // how many of the first N bytes of FD are in the page cache, in pages
		r.N, err = incore(c.FD, c.N)
	case "spawn": // a child that has FD and does nothing; N is its pid
		child := exec.Command("sleep", "1000")
		child.ExtraFiles = []*os.File{os.NewFile(uintptr(c.FD), "inherited")}
		err = child.Start()
		if err == nil {
			r.N = child.Process.Pid
			go child.Wait()
		}
	case "write at end": // where SEEK_END says it is
		var off int64
		if off, err = unix.Seek(c.FD, 0, unix.SEEK_END); err == nil {
			r.N, err = unix.Pwrite(c.FD, []byte(c.Data), off)
		}
	case "pause": // for N ms
		time.Sleep(time.Duration(c.N) * time.Millisecond)
	case "churn": // names in the directory Path, for N ms; N is how often it opened
		r.N, r.Failed = churn(c.Path, time.Duration(c.N)*time.Millisecond)
	case "saves": // of the file Path, for N ms; N is how many calls it made
		r.N, r.Failed = saves(c.Path, time.Duration(c.N)*time.Millisecond)
	case "lock files": // by the file Path, for N ms; N is how often it opened it
		r.N, r.Failed = lockFiles(c.Path, time.Duration(c.N)*time.Millisecond)
	case "repeat": // Calls, one after the other, N times; or for ever, if N < 0
		r.Failed = make(map[string]int)
		for i := 0; c.N < 0 || i < c.N; i++ {
			round(c.Calls, maps, r.Failed)
		}
	case "untilfailure": // Calls, one after the other, again and again: the result is that of the first that fails
		for i := 0; r.Errno == 0; i++ {
			*r = answer(c.Calls[i%len(c.Calls)], maps)
		}
	case "flood": // the first of Calls, N times at once, each by a thread of its own
		flood += c.N
		for range c.N {
			go func() { floods <- answer(c.Calls[0], maps) }()
		}
	case "flooded": // waits for the end of all of a flood; N is how many there were
		r.Failed = make(map[string]int)
		for ; flood > 0; flood-- {
			if f := <-floods; f.Errno != 0 {
				r.Failed[unix.ErrnoName(f.Errno)]++
			}
			r.N++
		}
	default:
		err = fmt.Errorf("unknown op %q", c.Op)
	}
	return err
}

// round makes calls, and leaves out those for whose descriptor an open failed.
func round(calls []Call, maps map[int][]byte, failed map[string]int) {
	var fds []int
	for _, c := range calls {
		at := len(fds) + c.FD
		if c.FD < 0 {
			if at < 0 {
				continue
			}
			c.FD = fds[at]
		}
		began := time.Now()
		r := answer(c, maps)
		if r.Errno != 0 {
			failed[failure(c.Op, began, r.Errno)]++
		}
		switch {
		case c.Op == "open" && r.Errno == 0:
			fds = append(fds, r.N)
		case c.Op == "close" && at < len(fds):
			fds = slices.Delete(fds, at, at+1)
		}
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
}

func incore(fd, size int) (int, error) {
	m, err := unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, err
	}
	defer unix.Munmap(m)
	pages := make([]byte, size/os.Getpagesize())
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&m[0])), uintptr(size), uintptr(unsafe.Pointer(&pages[0]))); errno != 0 {
		return 0, errno
	}
	n := 0
	for _, p := range pages {
		n += int(p & 1)
	}
	return n, nil
}

// ProcFD is a path of an agent's own descriptor.
func ProcFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func sendFD(path string, fd int) error {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	return unix.Sendmsg(s, []byte("x"), unix.UnixRights(fd), &unix.SockaddrUnix{Name: path}, 0)
}

func receiveFD(s int) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(s, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return -1, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}

// Names sorts a list of names that end in NUL.
func Names(b []byte) string {
	all := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
	slices.Sort(all)
	return strings.Join(all, " ")
}
