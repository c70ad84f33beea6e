package fs

import (
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// cacheTimeout is how long the kernel may use an attribute or a name without
// asking: a chmod on another node is enforced within it.
const cacheTimeout = time.Second

func setAttr(out *fuse.Attr, st *unix.Stat_t) {
	*out = fuse.Attr{
		Ino:       st.Ino,
		Size:      uint64(st.Size),
		Blocks:    uint64(st.Blocks),
		Atime:     uint64(st.Atim.Sec),
		Mtime:     uint64(st.Mtim.Sec),
		Ctime:     uint64(st.Ctim.Sec),
		Atimensec: uint32(st.Atim.Nsec),
		Mtimensec: uint32(st.Mtim.Nsec),
		Ctimensec: uint32(st.Ctim.Nsec),
		Mode:      st.Mode,
		Nlink:     uint32(st.Nlink),
		Owner:     fuse.Owner{Uid: st.Uid, Gid: st.Gid},
		Rdev:      uint32(st.Rdev),
		Blksize:   uint32(st.Blksize),
	}
}

// GetAttr answers fstat and stat.
func (f *FS) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	n := f.nodes.get(in.NodeId)
	if n == nil {
		return stale
	}
	return f.replyAttr(n, out)
}

func (f *FS) replyAttr(n *node, out *fuse.AttrOut) fuse.Status {
	var st unix.Stat_t
	if err := unix.Fstat(n.fd, &st); err != nil {
		return errno(err)
	}
	n.tell(&st)
	setAttr(&out.Attr, &st)
	out.SetTimeout(cacheTimeout)
	return fuse.OK
}

// SetAttr answers chmod, chown, utimes and truncate. Of these only truncate
// changes the file's bytes, and takes its lock.
func (f *FS) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	n := f.nodes.get(in.NodeId)
	if n == nil {
		return stale
	}
	if size, ok := in.GetSize(); ok {
		if s := f.truncate(cancel, in, n, int64(size)); !s.Ok() {
			return s
		}
	}
	path := procPath(n.fd)
	uid, setUID := in.GetUID()
	gid, setGID := in.GetGID()
	if setUID || setGID {
		u, g := -1, -1
		if setUID {
			u = int(uid)
		}
		if setGID {
			g = int(gid)
		}
		if err := unix.Fchownat(n.fd, "", u, g, unix.AT_EMPTY_PATH); err != nil {
			return errno(err)
		}
	}
	// After chown, which clears the set-id bits that a chmod in the same request sets.
	if mode, ok := in.GetMode(); ok {
		if err := unix.Fchmodat(unix.AT_FDCWD, path, mode, 0); err != nil {
			return errno(err)
		}
	}
	if in.Valid&(fuse.FATTR_ATIME|fuse.FATTR_MTIME|fuse.FATTR_ATIME_NOW|fuse.FATTR_MTIME_NOW) != 0 {
		times := []unix.Timespec{
			timeArg(in.Valid, fuse.FATTR_ATIME, fuse.FATTR_ATIME_NOW, in.Atime, in.Atimensec),
			timeArg(in.Valid, fuse.FATTR_MTIME, fuse.FATTR_MTIME_NOW, in.Mtime, in.Mtimensec),
		}
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, times, 0); err != nil {
			return errno(err)
		}
	}
	return f.replyAttr(n, out)
}

func timeArg(valid, set, now uint32, sec uint64, nsec uint32) unix.Timespec {
	switch {
	case valid&now != 0:
		return unix.Timespec{Nsec: unix.UTIME_NOW}
	case valid&set != 0:
		return unix.Timespec{Sec: int64(sec), Nsec: int64(nsec)}
	}
	return unix.Timespec{Nsec: unix.UTIME_OMIT}
}

// truncate sets a file's size under its lock: that of the handle, if the
// request has one that can write, else one for the call.
func (f *FS) truncate(cancel <-chan struct{}, in *fuse.SetAttrIn, n *node, size int64) fuse.Status {
	kill := in.Valid&fuse.FATTR_KILL_SUIDGID != 0
	if fh, ok := in.GetFh(); ok {
		if h := f.handles.get(fh); h != nil && h.hold != nil {
			return f.change(cancel, in.Pid, h, func() error { return truncateFile(h.fd, size, kill, &in.InHeader) })
		}
	}
	l, s := f.lockNode(cancel, &in.InHeader, n)
	if !s.Ok() {
		return s
	}
	defer l.release()
	fd, err := reopen(l.fd, unix.O_WRONLY)
	if err != nil {
		return errno(err)
	}
	defer unix.Close(fd)
	return f.guarded(l.hold, func() error { return truncateFile(fd, size, kill, &in.InHeader) })
}
