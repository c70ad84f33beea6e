package fs

import (
	"slices"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/policy"
)

// nodeLock is the lock of one file.
type nodeLock struct {
	node *node
	hold *lockmgr.Hold // registered with the node
	fd   int           // O_PATH: the inode that the locked path was proved to name
}

func (l *nodeLock) release() {
	l.giveUp()
	l.close()
}

func (l *nodeLock) giveUp() {
	l.node.removeHold(l.hold)
	l.hold.Release()
}

func (l *nodeLock) close() {
	if l.fd >= 0 {
		unix.Close(l.fd)
	}
}

// lastKnown returns what this machine knows of a file. The locks to take are guessed by it.
func (f *files) lastKnown(n *node) (st stat, err error) {
	err = f.with(n, func(fd int) (err error) {
		st, err = f.backing.stat(fd, unasked)
		return err
	})
	if err == unix.ESTALE {
		// The volume does not have the file, or no name of it is known. Its path is locked
		// all the same: the proof fails, and the kernel looks up what has the name.
		f.nodes.doubtNames(n)
		err = nil
	}
	return st, err
}

// lockFile takes the locks of the file at path, by take, and proves that the file is n. st is
// what is known of it. l.hold is nil if the locks were not granted. With err l.fd is void.
func (f *FS) lockFile(n *node, path string, r rule, st stat, how asking, take func(...lockmgr.Key) (*lockmgr.Hold, fuse.Status)) (l nodeLock, s fuse.Status, err error) {
	for {
		keys, err := f.fileKeys(path, r, &st.Stat_t)
		if err != nil {
			return nodeLock{}, errno(err), nil
		}
		hold, s := take(keys...)
		if !s.Ok() {
			return nodeLock{}, s, nil
		}
		l := nodeLock{node: n, hold: hold, fd: -1}
		n.addHold(hold)
		if l.fd, st, err = f.prove(n, path, how); err != nil {
			return l, fuse.OK, err
		}
		// While we waited the file may have got more names.
		if keys, err = f.fileKeys(path, r, &st.Stat_t); err != nil || covers(hold, keys) {
			return l, errno(err), err
		}
		l.release()
	}
}

