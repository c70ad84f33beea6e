package fs

import (
	"cmp"
	"errors"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// Create opens no existing file: it arrives under the directory's kernel lock. After ESTALE the
// kernel looks again, and sends OPEN.
func (f *FS) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	dir := f.nodes.get(in.NodeId)
	if dir == nil {
		return stale
	}
	if f.hidden(dir, name) {
		return fuse.EPERM
	}
	before := f.calls.again(&in.InHeader)
	if h := f.calls.file(&in.InHeader); h != nil {
		before.over() // the handle has the lock
		return f.createdBefore(h, out)
	}
	if before != nil && before.Answered {
		return fuse.Status(before.Status)
	}
	if before != nil && before.unknown() {
		before.over()
		return fuse.EIO
	}
	c := &creation{fs: f, in: in, dir: dir, name: name, visit: f.visits.come(in.Pid, number(&in.InHeader), 0), made: before != nil && f.wasMade(before)}
	if c.made {
		c.visit.drop()
		c.visit.hold, c.visit.mode = before.hold, lockmgr.Exclusive
	} else {
		before.over()
	}
	var s fuse.Status
	if c.reserved, s = f.reserve(&in.InHeader); s.Ok() {
		s = c.run(cancel, out)
		c.reserved.release()
	}
	f.visits.leave(c.visit, s)
	return s
}

const createTries = 4

type creation struct {
	fs       *FS
	in       *fuse.CreateIn
	dir      *node
	name     string
	visit    visit
	reserved reservation
	made     bool // by a daemon that has died
}

func (c *creation) run(cancel <-chan struct{}, out *fuse.CreateOut) fuse.Status {
	for range createTries {
		at, err := c.fs.nodes.path(c.dir)
		if err != nil {
			if !c.fs.mend(c.dir) {
				return errno(err)
			}
			continue
		}
		s := c.create(cancel, at, out)
		switch {
		case s == exists && c.in.Flags&unix.O_EXCL == 0:
			if c.visit.maySend() {
				return stale
			}
			// The kernel did not find what is here now.
		case s == stale && c.fs.mendSince(c.dir, at):
			// The directory had moved.
		default:
			return s
		}
	}
	return contended(c.in.Flags)
}

