package fs

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/advisory"
	"github.com/lockfs/lockfs/policy"
)

// A file's advisory locks are kept by inode, under the key that its hard links share. While the
// mount has any there, writes by every handle of the file depend on their session, because a WRITE
// does not name its process reliably. When they are lost, the handles that are open return EIO for
// ever.
//
// The kernel tells of the end of a lock in three ways. A range of a process ends with FLUSH, which
// has its owner. A flock, and a range of an open file, end with RELEASE, which comes late: by then
// a process may have locked again by another handle, and the kernel may have reused the open file's
// number. So a flock's owner is its handle, and FLUSH takes the process off its handle.

// lockers are the owners that have locked by a handle.
type lockers struct {
	mu     sync.Mutex
	table  *lockmgr.AdvisoryTable // GUARDED_BY(mu); nil: there are none
	owners []advisory.Owner       // GUARDED_BY(held.lockersMu), which comes after mu
	closed bool                   // GUARDED_BY(mu); RELEASE came

	waits map[*context.CancelFunc]struct{} // GUARDED_BY(mu); of requests that wait
}

// untilLost ends a wait when the handle is lost: it could only get a lock of a file that returns EIO.
func (h *handle) untilLost(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	l := &h.lockers
	l.mu.Lock()
	if l.waits == nil {
		l.waits = make(map[*context.CancelFunc]struct{})
	}
	l.waits[&cancel] = struct{}{}
	l.mu.Unlock()
	if h.lost.Load() { // since before endWaits could know of it
		cancel()
	}
	return ctx, func() {
		cancel()
		l.mu.Lock()
		delete(l.waits, &cancel)
		l.mu.Unlock()
	}
}

// endWaits ends the waits of a handle that is lost.
func (h *handle) endWaits() {
	h.lockers.mu.Lock()
	defer h.lockers.mu.Unlock()
	for cancel := range h.lockers.waits {
		(*cancel)()
	}
}

// GetLk answers F_GETLK.
func (f *FS) GetLk(cancel <-chan struct{}, in *fuse.LkIn, out *fuse.LkOut) fuse.Status {
	h := f.handles.get(in.Fh)
	if h == nil || !h.enter() {
		return ended
	}
	defer h.leave()
	t, err := f.advisoryTable(h)
	if err != nil {
		return errno(err)
	}
	ctx, stop := f.killable(cancel, in.Pid)
	defer stop()
	var by advisory.Lock
	found := false
	givenUp := f.gates.volume.outside(ctx, &in.InHeader, func() { by, found, err = t.Test(ctx, f.advisoryLock(in)) })
	switch {
	case givenUp != nil || err != nil:
		return errno(errors.Join(givenUp, err))
	case !found:
		out.Lk = in.Lk
		out.Lk.Typ = unix.F_UNLCK
		return fuse.OK
	}
	out.Lk = fuse.FileLock{Start: by.Start, End: by.End, Typ: unix.F_RDLCK}
	if by.Exclusive {
		out.Lk.Typ = unix.F_WRLCK
	}
	if f.advisory.Mine(by.Owner) {
		out.Lk.Pid = uint32(by.PID)
	}
	return fuse.OK
}

// SetLk answers F_SETLK, and flock with LOCK_NB or LOCK_UN.
func (f *FS) SetLk(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	ctx, stop := f.killable(cancel, in.Pid)
	defer stop()
	return f.setLock(ctx, cancel, in, false, nil)
}

// SetLkw answers F_SETLKW and flock. The request arrives without a kernel lock, and may wait. Any
// signal ends the wait.
func (f *FS) SetLkw(cancel <-chan struct{}, in *fuse.LkIn) (s fuse.Status) {
	if in.Lk.Typ == unix.F_UNLCK {
		return f.SetLk(cancel, in)
	}
	again := f.kernel.resumed(in.Unique)
	if again != nil {
		defer func() {
			again.arrive()
			if s != handedOn {
				f.locks.Forsake(again.resume)
			}
		}()
	}
	ctx, stop := f.interrupted(cancel, in.Pid, killPoll)
	defer stop()
	return f.setLock(ctx, cancel, in, true, again)
}

