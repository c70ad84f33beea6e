package fs

import (
	"context"
	"errors"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// Read answers read and the filling of the page cache.
func (f *FS) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	h := f.handles.get(in.Fh)
	if h == nil || !h.enter() {
		return nil, ended
	}
	defer h.leave()
	n := 0
	s := f.reading(cancel, &in.InHeader, h, func() (err error) {
		h.filling()
		if h.maps && !h.caches {
			h.node.paged.Store(true) // before the read: see Write
		}
		if err := f.renew(h); err != nil {
			return err
		}
		n, err = ignoringEINTR(func() (int, error) { return unix.Pread(h.fd, buf[:min(len(buf), int(in.Size))], int64(in.Offset)) })
		return err
	})
	if !s.Ok() {
		return nil, s
	}
	if in.ReadFlags&fuse.READ_LOCKOWNER == 0 { // it fills pages
		h.node.overwrites.filled(buf[:n], int64(in.Offset))
	}
	// go-fuse writes a vector at once. For other results it sets up a pipe first.
	return fuse.ReadResultVector([][]byte{buf[:n]}), fuse.OK
}

// A shared lock must be good before and after the read: once it is lost, somebody may write.
func (f *FS) reading(cancel <-chan struct{}, in *fuse.InHeader, h *handle, read func() error) fuse.Status {
	if h.readable() != nil {
		if err := f.await(cancel, in, h); err != nil {
			return errno(err)
		}
	}
	if err := byDescriptor(read()); err != nil {
		return errno(err)
	}
	if h.readable() == nil {
		return fuse.OK
	}
	return errno(f.await(cancel, in, h))
}

// readable returns an error if the handle's shared or advisory locks are not good now.
func (h *handle) readable() error {
	if h.locks.Load() {
		return h.check()
	}
	if h.mode != lockmgr.Shared || h.hold == nil {
		return nil
	}
	return h.hold.Check()
}

// Write answers write and the write-back of mappings, which has no caller: the handle counts.
func (f *FS) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	if n, s, known := f.appended(cancel, in, data); known {
		return n, s
	}
	h := f.handles.get(in.Fh)
	if h == nil {
		return 0, ended
	}
	kill := in.WriteFlags&fuse.WRITE_KILL_SUIDGID != 0
	direct := !h.caches && in.WriteFlags&fuse.WRITE_CACHE == 0
	var under *overwrite
	defer func() { h.node.overwrites.end(under) }() // after uncache
	var written int
	s := f.change(cancel, &in.InHeader, h, func(check func() error) error {
		if direct && in.Flags&unix.O_APPEND == 0 && h.node.isMapped() {
			if err := check(); err != nil {
				return err
			}
			h.node.overwrites.end(under)
			under = h.node.overwrites.begin(h.fd, int64(in.Offset), data)
			defer func() { h.node.overwrites.cut(under, written) }()
		}
		how := wanted(in)
		if how&unix.RWF_APPEND != 0 {
			f.beginAppend(&in.InHeader, h)
		}
		return f.clearing(h.node, h.fd, kill, &in.InHeader, func() (err error) {
			if f.backing.isLocal(h.node.inode.dev) {
				written, err = h.write(in, data, how, check)
				return err
			}
			// Some FUSE clients ignore O_DSYNC in a WRITE that bypasses the page cache.
			const through = unix.RWF_DSYNC | unix.RWF_SYNC
			if written, err = h.write(in, data, how&^through, check); err == nil {
				err = h.send(how & through)
			}
			return err
		})
	})
	// The pages of a mapping come from the cache, by any handle.
	if direct && (h.node.cachers.Load() > 0 || h.node.paged.Load()) {
		f.uncache(cancel, in, h.node)
	}
	if !s.Ok() {
		return 0, s
	}
	h.node.wrote(int64(in.Offset) + int64(written))
	return uint32(written), fuse.OK
}