// create makes the file if its directory is at the path at. ESTALE: it is not; EEXIST.
func (c *creation) create(cancel <-chan struct{}, at string, out *fuse.CreateOut) fuse.Status {
	f, in, dir, name := c.fs, c.in, c.dir, c.name
	key, err := lockmgr.FileKey(join(at, name))
	if err != nil {
		return errno(err)
	}
	rule := f.rule(key.Path)
	if s := mayMake(key.Path, rule); !s.Ok() {
		if isThere(dir, name) {
			return exists
		}
		return s
	}
	hold, s := c.lock(cancel, key, rule)
	if !s.Ok() {
		return s
	}
	kept := false
	defer func() {
		if !kept {
			hold.Release()
		}
	}()
	if err := f.proveDir(dir, at, unasked, under{hold, key}); err != nil {
		return errno(err)
	}
	var fd int
	flags := int(in.Flags)&^dropped | f.ofRanges(dir.inode.dev, rule)
	if c.made { // who makes a file may open it, whatever its mode
		fd, err = unix.Openat(dir.fd, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	} else {
		f.beginMaking(&in.InHeader, hold, dirName{dir, name}, unix.S_IFREG)
		err = hold.Change(func() error {
			return f.asForMode(in.Mode)(&in.InHeader, in.Umask, checked(hold.Check, func() (err error) {
				fd, err = unix.Openat(dir.fd, name, flags|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, in.Mode&07777)
				return err
			}))
		})
	}
	if err == unix.EEXIST && in.Flags&unix.O_EXCL == 0 && writes(in.Flags) {
		c.visit.hold, c.visit.mode, kept = hold, lockmgr.Exclusive, true // for the OPEN of the existing file
	}
	if err != nil {
		s := errno(err)
		if s == stale || s == exists && in.Flags&unix.O_EXCL == 0 { // it is tried again
			return s
		}
		return f.whileLocked(&in.InHeader, s)
	}
	path := -1
	st, err := f.backing.stat(fd, unasked) // the creation has got the attributes
	if err == nil {
		path, err = f.backing.pathOf(fd, inodeOf(&st), dir.fd, name)
	}
	if err != nil {
		if !c.made {
			unmake(fd, dirName{dir, name}, hold)
		}
		unix.Close(fd)
		return f.whileLocked(&in.InHeader, errno(err))
	}
	f.seen(dirName{dir, name}, &st, nil)
	n := f.replyEntry(dir, name, path, &st, &out.EntryOut)
	if !writes(in.Flags) && !f.readLocks {
		return f.reply(f.newHandle(n, fd, in.Flags, nil, &c.reserved), &in.InHeader, f.noFlush(), &out.OpenOut)
	}
	// No rename comes before this: the kernel has the directory locked until our answer.
	hold.Made(key)
	f.addHold(n, dir, hold)
	kept = true
	h := f.newHandle(n, fd, in.Flags, hold, &c.reserved)
	return f.reply(h, &in.InHeader, f.cacheFlags(h, in.Flags, &st.Stat_t), &out.OpenOut)
}

// unmake removes the file of fd, which was just made and cannot be opened: descriptors or memory are
// short. A program that tries again must not find its own lock file. Under the lock no view gives the name
// to another file.
func unmake(fd int, d dirName, hold *lockmgr.Hold) {
	var made, named unix.Stat_t
	err := cmp.Or(unix.Fstat(fd, &made), unix.Fstatat(d.dir.fd, d.name, &named, unix.AT_SYMLINK_NOFOLLOW))
	if err == nil && made.Dev == named.Dev && made.Ino == named.Ino && !hold.Unlocked() {
		_ = hold.Change(checked(hold.Check, func() error { return unix.Unlinkat(d.dir.fd, d.name, 0) }))
	}
}

// beginMaking records that a name is about to be made, if there is none yet.
func (f *FS) beginMaking(in *fuse.InHeader, hold *lockmgr.Hold, d dirName, kind uint32) {
	if f.record.Keeps() && !isThere(d.dir, d.name) {
		f.calls.begin(in, hold, callRecord{What: making, To: calledName{Dir: d.dir.id, Name: d.name}, Kind: kind})
	}
}

// createdBefore answers a CREATE whose file a dead daemon has made and opened.
func (f *FS) createdBefore(h *handle, out *fuse.CreateOut) fuse.Status {
	st, err := f.backing.stat(h.fd, unasked)
	if err != nil {
		return errno(err)
	}
	f.entry(h.node, &st.Stat_t, &out.EntryOut)
	out.Fh, out.OpenFlags = h.fh, h.flags
	return fuse.OK
}

func mayMake(path string, r rule) fuse.Status {
	if len(path) > maxPath {
		return fuse.Status(unix.ENAMETOOLONG)
	}
	if r.readOnly() {
		return fuse.EROFS
	}
	return fuse.OK
}

// lock tries to lock a free name. It waits for a holder on another mount, even if that has made
// the file: an early ESTALE spends the kernel's only retry, and the file may be removed before the
// OPEN.
func (c *creation) lock(cancel <-chan struct{}, key lockmgr.Key, r rule) (*lockmgr.Hold, fuse.Status) {
	f := c.fs
	var keys []lockmgr.Key
	if r.locked() {
		keys = []lockmgr.Key{key}
	}
	req, err := f.caller(&c.in.InHeader, nil, r.scope, openOwner)
	if err != nil {
		return nil, f.refused(&c.in.InHeader, key, err, fuse.EBUSY)
	}
	if hold := c.visit.fetch(req.Owner, r.scope, lockmgr.Exclusive, keys); hold != nil {
		return hold, fuse.OK
	}
	c.visit.drop()
	req.Keys, req.Wait, req.Keep, req.HandedOn, req.Found = keys, f.nameWait, r.keep, true, true
	if c.in.Flags&unix.O_NONBLOCK != 0 {
		req.Wait = 0
	}
	hold, err := f.acquire(cancel, &c.in.InHeader, 0, req)
	switch {
	case err == nil:
		return hold, fuse.OK
	case errors.Is(err, errGivenUp), errors.Is(err, errBacklog): // it is outside of the gate
	case errno(err) != handedOn && isThere(c.dir, c.name):
		return nil, exists
	}
	return nil, f.refused(&c.in.InHeader, key, err, contended(c.in.Flags))
}

func isThere(dir *node, name string) bool {
	var st unix.Stat_t
	return pastEBADFD(func() error { return unix.Fstatat(dir.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) }) == nil
}

// Mknod takes no lock, nor do Mkdir and Symlink: they change no existing file.
func (f *FS) Mknod(_ <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	return f.makeName(&in.InHeader, in.Mode&unix.S_IFMT, in.Mode, in.Umask, name, out, func(dirFD int) error {
		return unix.Mknodat(dirFD, name, in.Mode, int(in.Rdev))
	})
}

// Mkdir makes a directory.
func (f *FS) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return f.makeName(&in.InHeader, unix.S_IFDIR, in.Mode, in.Umask, name, out, func(dirFD int) error {
		return unix.Mkdirat(dirFD, name, in.Mode&07777)
	})
}

// Symlink makes a symbolic link.
func (f *FS) Symlink(_ <-chan struct{}, in *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	return f.makeName(in, unix.S_IFLNK, 0, 0, name, out, func(dirFD int) error {
		return unix.Symlinkat(target, dirFD, name)
	})
}

func (f *FS) makeName(in *fuse.InHeader, kind, mode, umask uint32, name string, out *fuse.EntryOut, create func(dirFD int) error) fuse.Status {
	dir := f.nodes.get(in.NodeId)
	if dir == nil {
		return stale
	}
	if f.hidden(dir, name) {
		return fuse.EPERM
	}
	if s, known := f.repeat(in, out); known {
		return s
	}
	if err := f.mayName(dir, name); err != nil {
		return errno(err)
	}
	free, err := spare(dir)
	if err != nil {
		return errno(err)
	}
	defer free()
	f.beginMaking(in, nil, dirName{dir, name}, kind)
	if err := f.asForMode(mode)(in, umask, func() error { return create(dir.fd) }); err != nil {
		return errno(err)
	}
	free()
	return f.enterMade(dir, name, kind, out)
}

// spare has a descriptor at hand until free is called. So a call finds out that there are none before it
// makes a name, and not when it looks the name up for its answer.
func spare(dir *node) (free func(), err error) {
	fd, err := unix.FcntlInt(uintptr(dir.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { unix.Close(fd) }), nil
}

// enterMade replies with the node of a new name. If another mount has put another kind there, the
// kernel would answer EIO, so enterMade answers ESTALE.
func (f *files) enterMade(dir *node, name string, kind uint32, out *fuse.EntryOut) fuse.Status {
	s := f.enter(dir, name, out)
	if s.Ok() && out.Attr.Mode&unix.S_IFMT != kind {
		f.nodes.forget(out.NodeId, 1)
		return stale
	}
	return s
}
