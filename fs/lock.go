package fs

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// grant is a lock together with the inode that its path was proved to name.
type grant struct {
	hold *lockmgr.Hold
	key  lockmgr.Key
	fd   int // O_PATH
}

func (g *grant) release() {
	unix.Close(g.fd)
	g.hold.Release()
}

// prove resolves path again now that it is locked. It returns the inode if it
// is still the one the kernel named, else ESTALE: while we waited the holder
// may have replaced the file, and another mount renamed a parent.
func (f *FS) prove(n *node, path string) (fd int, st unix.Stat_t, err error) {
	fd, st, err = resolve(f.rootFD, path)
	if err != nil {
		return -1, st, unix.ESTALE
	}
	if inodeOf(&st) != n.inode {
		unix.Close(fd)
		return -1, st, unix.ESTALE
	}
	return fd, st, nil
}

// lockNode locks a file for the length of one call that is not an OPEN: it
// tries, for it arrived under the kernel's lock on the inode.
func (f *FS) lockNode(cancel <-chan struct{}, in *fuse.InHeader, n *node) (*grant, fuse.Status) {
	path := f.nodes.path(n)
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
	return &grant{hold: hold, key: key, fd: fd}, fuse.OK
}

// lockNames locks names for the length of one call, and proves that the
// directories they are in are where their paths say.
func (f *FS) lockNames(cancel <-chan struct{}, in *fuse.InHeader, kind lockmgr.Kind, names ...dirName) (*lockmgr.Hold, fuse.Status) {
	keys := make([]lockmgr.Key, 0, len(names))
	for _, d := range names {
		if f.hidden(d.dir, d.name) {
			return nil, fuse.EPERM
		}
		k, err := d.key(f, kind)
		if err != nil {
			return nil, errno(err)
		}
		keys = append(keys, k)
	}
	hold, s := f.try(cancel, in, keys...)
	if !s.Ok() {
		return nil, s
	}
	for i, d := range names {
		if i > 0 && d.dir == names[0].dir {
			continue
		}
		fd, _, err := f.prove(d.dir, f.nodes.path(d.dir))
		if err != nil {
			hold.Release()
			return nil, errno(err)
		}
		unix.Close(fd)
	}
	return hold, fuse.OK
}

// dirName is a name in a directory.
type dirName struct {
	dir  *node
	name string
}

func (d dirName) key(f *FS, kind lockmgr.Kind) (lockmgr.Key, error) {
	if kind == lockmgr.Tree {
		return lockmgr.TreeKey(f.nodes.pathIn(d.dir, d.name))
	}
	return lockmgr.FileKey(f.nodes.pathIn(d.dir, d.name))
}

// try takes keys for one call, without a place in the line.
func (f *FS) try(cancel <-chan struct{}, in *fuse.InHeader, keys ...lockmgr.Key) (*lockmgr.Hold, fuse.Status) {
	c := f.caller(in, f.callOwner)
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
