package fs

import (
	"slices"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// An OPEN does not say by which name the program means the file, and that name may be another
// file's by now. ESTALE makes the kernel look the name up again, but only once in each system call.
// So the view first takes the locks of all names that may be meant, so that they cannot change
// until the kernel comes back (ADR 0013).

// meant returns the names by which an open of n may come now, and whether all of them are
// n's. There are none if the open comes by a descriptor, or if the directory has just moved: see
// sendWithPaths.
func (f *files) meant(n *node) (names []dirName, own bool) {
	if f.nodes.dirJustMoved(n) {
		return nil, false
	}
	names = f.nodes.believed(n)
	if slices.ContainsFunc(names, func(d dirName) bool { return !f.isNamed(n, d) }) {
		return names, false
	}
	for _, d := range f.nodes.names(n) { // an open that was slow to arrive may mean one of these
		if !slices.ContainsFunc(names, d.is) && f.isNamed(n, d) {
			names = append(names, d)
		}
	}
	return names, true
}

// sendToLook takes the locks of the names that may be meant, and answers ESTALE: see visits.
func (o *opening) sendToLook(cancel <-chan struct{}) fuse.Status {
	o.sends = true
	names, own := o.fs.meant(o.node)
	switch {
	case o.in.Flags&unix.O_NONBLOCK != 0:
		return stale
	case len(names) == 0:
		return o.sendWithPaths(cancel)
	}
	return o.sendWith(cancel, names, own)
}

// sendWithPaths is sendWith for a file below a directory that has just moved: for the paths by
// which the kernel may know it.
func (o *opening) sendWithPaths(cancel <-chan struct{}) fuse.Status {
	var keys []lockmgr.Key
	for _, path := range o.fs.nodes.pathsMeant(o.node) {
		key, err := lockmgr.FileKey(path)
		if o.rule = o.fs.rule(path); err != nil || o.rule.readOnly() {
			return stale
		}
		if o.rule.locked() {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return stale
	}
	return o.parkMeant(o.lock(cancel, keys[0], []inode{o.node.inode}, bounded(o.rule.wait, o.fs.nameWait), keys))
}

// parkMeant parks the locks of what an open may mean, if it has got them, and answers ESTALE.
func (o *opening) parkMeant(hold *lockmgr.Hold, s fuse.Status) fuse.Status {
	switch {
	case s.Ok():
		o.visit.hold, o.visit.mode = hold, o.mode
	case s == fuse.EINTR, s == handedOn:
		return s
	}
	return stale
}

// bounded is a wait that is no longer than limit, unless that is negative.
func bounded(wait, limit time.Duration) time.Duration {
	if limit >= 0 && (wait < 0 || wait > limit) {
		return limit
	}
	return wait
}

// sendWith waits for the locks of names, parks them, and answers ESTALE. own: all names are
// the file's. If not,
//   - it waits for several names no longer than a call that tries: the program may mean a
//     name that nobody holds;
//   - it answers ESTALE even without the locks: the program may have come by a descriptor,
//     which shows when it comes again.
func (o *opening) sendWith(cancel <-chan struct{}, names []dirName, own bool) fuse.Status {
	o.sends = true
	limit := time.Duration(-1)
	if !own && len(names) > 1 {
		limit = o.fs.nameWait
	}
	hold, s := o.lockMeant(cancel, names, limit)
	if own && !s.Ok() {
		return s
	}
	return o.parkMeant(hold, s)
}

// lockMeant takes the locks of names, and of the files that have them, in one request. It
// waits as long as an open of the first name, and no longer than limit unless that is
// negative.
func (o *opening) lockMeant(cancel <-chan struct{}, names []dirName, limit time.Duration) (*lockmgr.Hold, fuse.Status) {
	f := o.fs
	for range mendTries {
		meant := make([]lockedName, len(names))
		files := []inode{o.node.inode}
		for i, d := range names {
			path, err := f.nodes.pathIn(d.dir, d.name)
			if err != nil {
				return nil, errno(err)
			}
			meant[i], err = f.at(d, path, lockmgr.File)
			if o.mode == lockmgr.Exclusive && meant[i].rule.readOnly() {
				return nil, stale // no lock is taken for what is refused
			}
			if err != nil {
				return nil, errno(err)
			}
			if st, err := f.lookNow(d); err == nil && !slices.Contains(files, inodeOf(&st)) {
				files = append(files, inodeOf(&st))
			}
		}
		links, err := f.linkKeys(meant, nil, f.glance)
		if err != nil {
			return nil, errno(err)
		}
		wanted := toLock(meant, links)
		if len(wanted) == 0 {
			return nil, stale
		}
		o.rule = meant[0].rule
		hold, s := o.lock(cancel, meant[0].key, files, bounded(o.rule.wait, limit), wanted)
		if !s.Ok() {
			return nil, s
		}
		// While we waited the names may have become those of other files.
		if links, err = f.linkKeys(meant, nil, f.lookNow); err == nil && covers(hold, links) {
			return hold, fuse.OK
		}
		hold.Release()
	}
	return nil, stale
}