// lockNode locks a file for a call that is not an OPEN. It tries, and does not queue: the
// caller has the kernel's lock on the inode.
func (f *FS) lockNode(cancel <-chan struct{}, in *fuse.InHeader, n *node) (*nodeLock, fuse.Status) {
	for range mendTries {
		l, s := f.lockNodeOnce(cancel, in, n)
		if s != stale {
			return l, s
		}
		if !f.mendAbove(n) {
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
	rule := f.rule(path)
	if rule.readOnly() {
		return nil, fuse.EROFS
	}
	st, err := f.lastKnown(n)
	if err != nil {
		return nil, errno(err)
	}
	l, s, err := f.lockFile(n, path, rule, st, anew, func(keys ...lockmgr.Key) (*lockmgr.Hold, fuse.Status) {
		return f.try(cancel, in, rule.scope, keys...)
	})
	if l.hold == nil {
		return nil, s
	}
	if err != nil {
		l.release()
		return nil, errno(err)
	}
	return &l, fuse.OK
}

// dirName is a name in a directory.
type dirName struct {
	dir  *node
	name string
}

// is reports whether two names are one: the kernel may have two nodes of one directory.
func (d dirName) is(other dirName) bool {
	return d == other || d.name == other.name && d.dir != nil && other.dir != nil && d.dir.inode == other.dir.inode
}

// nameLock is the locks of names, for the length of one call.
type nameLock struct {
	hold  *lockmgr.Hold
	names []lockedName
	links []lockmgr.Key // of the inodes that have, or get, one of the names and others
	found []finding     // what the names are, under the locks
}

// finding is what a name was found to be.
type finding struct {
	fd  int // O_PATH; -1 if there is none
	st  stat
	err error
}

// release ends the call.
func (l *nameLock) release() {
	l.hold.Release()
	l.close()
}

// close closes what was found.
func (l *nameLock) close() {
	for i := range l.found {
		if l.found[i].fd >= 0 {
			unix.Close(l.found[i].fd)
			l.found[i].fd = -1
		}
	}
}

// look finds out what the names lead to now. It keeps the files open, so that their inode
// numbers cannot become other files'.
func (f *files) look(l *nameLock) {
	l.close()
	l.found = l.found[:0]
	for _, n := range l.names {
		d := n.dirName
		is := finding{fd: -1, err: unix.ESTALE}
		if d.dir.enter() {
			is.fd, is.st, is.err = f.backing.lookAt(d.dir.fd, d.name, anew)
			d.dir.leave()
		}
		f.seen(d, &is.st, is.err)
		l.found = append(l.found, is)
	}
	if f.backing.renamesRemoved {
		l.close()
	}
}

// as is what a name was found to be, for linkKeys.
func (l *nameLock) as(d dirName) (stat, error) {
	i := slices.IndexFunc(l.names, func(n lockedName) bool { return n.dirName == d })
	return l.found[i].st, l.found[i].err
}

// lockNames locks names, of files or of directories with all that is below, and proves the
// directories that have the names.
func (f *FS) lockNames(cancel <-chan struct{}, in *fuse.InHeader, kind lockmgr.Kind, names ...dirName) (*nameLock, fuse.Status) {
	return f.lockNamesAnd(cancel, in, kind, nil, names)
}

// lockNamesAnd also locks the inode of linked, unless that is nil.
func (f *FS) lockNamesAnd(cancel <-chan struct{}, in *fuse.InHeader, kind lockmgr.Kind, linked *node, names []dirName) (*nameLock, fuse.Status) {
	for range mendTries {
		paths, s := f.dirPaths(names)
		var l *nameLock
		overtaken := false
		if s.Ok() {
			l, s, overtaken = f.lockNamesOnce(cancel, in, kind, linked, names, paths)
		}
		if overtaken {
			continue
		}
		if s != stale {
			return l, s
		}
		mended := false
		for _, d := range names {
			if path, ok := paths[d.dir]; ok {
				mended = f.mendSince(d.dir, path) || mended
			} else {
				mended = f.mend(d.dir) || mended
			}
		}
		if !mended {
			break
		}
	}
	return nil, stale
}

// dirPaths returns the known path of each directory of names. It is asked for once: the path
// that is locked must be the path that is proved. With ESTALE some are missing.
func (f *files) dirPaths(names []dirName) (map[*node]string, fuse.Status) {
	paths := make(map[*node]string, len(names))
	s := fuse.OK
	for _, d := range names {
		if _, ok := paths[d.dir]; ok {
			continue
		}
		path, err := f.nodes.path(d.dir)
		if err != nil {
			s = errno(err)
			continue
		}
		paths[d.dir] = path
	}
	return paths, s
}

// lockNamesOnce is lockNamesAnd for directories that are taken to be at dirs. overtaken: the
// names need other locks by now.
func (f *FS) lockNamesOnce(cancel <-chan struct{}, in *fuse.InHeader, kind lockmgr.Kind, linked *node, names []dirName, dirs map[*node]string) (l *nameLock, s fuse.Status, overtaken bool) {
	l = &nameLock{}
	for _, d := range names {
		if f.hidden(d.dir, d.name) {
			return nil, fuse.EPERM, false
		}
		n, err := f.at(d, join(dirs[d.dir], d.name), kind)
		if n.rule.readOnly() {
			return nil, fuse.EROFS, false
		}
		if err != nil {
			return nil, errno(err), false
		}
		l.names = append(l.names, n)
	}
	links, err := f.linkKeys(l.names, linked, f.glance)
	if err != nil {
		return nil, errno(err), false
	}
	l.links = links
	if l.hold, s = f.try(cancel, in, l.names[0].rule.scope, toLock(l.names, links)...); !s.Ok() {
		return nil, s, false
	}
	for dir, path := range dirs {
		if err := f.proveDir(dir, path, anew); err != nil {
			l.hold.Release()
			return nil, errno(err), false
		}
	}
	// As they are now: what a holder before us linked is another's too.
	f.look(l)
	if links, err = f.linkKeys(l.names, linked, l.as); err != nil || !covers(l.hold, links) {
		l.release()
		return nil, stale, err == nil
	}
	return l, fuse.OK, false
}

// try takes keys for one call, without a place in the line.
func (f *FS) try(cancel <-chan struct{}, in *fuse.InHeader, scope policy.Scope, keys ...lockmgr.Key) (*lockmgr.Hold, fuse.Status) {
	c, err := f.caller(in, nil, scope, f.callOwner)
	if err != nil {
		return nil, f.refused(in, slices.Concat(keys, []lockmgr.Key{{}})[0], err, fuse.EBUSY)
	}
	ctx, stop := f.killable(cancel, in.Pid)
	defer stop()
	hold, err := f.acquire(ctx, in, c.request(keys, false, f.nameWait))
	if err != nil {
		return nil, f.refused(in, keys[0], err, fuse.EBUSY)
	}
	return hold, fuse.OK
}

// whileHeldAs is whileHeld for a change that the caller has to be allowed, too.
func (f *FS) whileHeldAs(in *fuse.InHeader, hold *lockmgr.Hold, change func() error) fuse.Status {
	return whileHeld(hold, func() error { return f.as(in, 0, change) })
}

// whileHeld makes a change that a hold allows: not unless the hold is good before, and
// with EIO if it may not have been good until the end.
func whileHeld(hold *lockmgr.Hold, change func() error) fuse.Status {
	if err := hold.Check(); err != nil {
		return errno(err)
	}
	if err := change(); err != nil {
		return errno(err)
	}
	return errno(hold.Check())
}
