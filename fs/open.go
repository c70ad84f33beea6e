package fs

import (
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// dropped are the flags of a program's open that the backing does not get:
// what the kernel has done already, what is ours to do (O_TRUNC under the
// lock, O_APPEND at each write), and what would bind our own I/O (O_DIRECT
// wants aligned buffers).
const dropped = unix.O_CREAT | unix.O_EXCL | unix.O_TRUNC | unix.O_NOCTTY | unix.O_APPEND |
	unix.O_DIRECT | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC

func writes(flags uint32) bool { return flags&unix.O_ACCMODE != unix.O_RDONLY }

// Open takes the lock of a file that is opened for write or to be truncated.
// It is the one request that may queue: it arrives without a lock of the kernel's.
func (f *FS) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n := f.nodes.get(in.NodeId)
	if n == nil || f.nodes.isRetired(n) {
		return stale
	}
	if !writes(in.Flags) && in.Flags&unix.O_TRUNC == 0 {
		return f.openToRead(n, in.Flags, out)
	}
	o := &opening{fs: f, in: in, node: n, caller: f.caller(&in.InHeader, openOwner)}
	s := o.run(cancel, out)
	if s != stale {
		f.parked.done(o.spot())
	}
	return s
}

func (f *FS) openToRead(n *node, flags uint32, out *fuse.OpenOut) fuse.Status {
	fd, err := reopen(n.fd, int(flags)&^dropped)
	if err != nil {
		return errno(err)
	}
	out.Fh = f.handles.add(newHandle(n, fd, nil))
	out.OpenFlags = fuse.FOPEN_NOFLUSH
	return fuse.OK
}

// opening is one OPEN that needs a lock.
type opening struct {
	fs     *FS
	in     *fuse.OpenIn
	node   *node
	caller caller
	key    lockmgr.Key
}

func (o *opening) spot() parkKey { return parkKey{tid: o.in.Pid, key: o.key} }

func (o *opening) run(cancel <-chan struct{}, out *fuse.OpenOut) fuse.Status {
	path := o.fs.nodes.path(o.node)
	hold, s := o.lock(cancel, path)
	if !s.Ok() {
		return s
	}
	fd, _, err := o.fs.prove(o.node, path)
	if err != nil {
		hold.Release()
		if o.fs.parked.send(o.spot(), nil) {
			return stale
		}
		// The kernel looked again and still means an inode that is not there:
		// it was reopened without a name, or its directory has moved.
		o.fs.parked.done(o.spot())
		if path, err = o.fs.currentPath(o.node); err != nil {
			return fuse.EBUSY
		}
		if hold, s = o.lock(cancel, path); !s.Ok() {
			return s
		}
		if fd, _, err = o.fs.prove(o.node, path); err != nil {
			hold.Release()
			return fuse.EBUSY
		}
	}
	defer unix.Close(fd)
	s = o.open(fd, hold, out)
	if !s.Ok() && s != stale {
		hold.Release()
	}
	return s
}

// lock takes the lock of path, or fetches it where it was parked.
func (o *opening) lock(cancel <-chan struct{}, path string) (*lockmgr.Hold, fuse.Status) {
	var err error
	if o.key, err = lockmgr.FileKey(path); err != nil {
		return nil, errno(err)
	}
	if hold := o.fs.parked.take(o.spot()); hold != nil {
		return hold, fuse.OK
	}
	wait, contended := o.fs.wait, fuse.EBUSY
	if o.in.Flags&unix.O_NONBLOCK != 0 {
		wait, contended = 0, fuse.EAGAIN
	}
	ctx, stop := o.fs.interruptible(cancel, o.in.Pid)
	defer stop()
	hold, err := o.fs.locks.Acquire(ctx, o.caller.request([]lockmgr.Key{o.key}, true, wait))
	if err != nil {
		return nil, o.fs.refused(&o.in.InHeader, o.key, err, contended)
	}
	return hold, fuse.OK
}

// open opens the backing under the lock. fd is the inode that the locked path
// names. On success, and with ESTALE, the hold is taken over.
func (o *opening) open(fd int, hold *lockmgr.Hold, out *fuse.OpenOut) fuse.Status {
	f, n, flags := o.fs, o.node, o.in.Flags
	mode := int(flags) &^ dropped
	trunc := flags&unix.O_TRUNC != 0
	if !writes(flags) {
		mode = mode&^unix.O_ACCMODE | unix.O_RDWR
	}
	file, err := reopen(fd, mode)
	if err != nil {
		return errno(err)
	}
	var st unix.Stat_t
	if err = unix.Fstat(file, &st); err == nil && inodeOf(&st) != n.inode {
		err = unix.EBUSY
	}
	if err != nil {
		unix.Close(file)
		return errno(err)
	}
	switch {
	case trunc:
		if s := f.guarded(hold, func() error { return truncateFile(file, 0, o.in.Mode&fuse.OPEN_KILL_SUIDGID != 0, &o.in.InHeader) }); !s.Ok() {
			unix.Close(file)
			return s
		}
		// The kernel sets the size to 0 by itself and drops the times.
		if err := unix.Fstat(file, &st); err == nil {
			n.tell(&st)
		}
	case !n.fresh(&st):
		// While we waited the last holder wrote. The kernel would go on with
		// the size it looked up before.
		if f.parked.send(o.spot(), hold) {
			unix.Close(file)
			return stale
		}
		f.server.InodeNotify(n.id, -1, 0)
	}
	if !writes(flags) { // opened for its truncation
		unix.Close(file)
		s := f.openToRead(n, flags, out)
		if s.Ok() {
			hold.Release()
		}
		return s
	}
	out.Fh = f.handles.add(newHandle(n, file, hold))
	out.OpenFlags = writeFlags(flags)
	return fuse.OK
}

// writeFlags picks the kernel's cache for a handle that writes. Appends go to
// the backing's end, which the page cache does not know; a handle that cannot
// read gains nothing from it.
func writeFlags(flags uint32) uint32 {
	if flags&unix.O_APPEND != 0 || flags&unix.O_ACCMODE == unix.O_WRONLY {
		return fuse.FOPEN_DIRECT_IO
	}
	return 0
}

// defaults of the waits, for Config.
const (
	DefaultWait     = 30 * time.Second
	DefaultNameWait = time.Second
)
