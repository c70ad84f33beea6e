package fs

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// Unlink removes a file's name, under the lock of that name.
func (f *FS) Unlink(cancel <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	dir := f.nodes.get(in.NodeId)
	if dir == nil {
		return stale
	}
	if s, known := f.repeat(in, nil); known {
		return s
	}
	return whileOvertaken(func() (fuse.Status, bool) { return f.unlink(cancel, in, dirName{dir, name}) })
}

func (f *FS) unlink(cancel <-chan struct{}, in *fuse.InHeader, gone dirName) (s fuse.Status, overtaken bool) {
	st, err := f.glance(gone)
	if err != nil {
		return errno(err), false
	}
	heirs, err := f.heirsInTime(gone, &st)
	if err != nil {
		return errno(err), false
	}
	l, s := f.lockNames(cancel, in, lockmgr.File, append([]dirName{gone}, heirs...)...)
	if !s.Ok() {
		return s, false
	}
	defer l.release()
	if st, err = l.found[0].st, l.found[0].err; err != nil {
		return errno(err), false
	}
	change := fate{file: f.nodes.find(inodeOf(&st)), loses: &l.names[0]}
	defer freezeNames(change)()
	if s := f.inherit(l, gone, &st, heirs, l.names[1:]); !s.Ok() {
		return s, s == stale
	}
	f.calls.begin(in, l.hold, callRecord{What: removing, From: l.names[0].called(), Src: inodeOf(&st).state()})
	unlink := func() error { return unix.Unlinkat(gone.dir.fd, gone.name, 0) }
	return f.whileLocked(in, f.changeNames(in, l, unlink, change)), false
}

// whileOvertaken repeats a call itself: after ESTALE the kernel would too, but only once in a
// system call.
func whileOvertaken(call func() (s fuse.Status, overtaken bool)) fuse.Status {
	for range mendTries {
		if s, overtaken := call(); !overtaken {
			return s
		}
	}
	return stale
}

// Rmdir removes a directory while nobody has a file below it open for write.
func (f *FS) Rmdir(cancel <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	dir := f.nodes.get(in.NodeId)
	if dir == nil {
		return stale
	}
	if s, known := f.repeat(in, nil); known {
		return s
	}
	if hasEntries(dir, name) {
		return notEmpty(dirName{dir, name}) // also if somebody has a lock below
	}
	l, s := f.lockNames(cancel, in, lockmgr.Tree, dirName{dir, name})
	if !s.Ok() {
		return s
	}
	defer l.release()
	if l.found[0].err == nil {
		f.calls.begin(in, l.hold, callRecord{What: removing, From: l.names[0].called(), Src: inodeOf(&l.found[0].st).state()})
	}
	return f.whileLocked(in, f.whileHeldAs(in, l.hold, func() error { return unix.Unlinkat(dir.fd, name, unix.AT_REMOVEDIR) }))
}

// whileLocked records the answer to a call whose locks are not released yet. If the process died after
// the release and before the answer is recorded, nobody could tell whether the call was made: EIO.
func (f *FS) whileLocked(in *fuse.InHeader, s fuse.Status) fuse.Status {
	f.calls.answer(in, s, 0)
	return s
}

// Link gives a file one more name, under the locks of both.
func (f *FS) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	dir, n := f.nodes.get(in.NodeId), f.nodes.get(in.Oldnodeid)
	if dir == nil || n == nil {
		return stale
	}
	if s, known := f.repeat(&in.InHeader, out); known {
		return s
	}
	v := f.visits.comeToLink(in.Pid, number(&in.InHeader), in.Oldnodeid, dirName{dir, name})
	s := f.link(cancel, in, &v, dirName{dir, name}, n, out)
	f.visits.leave(v, s)
	return s
}

// link sends the kernel to look, once, if n has lost a name that the kernel may mean. A call by
// descriptor does not look, and links its file wherever it is.
func (f *FS) link(cancel <-chan struct{}, in *fuse.LinkIn, v *visit, to dirName, n *node, out *fuse.EntryOut) fuse.Status {
	var st unix.Stat_t
	if err := f.with(n, func(fd int) error { return fstat(fd, &st) }); err != nil {
		return f.failed(n, err)
	}
	if f.meansAnother(v, n, &st) && v.stage != nameless {
		v.meant = f.nodes.mayBeMeant(n)
		return stale
	}
	if err := f.fits(to); err != nil {
		return errno(err)
	}
	named := st.Nlink > 0 // else it was removed, or made by O_TMPFILE
	names := []dirName{to}
	if named {
		old, ok := f.trueName(f.nodes.newest(n))
		if !ok && v.stage == nameless {
			return fuse.EBUSY // its name is unknown, so it cannot be locked
		}
		if !ok {
			return stale
		}
		if !old.is(to) {
			names = append(names, old)
		}
	}
	l, s := f.lockNamesAnd(cancel, &in.InHeader, lockmgr.File, n, names)
	if !s.Ok() {
		return s
	}
	defer l.release()
	if named {
		old := l.names[len(names)-1]
		if err := f.mayMove(lockmgr.File, 0, old, l.names[0]); err != nil {
			return errno(err)
		}
		if !f.isNamed(n, old.dirName) {
			return stale // n has another name by now, whose holder may write to it
		}
	}
	free, err := spare(to.dir)
	if err != nil {
		return errno(err)
	}
	defer free()
	change := fate{file: f.nodes.find(n.inode), gets: &l.names[0]} // n may be retired, after a lost lock
	defer freezeNames(change)()
	if change.file != nil {
		for _, k := range toLock(l.names[1:], l.links) {
			change.file.share(l.hold, k)
		}
	}
	if l.found[0].err == unix.ENOENT {
		f.calls.begin(&in.InHeader, l.hold, callRecord{What: linking, To: l.names[0].called(), Src: n.inode.state()})
	}
	err = f.with(n, func(fd int) error {
		file := procPath(fd)
		s = f.changeNames(&in.InHeader, l, func() error {
			return unix.Linkat(unix.AT_FDCWD, file, to.dir.fd, to.name, unix.AT_SYMLINK_FOLLOW)
		}, change)
		return nil
	})
	if err != nil {
		return errno(err)
	}
	if s == fuse.ENOENT && f.isGone(n) {
		return stale // n itself was missing
	}
	if f.whileLocked(&in.InHeader, s); !s.Ok() {
		return s
	}
	free()
	return f.enter(to.dir, to.name, out)
}

// meansAnother reports whether the kernel may name n by a name that n has lost, and forgets those.
func (f *files) meansAnother(v *visit, n *node, st *unix.Stat_t) bool {
	lost := f.nodes.isFormer(n) || st.Nlink > 0 && f.lostName(n) || st.Nlink == 0 && f.replaced(n)
	foundAs := v.as.dir != nil && f.isNamed(n, v.as) // then it may have lost others
	return lost && !foundAs
}
