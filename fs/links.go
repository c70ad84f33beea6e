package fs

import (
	"slices"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// A file with several names is one file: an open locks its name and its inode. A file with one
// name is locked by its name alone, at half the cost (ADR 0032).
//
// INVARIANT: a hold on an open file has the lock of the inode, or of the only name. So LINK adds
// the inode's lock to the existing holds. Unlink and rename, when they leave one name, add the
// lock of that name: the heir.

func hasMoreNames(st *unix.Stat_t) bool { return st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR }

// inodeKey is made of the path where the file system is mounted and the inode's number: device
// numbers differ between machines.
func (b backing) inodeKey(path string, st *unix.Stat_t) (lockmgr.Key, error) {
	if st.Dev != b.device.Load() {
		for i := range len(path) {
			if path[i] != '/' {
				continue
			}
			fd, dir, err := b.resolve(path[:i], unasked)
			if err != nil {
				return lockmgr.Key{}, unix.ESTALE
			}
			unix.Close(fd)
			if dir.Dev == st.Dev {
				return lockmgr.InodeKey(path[:i], st.Ino)
			}
		}
	}
	return lockmgr.InodeKey("", st.Ino)
}

func covers(hold *lockmgr.Hold, keys []lockmgr.Key) bool {
	for _, k := range keys {
		if hold.Token(k) == 0 {
			return false
		}
	}
	return true
}

// linkKeys returns the inode keys of the files with several names among names, by look. linked,
// unless nil, is about to get the first name, and counts too.
func (f *files) linkKeys(names []lockedName, linked *node, look func(dirName) (stat, error)) ([]lockmgr.Key, error) {
	var links []lockmgr.Key
	add := func(path string, st *unix.Stat_t) error {
		k, err := f.backing.inodeKey(path, st)
		if err == nil && !slices.Contains(links, k) {
			links = append(links, k)
		}
		return err
	}
	for _, n := range names {
		if !n.rule.locked() {
			continue
		}
		st, err := look(n.dirName)
		if err != nil || !hasMoreNames(&st.Stat_t) {
			continue
		}
		if err := add(n.key.Path, &st.Stat_t); err != nil {
			return nil, err
		}
	}
	if linked == nil || !names[0].rule.locked() {
		return links, nil
	}
	var st unix.Stat_t
	if err := f.with(linked, func(fd int) error { return fstat(fd, &st) }); err != nil {
		return nil, err
	}
	return links, add(names[0].key.Path, &st)
}

// replaced reports whether the kernel may mean n, which has no name left, by another file's name.
func (f *files) replaced(n *node) bool {
	return slices.ContainsFunc(f.nodes.mayBeMeant(n), func(d dirName) bool {
		_, err := f.backing.statNow(d)
		return err == nil
	})
}

// heirs returns the remaining name of a file open for write that loses one of two. EBUSY: unknown.
func (f *files) heirs(gone dirName, file *stat) ([]dirName, error) {
	n := f.nodes.find(inodeOf(file))
	if n == nil || len(n.allHolds()) == 0 {
		return nil, nil
	}
	// As it is now: file may be from before its names were frozen.
	if !f.hasTwoNames(n, gone) {
		return nil, nil
	}
	for _, d := range f.nodes.names(n) {
		if !d.is(gone) && f.isNamed(n, d) {
			return []dirName{d}, nil
		}
	}
	if !f.hasTwoNames(n, gone) { // it has lost the other meanwhile
		return nil, nil
	}
	return nil, unix.EBUSY
}

// heirsInTime is heirs, but first waits for handles whose close() is under way: the kernel sends
// the RELEASE when the program has already gone on.
func (f *locker) heirsInTime(gone dirName, file *stat) ([]dirName, error) {
	for end := time.Now().Add(f.locks.CloseGrace()); ; time.Sleep(time.Millisecond) {
		heirs, err := f.heirs(gone, file)
		n := f.nodes.find(inodeOf(file))
		if err != unix.EBUSY || n == nil || time.Now().After(end) || slices.ContainsFunc(n.allHolds(), (*lockmgr.Hold).InUse) {
			return heirs, err
		}
	}
}

func (f *files) hasTwoNames(n *node, d dirName) bool {
	st, err := f.backing.statNow(d)
	return err == nil && inodeOf(&st) == n.inode && st.Nlink == 2 && hasMoreNames(&st.Stat_t)
}

// inherit gives a file's holds the lock of its heir. ESTALE: the heir has changed since.
func (f *files) inherit(l *nameLock, gone dirName, file *stat, heirs []dirName, locked []lockedName) fuse.Status {
	now, err := f.heirs(gone, file)
	if err != nil {
		return errno(err)
	}
	if len(now) > 0 && !slices.Equal(now, heirs) {
		return stale
	}
	n := f.nodes.find(inodeOf(file))
	for i, d := range heirs {
		if n != nil && f.isNamed(n, d) {
			n.share(l.hold, locked[i].key)
		}
	}
	return fuse.OK
}

// share gives a file's holds a lock that via has, and returns the holds that did not have it.
func (n *node) share(via *lockmgr.Hold, k lockmgr.Key) (widened []*lockmgr.Hold) {
	for _, h := range n.allHolds() {
		if h.Share(k, via) {
			widened = append(widened, h)
		}
	}
	return widened
}
