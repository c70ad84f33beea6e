package procid

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"golang.org/x/sys/unix"
)

// bufSize is enough for a stat (about 350 bytes), a cgroup file, and any status except
// those with hundreds of supplementary groups, for which read makes room.
const bufSize = 4096

func (p Proc) path(pid int, file string) string {
	return p.root() + "/" + strconv.Itoa(pid) + "/" + file
}

// read reads a file of process pid into buf, or into a larger one. It makes
// the three system calls itself: os.File would add an epoll registration and a
// finalizer to each.
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

// readStat reads the stat of a thread. The stat of a process sums up over all its threads,
// which takes 4 ms with 20,000, for numbers that are not used here.
func (p Proc) readStat(buf []byte, tid int) ([]byte, error) {
	return p.read(buf, tid, "task/"+strconv.Itoa(tid)+"/stat")
}

// readAll reads a proc file into buf, or into a larger one.
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

// gone reports whether err says that there is no such process.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) }