// setLock answers SETLK and SETLKW. again is what was handed on with it; nil: it is new.
func (f *FS) setLock(ctx context.Context, cancel <-chan struct{}, in *fuse.LkIn, wait bool, again *waiting) fuse.Status {
	h := f.handles.get(in.Fh)
	if h == nil || !h.enter() {
		return ended
	}
	defer h.leave()
	t, err := f.advisoryTable(h)
	if err != nil {
		return errno(err)
	}
	l := f.advisoryLock(in)
	if in.Lk.Typ == unix.F_UNLCK {
		if !t.Has(l.Owner) {
			return fuse.OK
		}
		if h.node.mappable.Load() > 0 && !t.Local() { // what mappings have dirtied is written under the lock
			if givenUp := f.gates.volume.outside(ctx, &in.InHeader, func() { err = f.gates.notices.notify(ctx, &in.InHeader, func() { f.dropPages(h.node) }) }); givenUp != nil {
				_ = t.Unlock(ctx.Done(), l.Owner, l.Start, l.End)
				return fuse.OK // its caller is being killed
			}
		}
		if !t.Local() && t.Private() == 0 {
			err = errors.Join(err, f.flushFile(h))
		}
		if givenUp := f.gates.volume.outside(ctx, &in.InHeader, func() { err = errors.Join(err, t.Unlock(ctx.Done(), l.Owner, l.Start, l.End)) }); givenUp != nil {
			return fuse.OK // it is unlocked
		}
		return errno(err)
	}
	h.locks.Store(true)
	h.addLocker(l.Owner)
	if wait {
		var stop func()
		ctx, stop = h.untilLost(ctx)
		defer stop()
	}
	// A signal ends the wait. What is granted is told: after EINTR a program has what it had before.
	granted, stop := f.killable(cancel, in.Pid)
	defer stop()
	had := false
	lock := func() { had, err = t.Lock(ctx, l, wait) }
	if again != nil {
		lock = func() { had, err = t.LockAgain(ctx, l, again.resume, again.arrive) }
	}
	givenUp := f.gates.volume.outside(granted, &in.InHeader, lock)
	for on := new(lockmgr.HandedOnError); errors.As(err, &on); {
		if !wait || f.kernel.handOn(&in.InHeader, &waiting{request: raw(in), resume: on.Resume}, cancel) {
			return handedOn
		}
		givenUp = f.gates.volume.outside(granted, &in.InHeader, func() { had, err = t.LockAgain(ctx, l, on.Resume, func() {}) })
	}
	switch {
	case errors.Is(err, lockmgr.ErrContended):
		return fuse.EAGAIN
	case err != nil && wait && h.lost.Load():
		return errno(lockmgr.ErrLockLost)
	case err != nil:
		return f.refused(&in.InHeader, t.Key(), err, fuse.EAGAIN)
	case givenUp == nil:
		h.addLocker(l.Owner) // a FLUSH that came before the grant has taken it off
		givenUp = f.catchUp(granted, in, h)
	}
	if givenUp == nil && h.lost.Load() {
		givenUp = lockmgr.ErrLockLost
	}
	if givenUp != nil && !had { // a program relies on what it had: a call that fails takes nothing
		t.TakeBack(l)
	}
	return errno(givenUp)
}

// advisoryLock returns what a request asks for.
func (f *FS) advisoryLock(in *fuse.LkIn) advisory.Lock {
	l := advisory.Lock{
		Owner: f.advisory.Owner(advisory.Posix, in.Owner), Start: in.Lk.Start, End: min(in.Lk.End, advisory.EOF),
		Exclusive: in.Lk.Typ == unix.F_WRLCK, PID: int(in.Lk.Pid), Since: time.Now(),
	}
	if in.LkFlags&fuse.FUSE_LK_FLOCK != 0 {
		l.Owner, l.Start, l.End = f.advisory.Owner(advisory.Flock, in.Fh), 0, advisory.EOF
	}
	if p, err := f.cache.Lookup(int(in.Pid)); err == nil {
		l.Comm = p.Comm
	}
	return l
}

// advisoryTable returns the table of a handle's file, and makes the handle depend on it.
func (f *FS) advisoryTable(h *handle) (*lockmgr.AdvisoryTable, error) {
	h.lockers.mu.Lock()
	defer h.lockers.mu.Unlock()
	if h.lockers.table != nil {
		return h.lockers.table, nil
	}
	if h.lockers.closed {
		return nil, unix.EBADF
	}
	key, err := f.advisoryKey(h)
	if err != nil {
		return nil, err
	}
	if r := f.flockRule(h.node); r.flock == policy.FlockLocal {
		h.lockers.table = f.advisory.OpenLocal(key)
	} else {
		h.lockers.table = f.advisory.Open(key, r.keep)
	}
	h.node.advisory.Store(h.lockers.table)
	return h.lockers.table, nil
}

