package fs

import (
	"slices"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

type lockedName struct {
	dirName
	key  lockmgr.Key
	rule rule
}

func (r *rules) at(d dirName, path string, kind lockmgr.Kind) (n lockedName, err error) {
	n = lockedName{dirName: d, rule: r.rule(path)}
	if kind == lockmgr.Tree {
		n.key, err = lockmgr.TreeKey(path)
	} else {
		n.key, err = lockmgr.FileKey(path)
	}
	return n, err
}

// toLock leaves out files with a rule against locks, but no directory: other rules may hold below.
func toLock(names []lockedName, others []lockmgr.Key) (keys []lockmgr.Key) {
	for _, n := range names {
		if (n.rule.locked() || n.key.Kind == lockmgr.Tree) && !slices.Contains(keys, n.key) {
			keys = append(keys, n.key)
		}
	}
	for _, k := range others {
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return keys
}

// nameLock is the locks of names, for the length of one call.
type nameLock struct {
	hold  *lockmgr.Hold
	names []lockedName
	links []lockmgr.Key // the inodes that have other names besides one of these
	found []finding     // what the names are, under the locks
}

type finding struct {
	fd  int // O_PATH; -1: none
	st  stat
	err error
}

func (l *nameLock) release() {
	l.hold.Release()
	l.close()
}

func (l *nameLock) close() {
	for i := range l.found {
		if l.found[i].fd >= 0 {
			unix.Close(l.found[i].fd)
			l.found[i].fd = -1
		}
	}
}

// look finds which files the names lead to, and keeps them open, so that no other file gets their
// inode numbers.
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
		if is.err == nil && f.backing.on(is.st.Dev).renamesRemoved {
			unix.Close(is.fd)
			is.fd = -1
		}
		l.found = append(l.found, is)
	}
}

// as is what a name was found to be, for linkKeys.
func (l *nameLock) as(d dirName) (stat, error) {
	i := slices.IndexFunc(l.names, func(n lockedName) bool { return n.dirName == d })
	return l.found[i].st, l.found[i].err
}

// lockNames locks names, and proves the directories that have them.
func (f *locker) lockNames(cancel <-chan struct{}, in *fuse.InHeader, kind lockmgr.Kind, names ...dirName) (*nameLock, fuse.Status) {
	return f.lockNamesAnd(cancel, in, kind, nil, names)
}

// lockNamesAnd also locks the inode of linked, unless that is nil. It is about to get the first name, and
// has the second, if there is one.
func (f *locker) lockNamesAnd(cancel <-chan struct{}, in *fuse.InHeader, kind lockmgr.Kind, linked *node, names []dirName) (*nameLock, fuse.Status) {
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

// dirPaths asks each path once: the locked path must be the proved one. ESTALE: some are missing.
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

// firstRule returns the rule of the first name of a call, whose scope says who the owner is. The first of
// link(2) is the old name; a file without a name is locked in the mount's scope, as lockInode does.
func (f *locker) firstRule(names []lockedName, linked *node) rule {
	switch {
	case linked == nil:
		return names[0].rule
	case len(names) > 1:
		return names[1].rule
	}
	return rule{scope: f.scope}
}

// lockNamesOnce takes dirs for the paths. overtaken: other locks are needed by now.
func (f *locker) lockNamesOnce(cancel <-chan struct{}, in *fuse.InHeader, kind lockmgr.Kind, linked *node, names []dirName, dirs map[*node]string) (l *nameLock, s fuse.Status, overtaken bool) {
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
	if l.hold, s = f.try(cancel, in, f.firstRule(l.names, linked), true, toLock(l.names, links)...); !s.Ok() {
		return nil, s, false
	}
	for dir, path := range dirs {
		i := slices.IndexFunc(l.names, func(n lockedName) bool { return n.dir == dir })
		if err := f.proveDir(dir, path, anew, under{l.hold, l.names[i].key}); err != nil {
			l.hold.Release()
			return nil, errno(err), false
		}
	}
	// As they are now: an earlier holder may have linked more.
	f.look(l)
	if links, err = f.linkKeys(l.names, linked, l.as); err != nil || !covers(l.hold, links) {
		l.release()
		return nil, stale, err == nil
	}
	return l, fuse.OK, false
}