// uncache makes the kernel drop the cached pages of a direct write. Linux 6.6 drops them itself,
// but before the write: a reader can bring the old bytes back. Older ones compare times of change,
// and two writes in one clock tick have equal times.
func (f *FS) uncache(cancel <-chan struct{}, in *fuse.WriteIn, n *node) {
	off, size := int64(in.Offset), int64(in.Size)
	if in.Flags&unix.O_APPEND != 0 {
		size = 0 // to the end, perhaps behind the kernel's
	}
	ctx, stop := f.killable(cancel, in.Pid)
	defer stop()
	_ = f.gates.volume.mustOutside(ctx, &in.InHeader, func() { // a killed caller does not read
		_ = f.gates.notices.notify(ctx, &in.InHeader, func() { f.invalidate(n.id, off, size) })
	})
}

// After a direct write the kernel sends no FSYNC for O_SYNC and RWF_SYNC.
func wanted(in *fuse.WriteIn) (how int) {
	if in.WriteFlags&fuse.WRITE_CACHE != 0 {
		return 0 // no particular program's
	}
	if in.Flags&unix.O_APPEND != 0 {
		how |= unix.RWF_APPEND
	}
	return how | syncing(in.Flags)
}

// write appends at the file's own end, not at the kernel's.
func (h *handle) write(in *fuse.WriteIn, data []byte, how int, check func() error) (int, error) {
	if in.WriteFlags&fuse.WRITE_CACHE != 0 {
		return len(data), h.store(data, int64(in.Offset), check)
	}
	return eachChecked(check, func() (int, error) {
		if how == 0 {
			return unix.Pwrite(h.fd, data, int64(in.Offset))
		}
		return unix.Pwritev2(h.fd, [][]byte{data}, int64(in.Offset), how)
	})
}

// send syncs what was written, as RWF_ flags say.
func (h *handle) send(how int) error {
	switch {
	case how&unix.RWF_SYNC != 0:
		return byDescriptor(unix.Fsync(h.fd))
	case how&unix.RWF_DSYNC != 0:
		return byDescriptor(unix.Fdatasync(h.fd))
	}
	return nil
}

// The kernel ignores how much was written, so store writes all or fails.
func (h *handle) store(data []byte, off int64, check func() error) error {
	// In an append-only file pwrite would append the pages. A local kernel refuses the mapping.
	if flags, err := unix.FcntlInt(uintptr(h.fd), unix.F_GETFL, 0); err != nil || flags&unix.O_APPEND != 0 {
		h.misfilled()
		return unix.EPERM
	}
	h.node.stored.Store(true)
	h.node.overwrites.landing.RLock()
	defer h.node.overwrites.landing.RUnlock()
	h.node.overwrites.merge(data, off)
	for len(data) > 0 {
		n, err := eachChecked(check, func() (int, error) { return unix.Pwrite(h.fd, data, off) })
		if err != nil {
			return err
		}
		if n == 0 {
			return unix.EIO
		}
		data, off = data[n:], off+int64(n)
	}
	return nil
}

// change waits while the session is suspended, unless the caller is killed, and runs do. do calls
// check right before it changes anything, and returns check's error. If the session is suspended
// meanwhile, only the end of that says whether the lock was good throughout.
func (f *FS) change(cancel <-chan struct{}, in *fuse.InHeader, h *handle, do func(check func() error) error) fuse.Status {
	if h.hold == nil || h.mode == lockmgr.Shared {
		return fuse.EBADF
	}
	if !h.enter() {
		return ended
	}
	defer h.leave()
	var err error
	for again := true; again; {
		again = false
		if err = f.await(cancel, in, h); err != nil {
			break
		}
		err = h.hold.Change(func() error {
			err := byDescriptor(f.tracked(h, func() error {
				return do(func() error {
					err := h.check()
					again = errors.Is(err, lockmgr.ErrSuspended)
					return err
				})
			}))
			if err == nil {
				err = f.written(h)
			}
			return err
		})
	}
	if err == nil {
		err = f.awaitOutside(cancel, in, h, f.gates.volume.mustOutside) // it is made, so no lack of memory is told
	}
	return errno(err)
}

// checked makes a change if check finds its lock good. Nothing must come between the two: at any
// system call or mutex the daemon may be stopped, or the volume may hang, until another owner has
// the lock.
func checked(check, change func() error) func() error {
	return func() error {
		if err := check(); err != nil {
			return err
		}
		return change()
	}
}

