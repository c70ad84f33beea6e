package fs

import (
	"errors"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/advisory"
)

// Flush answers each close(). It returns EIO if the lock was lost, and errors of earlier writes. It
// ignores interrupts, because the FLUSH of a killed program is interrupted from the start.
func (f *FS) Flush(_ <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	h := f.handles.get(in.Fh)
	if h == nil || !h.enter() {
		return ended
	}
	defer h.leave()
	if b := f.calls.again(&in.InHeader); b != nil && b.Answered {
		return fuse.Status(b.Status)
	}
	s := f.flushHandle(in, h)
	f.tellOnce(&in.InHeader, s)
	if f.advisory != nil {
		if err := f.unlockAll(&in.InHeader, h, f.advisory.Owner(advisory.Posix, in.LockOwner)); err != nil && s.Ok() {
			s = errno(err)
		}
	}
	return s
}

func (f *FS) flushHandle(in *fuse.FlushIn, h *handle) fuse.Status {
	if h.hold == nil {
		return fuse.OK
	}
	h.hold.Closing()
	if h.mode == lockmgr.Shared {
		return fuse.OK
	}
	if f.gates.closing.enter(&in.InHeader, guest{}, atOnce, nil) != nil {
		return fuse.OK // the program has ended; RELEASE flushes before the lock is released
	}
	defer f.gates.closing.leave(in.Unique)
	err := h.flush()
	if !f.backing.isLocal(h.node.inode.dev) {
		err = errors.Join(err, h.closeDuplicate())
	}
	// The next fsync repeats the error: this close may be a child's exit, which tells nobody.
	err = errors.Join(h.unflushed.owed(), err)
	if f.backing.isLocal(h.node.inode.dev) {
		var st unix.Stat_t
		if unix.Fstat(h.fd, &st) == nil {
			h.node.noteOwnWrites(&st)
		}
	}
	if h.isLost() {
		return fuse.EIO
	}
	return errno(err)
}

// closeDuplicate makes a network client write back an open file, and report errors.
func (h *handle) closeDuplicate() error {
	dup, err := unix.FcntlInt(uintptr(h.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil { // out of descriptors
		return h.fdatasync()
	}
	return byDescriptor(unix.Close(dup))
}

// Fsync answers fsync and fdatasync.
func (f *FS) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	h := f.handles.get(in.Fh)
	if h == nil || !h.enter() {
		return ended
	}
	defer h.leave()
	if h.hold != nil && h.isLost() {
		return fuse.EIO
	}
	if b := f.calls.again(&in.InHeader); b != nil && b.Answered {
		return fuse.Status(b.Status)
	}
	sync := unix.Fsync
	if in.FsyncFlags&fsyncDataOnly != 0 {
		sync = unix.Fdatasync
	}
	err := byDescriptor(sync(h.fd))
	s := errno(errors.Join(h.unflushed.unreported(), err))
	f.tellOnce(&in.InHeader, s)
	if !s.Ok() {
		h.note()
	}
	return s
}

// tellOnce records an error that the kernel has told the daemon, and tells nobody again.
func (f *FS) tellOnce(in *fuse.InHeader, s fuse.Status) {
	if !s.Ok() {
		f.calls.begin(in, nil, callRecord{What: telling})
	}
}

const fsyncDataOnly = 1 // FUSE_FSYNC_FDATASYNC

// Release ends an open file. The lock is released after the last request that uses the handle.
func (f *FS) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	if h := f.handles.get(in.Fh); h != nil && h.node.advisory.Load() != nil {
		f.flushClosed(&in.InHeader, h)
	}
	if h := f.handles.remove(in.Fh); h != nil {
		f.unlockClosed(&in.InHeader, h)
		defer f.gates.closing.closes(&in.InHeader)()
		h.leave()
	}
}
