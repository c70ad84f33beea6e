package fs

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// prove resolves path again now that it is locked. It returns the inode if it
// is still the one the kernel named, else ESTALE: while we waited the holder
// may have replaced the file, and another mount renamed a parent.
func (f *FS) prove(n *node, path string) (fd int, st unix.Stat_t, err error) {
	fd, st, err = resolve(f.rootFD, path)
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV, unix.ESTALE:
		return -1, st, unix.ESTALE
	default:
		return -1, st, err
	}
	if inodeOf(&st) != n.inode {
		unix.Close(fd)
		return -1, st, unix.ESTALE
	}
	return fd, st, nil
}

// proveDir proves that a directory is where the names it was looked up by lead.
func (f *FS) proveDir(dir *node) error {
	path, err := f.nodes.path(dir)
	if err != nil {
		return err
	}
	fd, _, err := f.prove(dir, path)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// mend finds a directory that has moved where it is now, and reports whether it
// had. A program may stand in it, and name files from there for ever without
// looking up anything above.
func (f *FS) mend(dir *node) bool {
	return dir.id != rootID && f.proveDir(dir) == unix.ESTALE && f.relocate(dir) == nil
}

// mendTries is how often a request follows a file or a directory that moves
// while it is being locked.
const mendTries = 3

// nodeLock is the lock of one file, for the length of one call.
type nodeLock struct {
	hold *lockmgr.Hold
	fd   int // O_PATH: the inode that the locked path was proved to name
}

func (l *nodeLock) release() {
	unix.Close(l.fd)
	l.hold.Release()
}

// lockNode locks a file for a call that is not an OPEN: it tries, for it
// arrived under the kernel's lock on the inode.
func (f *FS) lockNode(cancel <-chan struct{}, in *fuse.InHeader, n *node) (*nodeLock, fuse.Status) {
	for range mendTries {
		l, s := f.lockNodeOnce(cancel, in, n)
		if s != stale {
			return l, s
		}
		if dir := f.nodes.nameOf(n).dir; dir == nil || !f.mend(dir) {
			break // it is another file now: the kernel looks again
		}
	}
	return nil, stale
}

func (f *FS) lockNodeOnce(cancel <-chan struct{}, in *fuse.InHeader, n *node) (*nodeLock, fuse.Status) {
	path, err := f.nodes.path(n)
	if err != nil {
		return nil, errno(err)
	}
	key, err := lockmgr.FileKey(path)
	if err != nil {
		return nil, errno(err)
	}
	hold, s := f.try(cancel, in, key)
	if !s.Ok() {
		return nil, s
	}
	fd, _, err := f.prove(n, path)
	if err != nil {
		hold.Release()
		return nil, errno(err)
	}
	return &nodeLock{hold: hold, fd: fd}, fuse.OK
}

// dirName is a name in a directory.
type dirName struct {
	dir  *node
	name string
}

// nameLock is the locks of names, for the length of one call.
type nameLock struct {
	hold *lockmgr.Hold
	keys []lockmgr.Key // in the order of the names
}

// lockNames locks names, of files or of directories with all below, and proves
// that the directories they are in are where their paths say.
func (f *FS) lockNames(cancel <-chan struct{}, in *fuse.InHeader, kind lockmgr.Kind, names ...dirName) (*nameLock, fuse.Status) {
	for range mendTries {
		l, s := f.lockNamesOnce(cancel, in, kind, names)
		if s != stale {
			return l, s
		}
		mended := false
		for _, d := range names {
			mended = f.mend(d.dir) || mended
		}
		if !mended {
			break
		}
	}
	return nil, stale
}

func (f *FS) lockNamesOnce(cancel <-chan struct{}, in *fuse.InHeader, kind lockmgr.Kind, names []dirName) (*nameLock, fuse.Status) {
	l := &nameLock{}
	for _, d := range names {
		if f.hidden(d.dir, d.name) {
			return nil, fuse.EPERM
		}
		path, err := f.nodes.pathIn(d.dir, d.name)
		if err != nil {
			return nil, errno(err)
		}
		newKey := lockmgr.FileKey
		if kind == lockmgr.Tree {
			newKey = lockmgr.TreeKey
		}
		k, err := newKey(path)
		if err != nil {
			return nil, errno(err)
		}
		l.keys = append(l.keys, k)
	}
	var s fuse.Status
	if l.hold, s = f.try(cancel, in, l.keys...); !s.Ok() {
		return nil, s
	}
	for i, d := range names {
		if i > 0 && d.dir == names[0].dir {
			continue
		}
		if err := f.proveDir(d.dir); err != nil {
			l.hold.Release()
			return nil, errno(err)
		}
		// The path that was proved has to be the one that was locked.
		if path, err := f.nodes.pathIn(d.dir, d.name); err != nil || path != l.keys[i].Path {
			l.hold.Release()
			return nil, stale
		}
	}
	return l, fuse.OK
}

// try takes keys for one call, without a place in the line.
func (f *FS) try(cancel <-chan struct{}, in *fuse.InHeader, keys ...lockmgr.Key) (*lockmgr.Hold, fuse.Status) {
	c := f.caller(in, nil, f.callOwner)
	ctx, stop := f.killable(cancel, in.Pid)
	defer stop()
	hold, err := f.locks.Acquire(ctx, c.request(keys, false, f.nameWait))
	if err != nil {
		return nil, f.refused(in, keys[0], err, fuse.EBUSY)
	}
	return hold, fuse.OK
}

// guarded runs a change that a hold allows: not unless it is ours before, and
// with EIO if it may not have been ours until the end.
func (f *FS) guarded(hold *lockmgr.Hold, change func() error) fuse.Status {
	if err := hold.Check(); err != nil {
		return errno(err)
	}
	if err := change(); err != nil {
		return errno(err)
	}
	return errno(hold.Check())
}
