package fs

import (
	"fmt"
	"log"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

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

// connect mounts the view and returns the connection.
func (f *FS) connect(o *fuse.MountOptions) (device int, err error) {
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
	if err := unix.Mount(o.FsName, f.mount, "fuse."+o.Name, flags, strings.Join(data, ",")); err != nil {
		unix.Close(device)
		return -1, err
	}
	return device, nil
}

// firstServer begins a server that reads from the kernel.
func (f *FS) firstServer(device int) (*serving, error) {
	number, err := unix.FcntlInt(uintptr(device), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	return f.newServer(counting{f}, number, f.options)
}

// newServer takes number over, a descriptor from which the library reads the INIT first.
func (f *FS) newServer(raw fuse.RawFileSystem, number int, o *fuse.MountOptions) (*serving, error) {
	server, err := newLibraryServer(raw, "/dev/fd/"+strconv.Itoa(number), o)
	if err != nil {
		return nil, err
	}
	return &serving{server, number, make(chan struct{})}, nil
}

// serve begins to answer the kernel. The view has ended when its last server has.
func (f *FS) serve(s *serving) {
	f.serving.Store(s)
	go func() {
		s.server.Serve()
		if f.serving.Load() == s && !f.pausing.Load() {
			close(f.ended)
		}
		close(s.done)
	}()
}

// unmountTries is how often a view is unmounted that is in use for a moment.
const unmountTries = 5

// disconnect unmounts the view, and waits for the end of its requests. EBUSY: it is in use.
func (f *FS) disconnect() (err error) {
	if f.device < 0 {
		return f.serving.Load().server.Unmount()
	}
	pause := 5 * time.Millisecond
	for range unmountTries {
		if err = unix.Unmount(f.mount, 0); err == nil {
			<-f.ended
			return nil
		}
		time.Sleep(pause)
		pause = 2*pause + 5*time.Millisecond
	}
	return err
}

// inodeNotify is the library's InodeNotify. It does not depend on the present server.
func (f *FS) inodeNotify(node uint64, off, length int64) fuse.Status {
	if f.device < 0 {
		return f.serving.Load().server.InodeNotify(node, off, length)
	}
	notice := struct {
		fuse.OutHeader
		fuse.NotifyInvalInodeOut
	}{
		fuse.OutHeader{Status: -fuse.NOTIFY_INVAL_INODE},
		fuse.NotifyInvalInodeOut{Ino: node, Off: off, Length: length},
	}
	notice.OutHeader.Length = uint32(unsafe.Sizeof(notice))
	_, err := ignoringEINTR(func() (int, error) {
		return unix.Write(f.device, unsafe.Slice((*byte)(unsafe.Pointer(&notice)), unsafe.Sizeof(notice)))
	})
	if err == unix.EINVAL {
		err = unix.ENOSYS
	}
	return fuse.ToStatus(err)
}

// libraryLog is the library's log.
type libraryLog struct{ f *FS }

// Write leaves out that a server's reads have ended: only a pause makes them.
func (l libraryLog) Write(line []byte) (int, error) {
	if text := strings.TrimSuffix(string(line), "\n"); text != pausedRead {
		l.f.log.Warn(text)
	}
	return len(line), nil
}

var pausedRead = fmt.Sprintf("Failed to read from fuse conn: %v", fuse.EAGAIN)

func (f *FS) libraryLogger() *log.Logger { return log.New(libraryLog{f}, "", 0) }

func (f *FS) closeDevice() {
	if f.device < 0 {
		return
	}
	if err := unix.Close(f.device); err != nil {
		f.log.Debug("cannot close the view's connection", slog.Any("error", err))
	}
}
