package checkvolume

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func perform(view string, c call) (r reply) {
	for _, p := range []string{c.Path, c.Path2} {
		if p != "" && !filepath.IsLocal(p) {
			return reply{Error: fmt.Sprintf("%q is not below the view", p)}
		}
	}
	path, path2 := filepath.Join(view, c.Path), filepath.Join(view, c.Path2)
	var err error
	switch c.Do {
	case "open":
		r.N, err = open(path, c.Flags)
	case "close":
		err = unix.Close(c.FD)
	case "write":
		err = write(c.FD, c.Data)
	case "read":
		r.Data, r.N, err = read(path)
	case "save":
		err = put(path, c.Data, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC)
	case "overwrite":
		err = put(path, c.Data, unix.O_WRONLY|unix.O_CREAT)
	case "claim":
		err = put(path, "", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	case "append": // N lines, each with its own open
		for i := 0; i < c.N && err == nil; i++ {
			err = put(path, fmt.Sprintf("%s %d\n", c.Data, i), unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND)
		}
	case "records": // N records, each of several writes in one open
		for i := 0; i < c.N && err == nil; i++ {
			err = putRecord(path, record(c.Data, i))
		}
	case "count": // N times read, add one, write
		for i := 0; i < c.N && err == nil; i++ {
			err = count(path)
		}
	case "saves": // N times: save by rename
		for i := 0; i < c.N && err == nil; i++ {
			if err = put(path+".new", c.Data, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC); err == nil {
				err = unix.Rename(path+".new", path)
			}
		}
	case "reads": // N times; each must return Data
		for i := 0; i < c.N && err == nil; i++ {
			var got string
			if got, _, err = read(path); err == nil && got != c.Data {
				r.Error = fmt.Sprintf("found %s", excerpt(got))
			}
		}
	case "rename":
		err = unix.Rename(path, path2)
	case "link":
		err = unix.Link(path, path2)
	case "unlink":
		err = unix.Unlink(path)
	case "mkdir":
		err = unix.Mkdir(path, 0o755)
	case "pause":
		time.Sleep(time.Duration(c.N) * time.Millisecond)
	default:
		r.Error = fmt.Sprintf("unknown call %q", c.Do)
	}
	if errno, ok := err.(syscall.Errno); ok {
		r.Errno = errno
	} else if err != nil {
		r.Error = err.Error()
	}
	return r
}

// open waits, although the Go runtime sends itself signals.
func open(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o644)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

func write(fd int, data string) error {
	for len(data) > 0 {
		n, err := unix.Write(fd, []byte(data))
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

func put(path, data string, flags int) error {
	fd, err := open(path, flags)
	if err != nil {
		return err
	}
	err = write(fd, data)
	if e := unix.Close(fd); err == nil {
		err = e
	}
	return err
}

func putRecord(path, record string) error {
	fd, err := open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND)
	if err != nil {
		return err
	}
	piece := len(record) / recordLines
	for ; len(record) > 0 && err == nil; record = record[piece:] {
		err = write(fd, record[:piece])
	}
	if e := unix.Close(fd); err == nil {
		err = e
	}
	return err
}

func count(path string) error {
	fd, err := open(path, unix.O_RDWR)
	if err != nil {
		return err
	}
	err = func() error {
		buf := make([]byte, 32)
		n, err := unix.Pread(fd, buf, 0)
		if err != nil {
			return err
		}
		at, err := strconv.Atoi(string(buf[:n]))
		if err != nil {
			return fmt.Errorf("the counter holds %q", buf[:n])
		}
		_, err = unix.Pwrite(fd, strconv.AppendInt(nil, int64(at+1), 10), 0)
		return err
	}()
	if e := unix.Close(fd); err == nil {
		err = e
	}
	return err
}

// read returns a file's bytes, and the size that fstat says.
func read(path string) (data string, size int, err error) {
	fd, err := open(path, unix.O_RDONLY)
	if err != nil {
		return "", 0, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", 0, err
	}
	buf := make([]byte, 1<<20)
	n, err := unix.Pread(fd, buf, 0)
	if err != nil {
		return "", 0, err
	}
	return string(buf[:n]), int(st.Size), nil
}