// eachChecked makes a system call that changes something, and repeats it when a signal has
// interrupted it. Before each attempt, check must find the lock good.
func eachChecked(check func() error, call func() (int, error)) (int, error) {
	return ignoringEINTR(func() (int, error) {
		if err := check(); err != nil {
			return 0, err
		}
		return call()
	})
}

func (f *FS) await(cancel <-chan struct{}, in *fuse.InHeader, h *handle) error {
	return f.awaitOutside(cancel, in, h, f.gates.volume.outside)
}

func (f *FS) awaitOutside(cancel <-chan struct{}, in *fuse.InHeader, h *handle, outside func(context.Context, *fuse.InHeader, func()) error) error {
	err := h.check()
	if !errors.Is(err, lockmgr.ErrSuspended) {
		return err
	}
	ctx, stop := f.killable(cancel, in.Pid)
	defer stop()
	givenUp := outside(ctx, in, func() {
		for errors.Is(err, lockmgr.ErrSuspended) { // it may be again
			err = h.awaitLocks(ctx)
		}
	})
	if givenUp != nil {
		return givenUp
	}
	return err
}

// Fallocate answers fallocate and hole punching.
func (f *FS) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	h := f.handles.get(in.Fh)
	if h == nil {
		return ended
	}
	return f.change(cancel, &in.InHeader, h, func(check func() error) error {
		err := f.clearing(h.node, h.fd, true, &in.InHeader, func() error {
			_, err := eachChecked(check, func() (int, error) {
				return 0, unix.Fallocate(h.fd, in.Mode, int64(in.Offset), int64(in.Length))
			})
			return err
		})
		if err != nil {
			return err
		}
		return h.send(h.sync)
	})
}

// maxCopy bounds one copy, in bytes, so that it fits renew.WriteInFlight. The kernel asks again.
const maxCopy = 4 << 20

// CopyFileRange copies between two open files of the view.
func (f *FS) CopyFileRange(cancel <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	from, to := f.handles.get(in.FhIn), f.handles.get(in.FhOut)
	if from == nil || to == nil || !from.enter() {
		return 0, ended
	}
	defer from.leave()
	if to.node.isMapped() {
		// After the answer the kernel would drop the pages, with what mappings have stored since. So it
		// has to copy by read and write.
		return 0, fuse.Status(unix.EOPNOTSUPP)
	}
	var n int
	s := f.reading(cancel, &in.InHeader, from, func() error {
		// Before the change: it flushes the file, and a flush waits for changes.
		if err := f.renew(from); err != nil {
			return err
		}
		s := f.change(cancel, &in.InHeader, to, func(check func() error) error {
			err := f.clearing(to.node, to.fd, true, &in.InHeader, func() (err error) {
				if err := from.readable(); err != nil { // we may have waited for the other's lock
					return err
				}
				offIn, offOut := int64(in.OffIn), int64(in.OffOut)
				n, err = eachChecked(check, func() (int, error) {
					return unix.CopyFileRange(from.fd, &offIn, to.fd, &offOut, int(min(in.Len, maxCopy)), 0)
				})
				return err
			})
			if err != nil {
				return err
			}
			return to.send(to.sync)
		})
		if !s.Ok() {
			return unix.Errno(s)
		}
		return nil
	})
	if !s.Ok() {
		return 0, s
	}
	to.node.wrote(int64(in.OffOut) + int64(n))
	return uint32(n), fuse.OK
}

// Lseek answers SEEK_DATA and SEEK_HOLE; the kernel does the others.
func (f *FS) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	h := f.handles.get(in.Fh)
	if h == nil || !h.enter() {
		return ended
	}
	defer h.leave()
	// What mappings have stored is data, and the backing does not know of it.
	if s := f.writeBack(cancel, &in.InHeader, h.node); !s.Ok() {
		return s
	}
	return f.reading(cancel, &in.InHeader, h, func() error {
		off, err := unix.Seek(h.fd, int64(in.Offset), int(in.Whence))
		out.Offset = uint64(off)
		return err
	})
}