// flockRule returns which programs the locks of a file exclude. A file without a name may have had
// any name before.
func (f *locker) flockRule(n *node) rule {
	if f.policy.Empty() {
		return rule{flock: f.flock}
	}
	path, err := f.nodes.path(n)
	if err != nil {
		return rule{flock: policy.FlockCluster}
	}
	return f.rule(path)
}

// advisoryKey returns the key of a handle's inode. Only that of a file system below the volume's
// depends on the path. If the path has changed, the locks of this mount are under the former key.
func (f *files) advisoryKey(h *handle) (lockmgr.Key, error) {
	var st unix.Stat_t
	if err := byDescriptor(fstat(h.fd, &st)); err != nil {
		return lockmgr.Key{}, err
	}
	path := ""
	if st.Dev != f.backing.device.Load() {
		if t := h.node.advisory.Load(); t != nil && t.InUse() {
			return t.Key(), nil
		}
		var err error
		if path, err = f.nodes.path(h.node); err != nil {
			return lockmgr.Key{}, err
		}
	}
	return f.backing.inodeKey(path, &st)
}

// addLocker adds an owner that is about to lock by h. It is recorded when addLocker returns.
func (h *handle) addLocker(o advisory.Owner) {
	h.changeLockers(func(owners []advisory.Owner) []advisory.Owner {
		if slices.Contains(owners, o) {
			return owners
		}
		return append(owners, o)
	})
}

// removeLocker is for an owner that FLUSH takes all ranges from.
func (h *handle) removeLocker(o advisory.Owner) {
	h.changeLockers(func(owners []advisory.Owner) []advisory.Owner {
		return slices.DeleteFunc(owners, func(other advisory.Owner) bool { return other == o })
	})
}

func (h *handle) changeLockers(change func([]advisory.Owner) []advisory.Owner) {
	h.noting.Lock()
	defer h.noting.Unlock()
	h.node.lockersMu.Lock()
	had := len(h.lockers.owners)
	h.lockers.owners = change(h.lockers.owners)
	has := len(h.lockers.owners)
	h.node.lockersMu.Unlock()
	if has != had {
		h.writeRecord()
	}
}

// unlockAll ends a process's locks on h's file when it closes a descriptor. By then what it has
// written is on the volume.
func (f *FS) unlockAll(in *fuse.InHeader, h *handle, o advisory.Owner) (err error) {
	h.removeLocker(o)
	t := h.node.advisory.Load()
	if t == nil || !t.Has(o) {
		return nil
	}
	if !t.Local() && t.Private() == 0 {
		err = f.flushToUnlock(in, h)
	}
	_ = t.Unlock(nil, o, 0, advisory.EOF) // all of it: that leaves no more than before
	return err
}

// unlockClosed ends the locks that were taken by a closed handle. An owner that has locked by
// another handle since keeps them until that is closed.
func (f *FS) unlockClosed(in *fuse.InHeader, h *handle) {
	h.lockers.mu.Lock()
	t := h.lockers.table
	h.lockers.closed = true
	h.lockers.mu.Unlock()
	if t == nil {
		return
	}
	h.node.lockersMu.Lock()
	has := slices.ContainsFunc(h.lockers.owners, t.Has)
	h.node.lockersMu.Unlock()
	if has && !t.Local() { // a table that is published now does not know the handle
		if err := f.flushToUnlock(in, h); err != nil {
			f.log.Warn("cannot flush a file before it is unlocked", "error", err)
		}
	}
	h.node.lockersMu.Lock() // until the table knows: nobody must lock as an owner that it ends
	for _, o := range h.lockers.owners {
		if !slices.ContainsFunc(f.handles.all(), func(other *handle) bool {
			return other != h && other.node.held == h.node.held && slices.Contains(other.lockers.owners, o)
		}) {
			_ = t.Unlock(atOnce, o, 0, advisory.EOF)
		}
	}
	h.lockers.owners = nil
	h.node.lockersMu.Unlock()
	h.lockers.mu.Lock()
	h.lockers.table = nil
	h.lockers.mu.Unlock()
	h.note() // before the table, and so its record, may be forgotten
	t.Close()
}
