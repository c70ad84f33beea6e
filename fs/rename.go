package fs

import (
	"slices"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// Rename locks both names. A directory moves while nobody has a file below it open for write.
func (f *FS) Rename(cancel <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	oldDir, newDir := f.nodes.get(in.NodeId), f.nodes.get(in.Newdir)
	if oldDir == nil || newDir == nil {
		return stale
	}
	from, to := dirName{oldDir, oldName}, dirName{newDir, newName}
	if from.is(to) { // the kernel's two lookups of one name found two files
		return fuse.OK
	}
	if s, known := f.repeat(&in.InHeader, nil); known {
		return s
	}
	return whileOvertaken(func() (fuse.Status, bool) {
		kind := kindOf(f.glanceAt(from), f.glanceAt(to)) // a guess
		if in.Flags&unix.RENAME_EXCHANGE != 0 {
			return f.exchange(cancel, in, kind, from, to)
		}
		if err := f.fits(to); err != nil {
			return errno(err), false
		}
		if kind == lockmgr.Tree {
			return f.renameDirectory(cancel, in, from, to)
		}
		return f.renameFile(cancel, in, from, to)
	})
}

// renameFile renames a file. overtaken: it took other locks than it needs.
func (f *FS) renameFile(cancel <-chan struct{}, in *fuse.RenameIn, from, to dirName) (s fuse.Status, overtaken bool) {
	var heirs []dirName
	if st, err := f.glance(to); err == nil {
		if heirs, err = f.heirsInTime(to, &st); err != nil {
			return errno(err), false
		}
		heirs = slices.DeleteFunc(heirs, from.is)
	}
	l, s, overtaken := f.lockRename(cancel, in, lockmgr.File, from, to, heirs...)
	if !s.Ok() {
		return s, overtaken
	}
	defer l.release()
	fates := f.renameFates(l)
	defer freezeNames(fates...)()
	if replaces := len(fates) > 1; replaces {
		if s := f.inherit(l, to, &l.found[1].st, heirs, l.names[2:]); !s.Ok() {
			return s, s == stale
		}
	}
	return f.whileLocked(&in.InHeader, f.moveNames(in, l, fates)), false
}

// renameDirectory renames a directory. overtaken: it took other locks than it needs.
func (f *FS) renameDirectory(cancel <-chan struct{}, in *fuse.RenameIn, from, to dirName) (s fuse.Status, overtaken bool) {
	if in.Flags&unix.RENAME_NOREPLACE == 0 && hasEntries(to.dir, to.name) {
		// A directory gets ENOTEMPTY, even if somebody has a lock below. A file gets another error
		// later.
		st, err := f.lookNow(from)
		if err != nil {
			return errno(err), false
		}
		if isDir(&st) {
			return notEmpty(from, to), false
		}
	}
	l, s, overtaken := f.lockRename(cancel, in, lockmgr.Tree, from, to)
	if !s.Ok() {
		return s, overtaken
	}
	defer l.release()
	fates := f.renameFates(l)
	defer freezeNames(fates...)()
	return f.whileLocked(&in.InHeader, f.moveNames(in, l, fates)), false
}

func (f *FS) exchange(cancel <-chan struct{}, in *fuse.RenameIn, kind lockmgr.Kind, from, to dirName) (s fuse.Status, overtaken bool) {
	l, s, overtaken := f.lockRename(cancel, in, kind, from, to)
	if !s.Ok() {
		return s, overtaken
	}
	defer l.release()
	fates := f.renameFates(l)
	if len(fates) > 1 {
		fates[1].gets = &l.names[0]
	}
	defer freezeNames(fates...)()
	return f.whileLocked(&in.InHeader, f.moveNames(in, l, fates)), false
}

// lockRename locks the names of a rename, and more. overtaken: they are of another kind.
func (f *locker) lockRename(cancel <-chan struct{}, in *fuse.RenameIn, kind lockmgr.Kind, from, to dirName, more ...dirName) (l *nameLock, s fuse.Status, overtaken bool) {
	l, s = f.lockNames(cancel, &in.InHeader, kind, append([]dirName{from, to}, more...)...)
	if !s.Ok() {
		return nil, s, false
	}
	src, dst := l.found[0], l.found[1]
	switch {
	case src.err != nil:
		s = errno(src.err)
	case dst.err != nil && dst.err != unix.ENOENT:
		s = errno(dst.err)
	case kind != kindOf(src, dst):
		s, overtaken = stale, true // a directory took a file's place, or the other way round
	default:
		s = errno(f.mayMove(kind, in.Flags, l.names[0], l.names[1]))
	}
	if !s.Ok() {
		l.release()
		return nil, s, overtaken
	}
	return l, fuse.OK, false
}

// renameFates: none if both names are one file's, because nothing changes.
func (f *files) renameFates(l *nameLock) []fate {
	src, dst := &l.found[0].st, &l.found[1].st
	moved := fate{file: f.nodes.find(inodeOf(src)), loses: &l.names[0], gets: &l.names[1]}
	if l.found[1].err != nil {
		return []fate{moved}
	}
	if inodeOf(src) == inodeOf(dst) {
		return nil
	}
	replaced := fate{file: f.nodes.find(inodeOf(dst)), loses: &l.names[1]}
	// Equal numbers, other handles: perhaps one file, and nothing changed.
	moved.unsure = src.Dev == dst.Dev && src.Ino == dst.Ino
	replaced.unsure = moved.unsure
	return []fate{moved, replaced}
}

func (f *FS) moveNames(in *fuse.RenameIn, l *nameLock, fates []fate) fuse.Status {
	from, to := l.names[0].dirName, l.names[1].dirName
	replaced := l.found[1:2]
	if in.Flags&unix.RENAME_EXCHANGE != 0 {
		replaced = l.found[:2]
	}
	if len(fates) > 1 && slices.ContainsFunc(replaced, func(was finding) bool { return f.lostBy(l.hold.Owner(), inodeOf(&was.st)) }) {
		return fuse.EIO // what the next owner has written would lose its name
	}
	if len(fates) > 0 && !fates[0].unsure {
		what := moving
		if in.Flags&unix.RENAME_EXCHANGE != 0 {
			what = exchanging
		}
		r := callRecord{What: what, From: l.names[0].called(), To: l.names[1].called(), Src: inodeOf(&l.found[0].st).state()}
		if l.found[1].err == nil {
			r.Dst = inodeOf(&l.found[1].st).state()
		}
		f.calls.begin(&in.InHeader, l.hold, r)
	}
	f.glimpses.forget(from)
	f.glimpses.forget(to)
	return f.changeNames(&in.InHeader, l, func() error {
		err := unix.Renameat2(from.dir.fd, from.name, to.dir.fd, to.name, uint(in.Flags))
		if err == nil && in.Flags&unix.RENAME_EXCHANGE == 0 {
			f.seen(to, &l.found[0].st, nil)
		}
		return err
	}, fates...)
}

// lostBy reports whether an owner has a file open for write, and has lost its locks of it. Since the
// loss the file has another node.
func (o *openFiles) lostBy(owner lockmgr.Owner, i inode) bool {
	lost, stands := false, false
	o.handles.each(func(h *handle) {
		if h.hold != nil && !h.hold.Unlocked() && h.hold.Owner() == owner && h.node.inode == i {
			lost, stands = lost || h.hold.Lost(), stands || !h.hold.Lost()
		}
	})
	return lost && !stands
}

// kindOf says how two names are locked for a rename: as trees if either is a directory.
func kindOf(names ...finding) lockmgr.Kind {
	for _, n := range names {
		if n.err == nil && isDir(&n.st) {
			return lockmgr.Tree
		}
	}
	return lockmgr.File
}

func isDir(st *stat) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }
