package fs

import (
	"fmt"
	"log"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Root mounts its view itself, and gives the library a duplicate of the connection. So the
// connection can be handed on, and outlives the library's server (ADR 0050).

// serving is one server of the library, and the descriptor that it reads and writes.
type serving struct {
	server *fuse.Server
	number int
	done   chan struct{} // closed when it reads no more, and has answered all that it has read
}

// mountDevice mounts a view and returns its device.
func mountDevice(mountpoint string, o *fuse.MountOptions) (device int, err error) {
	device, err = unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: "/dev/fuse", Err: err}
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	data := []string{
		"fd=" + strconv.Itoa(device), "rootmode=40000", "user_id=" + strconv.Itoa(os.Geteuid()), "group_id=" + strconv.Itoa(os.Getegid()),
		"max_read=" + strconv.Itoa(o.MaxWrite),
	}
	for _, option := range o.Options {
		switch option {
		case "nosuid":
			flags |= unix.MS_NOSUID
		case "suid":
			flags &^= unix.MS_NOSUID
		case "nodev":
			flags |= unix.MS_NODEV
		case "dev":
			flags &^= unix.MS_NODEV
		case "noexec":
			flags |= unix.MS_NOEXEC
		case "exec":
			flags &^= unix.MS_NOEXEC
		default:
			data = append(data, option)
		}
	}
	if o.AllowOther {
		data = append(data, "allow_other")
	}
	if err := unix.Mount(o.FsName, mountpoint, "fuse."+o.Name, flags, strings.Join(data, ",")); err != nil {
		unix.Close(device)
		return -1, err
	}
	return device, nil
}

// firstServer begins a server that reads from the kernel.
func (c *connection) firstServer(device int) (*serving, error) {
	number, err := unix.FcntlInt(uintptr(device), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	return c.newServer(c.requests, number)
}

// newServer takes number over, a descriptor from which the library reads the INIT first.
func (c *connection) newServer(raw fuse.RawFileSystem, number int) (*serving, error) {
	server, err := newLibraryServer(raw, "/dev/fd/"+strconv.Itoa(number), c.options)
	if err != nil {
		return nil, err
	}
	if c.recorded {
		if err := useReadBuffers(server); err != nil {
			c.log.Warn("a request that a dying daemon reads can get EIO", slog.Any("error", err))
		}
	}
	return &serving{server, number, make(chan struct{})}, nil
}

// libraryLog is the library's log.
type libraryLog struct {
	to      *slog.Logger
	pausing *atomic.Bool
}

// Write leaves out what only a pause makes: that a server's reads have ended, and that the kernel
// refuses what stands for the answer to a request that is handed on.
func (l libraryLog) Write(line []byte) (int, error) {
	text := strings.TrimSuffix(string(line), "\n")
	if text != pausedRead && !(l.pausing.Load() && strings.HasPrefix(text, refusedAnswer)) {
		l.to.Warn(text)
	}
	return len(line), nil
}

var (
	pausedRead    = fmt.Sprintf("Failed to read from fuse conn: %v", fuse.EAGAIN)
	refusedAnswer = fmt.Sprintf("writer: Write/Writev failed, err: %v. opcode: ", fuse.EINVAL)
)

func newLibraryLogger(to *slog.Logger, pausing *atomic.Bool) *log.Logger {
	return log.New(libraryLog{to, pausing}, "", 0)
}
