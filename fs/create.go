package fs

import (
	"errors"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// Create makes a new file and opens it. It arrives under the kernel's lock on
// the directory, so it never waits for a file that is there: ESTALE sends the
// kernel to look again, to check the caller's permission on what it finds,
// and to OPEN it.
func (f *FS) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	dir := f.nodes.get(in.NodeId)
	if dir == nil {
		return stale
	}
	if f.hidden(dir, name) {
		return fuse.EPERM
	}
	for range createTries {
		path, err := f.nodes.pathIn(dir, name)
		if err != nil {
			if !f.mend(dir) {
				return errno(err)
			}
			continue
		}
		key, err := lockmgr.FileKey(path)
		if err != nil {
			return errno(err)
		}
		spot := parkKey{tid: in.Pid, key: key}
		s := f.create(cancel, in, dir, name, key, out)
		switch {
		case s == exists && in.Flags&unix.O_EXCL == 0:
			if f.parked.send(spot, nil) {
				return stale
			}
			// It has been sent to look, and did not find what is here again.
		case s == stale && f.mend(dir):
			// Its directory had moved.
		default:
			f.parked.done(spot)
			return s
		}
	}
	return fuse.EBUSY
}

// createTries is how often a creation follows a name that others create and
// remove, or a directory that they move.
const createTries = 4

// create answers EEXIST for a file that is there.
func (f *FS) create(cancel <-chan struct{}, in *fuse.CreateIn, dir *node, name string, key lockmgr.Key, out *fuse.CreateOut) fuse.Status {
	if isThere(dir, name) {
		return exists
	}
	if f.readOnly(key.Path) {
		return fuse.EROFS
	}
	c := f.caller(&in.InHeader, nil, f.scopeAt(key.Path), openOwner)
	hold, s := f.lockNew(cancel, in, c, dir, name, key)
	if !s.Ok() {
		return s
	}
	kept := false
	defer func() {
		if !kept {
			hold.Release()
		}
	}()
	if err := f.proveDir(dir); err != nil {
		return errno(err)
	}
	if err := hold.Check(); err != nil {
		return errno(err)
	}
	var fd int
	err := f.as(&in.InHeader, in.Umask, func() (err error) {
		fd, err = unix.Openat(dir.fd, name, int(in.Flags)&^dropped|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, in.Mode&07777)
		return err
	})
	if err != nil {
		return errno(err)
	}
	var st unix.Stat_t
	path := -1
	if err = unix.Fstat(fd, &st); err == nil {
		path, err = pathOf(fd, inodeOf(&st), dir.fd, name)
	}
	if err != nil {
		unix.Close(fd)
		return errno(err)
	}
	n := f.replyEntry(dir, name, path, &st, &out.EntryOut)
	if !writes(in.Flags) {
		return f.reply(newHandle(n, fd, in.Flags, nil), fuse.FOPEN_NOFLUSH, &out.OpenOut)
	}
	// In time for every rename: the kernel keeps the directory until our answer.
	n.addHold(hold)
	kept = true
	h := newHandle(n, fd, in.Flags, hold)
	return f.reply(h, h.cacheFlags(in.Flags, &st), &out.OpenOut)
}

// lockNew tries to lock a name that is free. Whoever holds it is about to make
// a file of that name: when that is there, there is no more to wait for.
func (f *FS) lockNew(cancel <-chan struct{}, in *fuse.CreateIn, c caller, dir *node, name string, key lockmgr.Key) (*lockmgr.Hold, fuse.Status) {
	keys := f.toLock([]lockmgr.Key{key})
	ctx, stop := f.killable(cancel, in.Pid)
	defer stop()
	hold, err := f.acquire(ctx, c.request(keys, false, 0))
	contended := fuse.EBUSY
	switch {
	case err == nil:
	case isThere(dir, name):
		return nil, exists
	case in.Flags&unix.O_NONBLOCK != 0:
		contended = fuse.EAGAIN
	default:
		hold, err = f.acquire(ctx, c.request(keys, false, f.nameWait))
		if errors.Is(err, lockmgr.ErrContended) && isThere(dir, name) {
			return nil, exists
		}
	}
	if err != nil {
		return nil, f.refused(&in.InHeader, key, err, contended)
	}
	return hold, fuse.OK
}

func isThere(dir *node, name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(dir.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// Mknod makes a file without opening it. Like Mkdir and Symlink it takes no
// lock: it makes a name that was not there, and changes no file.
func (f *FS) Mknod(_ <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	return f.makeName(&in.InHeader, in.Umask, name, out, func(dirFD int) error {
		return unix.Mknodat(dirFD, name, in.Mode, int(in.Rdev))
	})
}

// Mkdir makes a directory.
func (f *FS) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return f.makeName(&in.InHeader, in.Umask, name, out, func(dirFD int) error {
		return unix.Mkdirat(dirFD, name, in.Mode&07777)
	})
}

// Symlink makes a symbolic link.
func (f *FS) Symlink(_ <-chan struct{}, in *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	return f.makeName(in, 0, name, out, func(dirFD int) error {
		return unix.Symlinkat(target, dirFD, name)
	})
}

func (f *FS) makeName(in *fuse.InHeader, umask uint32, name string, out *fuse.EntryOut, make func(dirFD int) error) fuse.Status {
	dir := f.nodes.get(in.NodeId)
	if dir == nil {
		return stale
	}
	if f.hidden(dir, name) {
		return fuse.EPERM
	}
	if err := f.mayName(dir, name); err != nil {
		return errno(err)
	}
	if err := f.as(in, umask, func() error { return make(dir.fd) }); err != nil {
		return errno(err)
	}
	return f.enter(dir, name, out)
}
