package procid

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"golang.org/x/sys/unix"
)

// bufSize is enough for stat, cgroup, and any status without hundreds of groups.
const bufSize = 4096

func (p Proc) path(pid int, file string) string {
	return p.root() + "/" + strconv.Itoa(pid) + "/" + file
}

// read makes the system calls itself: os.File would add an epoll registration and a finalizer.
func (p Proc) read(buf []byte, pid int, file string) ([]byte, error) {
	path := p.path(pid, file)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	b, err := readAll(fd, buf)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return b, nil
}

// readStat reads a thread's stat: a process's sums up over its threads, 4 ms for 20,000.
func (p Proc) readStat(buf []byte, tid int) ([]byte, error) {
	return p.read(buf, tid, "task/"+strconv.Itoa(tid)+"/stat")
}

func readAll(fd int, buf []byte) ([]byte, error) {
	n := 0
	for {
		m, err := unix.Read(fd, buf[n:])
		switch err {
		case nil:
		case unix.EINTR:
			continue
		case unix.ESRCH: // the process exited after we opened the file
			return nil, fmt.Errorf("%w: %w", fs.ErrNotExist, err)
		default:
			return nil, err
		}
		if n += m; n < len(buf) {
			return buf[:n], nil // these files come in one piece if there is room
		}
		buf = append(buf, make([]byte, len(buf))...)
	}
}

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) }

type stat struct {
	comm    string
	ppid    int
	flags   uint64 // PF_EXITING and others
	threads uint64 // of the process, including a main thread that has exited
	start   uint64 // clock ticks after boot
}

// The fields of stat after the comm, from 0; proc_pid_stat(5) counts from 1 with two before.
const (
	fieldPPID    = 4 - 3
	fieldFlags   = 9 - 3
	fieldThreads = 20 - 3
	fieldStart   = 22 - 3
)

// parseStat parses "pid (comm) state ppid …". Only numbers follow a comm, which may contain
// anything.
func parseStat(b []byte) (stat, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return stat{}, errors.New("no (comm)")
	}
	st := stat{comm: string(b[open+1 : end])}
	rest := b[end+1:]
	for i := 0; i <= fieldStart; i++ {
		rest = bytes.TrimPrefix(rest, []byte{' '})
		var f []byte
		f, rest, _ = bytes.Cut(rest, []byte{' '})
		if i != fieldPPID && i != fieldFlags && i != fieldThreads && i != fieldStart {
			continue
		}
		n, err := strconv.ParseUint(string(f), 10, 64)
		if err != nil {
			return stat{}, fmt.Errorf("field %d is %q", i+3, string(f))
		}
		switch i {
		case fieldPPID:
			st.ppid = int(n)
		case fieldFlags:
			st.flags = n
		case fieldThreads:
			st.threads = n
		case fieldStart:
			st.start = n
		}
	}
	return st, nil
}
