package fs

import (
	"errors"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// SetAttr takes the lock only to truncate, which changes bytes. in.Uid and in.Gid are the new owner.
func (f *FS) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	n := f.nodes.get(in.NodeId)
	if n == nil {
		return stale
	}
	if err := f.mayAlter(n); err != nil {
		return errno(err)
	}
	if size, ok := in.GetSize(); ok {
		if s := f.truncate(cancel, in, n, int64(size)); !s.Ok() {
			return s
		}
	}
	if err := f.setOwner(n, in); err != nil {
		return f.failed(n, err)
	}
	// After chown, which clears set-id bits that a chmod in this request sets.
	if mode, ok := in.GetMode(); ok {
		if err := f.setMode(n, &in.InHeader, mode); err != nil {
			return f.failed(n, err)
		}
	}
	if s := f.setTimes(cancel, in, n); !s.Ok() {
		return s
	}
	return f.replyAttr(n, out)
}

func (f *FS) setOwner(n *node, in *fuse.SetAttrIn) error {
	uid, gid := -1, -1
	if id, ok := in.GetUID(); ok {
		uid = int(id)
	}
	if id, ok := in.GetGID(); ok {
		gid = int(id)
	}
	nothing := uid < 0 && gid < 0
	if nothing && in.Valid&asked != 0 {
		return nil
	}
	// This clears set-id bits, also if it changes nothing else.
	err := f.with(n, func(fd int) error {
		return f.asExactly(&in.InHeader, 0, func() error { return unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH) })
	})
	if nothing && err == unix.EPERM {
		// A request that changes nothing comes from an owner's chown(-1, -1), or before a write.
		// Both clear the bits, and neither is refused.
		return nil
	}
	return err
}

func (f *FS) setMode(n *node, in *fuse.InHeader, mode uint32) error {
	return f.with(n, func(fd int) error {
		return f.asForMode(mode)(in, 0, func() error { return unix.Fchmodat(unix.AT_FDCWD, procPath(fd), mode, 0) })
	})
}

// asked are the flags that name a change. The other flags say how to make it.
const asked = fuse.FATTR_MODE | fuse.FATTR_UID | fuse.FATTR_GID | fuse.FATTR_SIZE | fuse.FATTR_ATIME | fuse.FATTR_MTIME |
	fuse.FATTR_ATIME_NOW | fuse.FATTR_MTIME_NOW | fuse.FATTR_CTIME

func (f *FS) setTimes(cancel <-chan struct{}, in *fuse.SetAttrIn, n *node) fuse.Status {
	const anyTime = fuse.FATTR_ATIME | fuse.FATTR_MTIME | fuse.FATTR_ATIME_NOW | fuse.FATTR_MTIME_NOW
	if in.Valid&anyTime == 0 {
		return fuse.OK
	}
	if in.Valid&fuse.FATTR_SIZE == 0 { // else the kernel writes nothing back before our answer
		if s := f.writeBack(cancel, &in.InHeader, n); !s.Ok() {
			return s
		}
	}
	times := []unix.Timespec{
		timeArg(in.Valid, fuse.FATTR_ATIME, fuse.FATTR_ATIME_NOW, in.Atime, in.Atimensec),
		timeArg(in.Valid, fuse.FATTR_MTIME, fuse.FATTR_MTIME_NOW, in.Mtime, in.Mtimensec),
	}
	return f.failed(n, f.with(n, func(fd int) error {
		return f.as(&in.InHeader, 0, func() error { return unix.UtimesNanoAt(fd, "", times, unix.AT_EMPTY_PATH) })
	}))
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

// writeBack makes the kernel write back a file's mappings: a later write would undo a time that is
// set. The WRITEs do not need the inode's kernel lock, which the caller has. They would wait while
// the session is suspended. So writeBack does not begin then, and ends if the caller is killed.
func (f *FS) writeBack(cancel <-chan struct{}, in *fuse.InHeader, n *node) fuse.Status {
	if n.mappable.Load() == 0 {
		return fuse.OK
	}
	for _, h := range n.allHolds() {
		if h.Check() != nil {
			return fuse.OK
		}
	}
	ctx, stop := f.killable(cancel, in.Pid)
	defer stop()
	var err error
	givenUp := f.gates.volume.outside(ctx, in, func() { err = f.gates.notices.notify(ctx, in, func() { f.dropPages(n) }) })
	return errno(errors.Join(givenUp, err))
}

// truncate sets a file's size under the lock of the request's handle, or else under its own.
func (f *FS) truncate(cancel <-chan struct{}, in *fuse.SetAttrIn, n *node, size int64) fuse.Status {
	kill := in.Valid&fuse.FATTR_KILL_SUIDGID != 0
	if fh, ok := in.GetFh(); ok {
		if h := f.handles.get(fh); h != nil && h.hold != nil {
			return f.change(cancel, &in.InHeader, h, func(check func() error) error {
				return f.clearing(n, h.fd, kill, &in.InHeader, checked(check, truncation(h.fd, size)))
			})
		}
	}
	v := f.visits.come(in.Pid, number(&in.InHeader), in.NodeId)
	s := f.truncateNamed(cancel, in, &v, n, size, kill)
	f.visits.leave(v, s)
	return s
}

// truncateNamed sends the kernel to look, once, if n has lost a name that may be meant.
func (f *FS) truncateNamed(cancel <-chan struct{}, in *fuse.SetAttrIn, v *visit, n *node, size int64, kill bool) fuse.Status {
	v.drop() // parked for an OPEN
	if v.stage != nameless {
		st, err := f.lastKnown(n)
		if err != nil {
			return errno(err)
		}
		if f.nodes.mayMeanAnother(n, &st) && f.meansAnother(v, n, &st.Stat_t) {
			return stale
		}
	}
	l, s := f.lockNode(cancel, &in.InHeader, n)
	if !s.Ok() {
		return s
	}
	defer l.release()
	fd, err := f.openAs(&in.InHeader, l.fd, unix.O_WRONLY)
	if err != nil {
		return errno(err)
	}
	defer unix.Close(fd)
	return whileHeld(l.hold, truncation(fd, size), func(truncate func() error) error {
		return f.clearing(n, fd, kill, &in.InHeader, truncate)
	})
}

func truncation(fd int, size int64) func() error {
	return func() error { return unix.Ftruncate(fd, size) }
}
