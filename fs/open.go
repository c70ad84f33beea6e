package fs

import (
	"errors"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// dropped are a program's open flags that the backing does not get: what the kernel has done, what
// we do (O_TRUNC under the lock; O_APPEND, O_SYNC and O_DSYNC at each write), and O_DIRECT, for
// which our buffers are not aligned.
const dropped = unix.O_CREAT | unix.O_EXCL | unix.O_TRUNC | unix.O_NOCTTY | unix.O_APPEND |
	unix.O_SYNC | unix.O_DIRECT | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC

func writes(flags uint32) bool { return flags&unix.O_ACCMODE != unix.O_RDONLY }

// isForIoctl: the kernel itself opens a file, for chattr or file_setattr(2). It has the inode locked, and
// the file's holder needs that lock to write and to close. A program's open has O_LARGEFILE, except in
// old 32-bit programs.
func isForIoctl(flags uint32) bool { return flags == unix.O_RDONLY }

type opening struct {
	fs       *FS
	in       *fuse.OpenIn
	node     *node
	visit    visit
	reserved reservation
	mode     lockmgr.Mode
	rule     rule    // of the path being tried
	at       dirName // the file's name when the try began
	file     stat    // what is known of the file, to guess the locks

	again  *waiting // what was handed on with it; nil: nothing
	sends  bool     // it waits for locks to send the kernel to look, and does not open
	handed bool     // it is not to be answered: see handOn
}

// Open locks a file that is opened for write, or truncated. Of all requests only Open and SetLkw
// may queue: they arrive without a kernel lock.
func (f *FS) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) (s fuse.Status) {
	if h := f.calls.file(&in.InHeader); h != nil {
		out.Fh, out.OpenFlags = h.fh, h.flags
		return fuse.OK
	}
	n := f.nodes.get(in.NodeId)
	o := &opening{fs: f, in: in, node: n, again: f.kernel.resumed(in.Unique)}
	o.come()
	defer func() { o.leave(s) }()
	if n == nil || !f.nodes.usable(n) {
		return stale
	}
	if o.reserved, s = f.reserve(&in.InHeader); !s.Ok() {
		return s
	}
	defer o.reserved.release()
	if !writes(in.Flags) && in.Flags&unix.O_TRUNC == 0 {
		if !f.readLocks {
			return o.read(out)
		}
		o.mode = lockmgr.Shared
	}
	o.visit.dropFile()
	var err error
	if o.file, err = f.lastKnown(n); err != nil {
		return errno(err)
	}
	for try := range mendTries {
		at, path, doubtful, err := f.nodes.meaning(n, &o.file)
		way := o.visit.way
		switch { // a request that was handed on waits again for the same locks
		case try > 0 || o.again == nil:
		case o.again.sends: // even if the doubt would be over by now
			doubtful = true
		default:
			at, path, doubtful, err = o.again.at, o.again.path, false, nil
			way.from = nil
		}
		if doubtful && o.visit.maySend() {
			return o.sendToLook(cancel)
		}
		o.at = at
		if way.from != nil { // by which the caller has just found the file
			path, err = f.nodes.pathIn(way.from, way.path)
		}
		if err != nil {
			if !o.mendAbove() && f.relocate(n) != nil {
				break
			}
			continue
		}
		if o.visit.stage == nameless && !f.isNamed(n, o.at) && f.relocate(n) == nil {
			continue // the open must not wait for an owner of the former name
		}
		if s, again := o.tryPath(cancel, path, out); !again {
			return s
		}
	}
	return contended(in.Flags)
}

func (o *opening) come() {
	if o.again != nil {
		o.visit = o.again.visit
		return
	}
	o.visit = o.fs.visits.come(o.in.Pid, number(&o.in.InHeader), o.in.NodeId)
}

func (o *opening) leave(s fuse.Status) {
	if o.again != nil {
		o.again.arrive()
	}
	if o.handed { // once more: with the same entry
		return
	}
	if o.again != nil {
		o.fs.locks.Forsake(o.again.resume)
	}
	o.fs.visits.leave(o.visit, s)
}

// mendAbove mends the directory from which the caller has looked the file up, or the file's own.
func (o *opening) mendAbove() bool {
	if from := o.visit.from; from != nil {
		return o.fs.mend(from)
	}
	return o.fs.mendAbove(o.node)
}

// read opens a file to read, and takes no lock. If n has lost a name that the kernel may mean, the
// kernel has to look the name up again, once.
func (o *opening) read(out *fuse.OpenOut) fuse.Status {
	f, n := o.fs, o.node
	o.visit.reads, o.visit.flags = true, o.in.Flags
	if f.lostName(n) && o.visit.maySend() {
		return stale
	}
	f.noteRead(n)
	if fd := o.visit.fetchFile(o.in); fd >= 0 {
		return f.readBy(n, fd, o.in, out, &o.reserved)
	}
	return f.openToRead(n, o.in, out, &o.reserved)
}

// tryPath opens the file at path. again: its path has changed, or it has more names than known.
func (o *opening) tryPath(cancel <-chan struct{}, path string, out *fuse.OpenOut) (s fuse.Status, again bool) {
	f, n := o.fs, o.node
	o.rule = f.rule(path)
	if o.mode == lockmgr.Exclusive && o.rule.readOnly() {
		return fuse.EROFS, false
	}
	how := unasked // the open asks
	if f.backing.on(n.inode.dev).learnsSize {
		how = anew // NFS would show the new size, and keep the old bytes (ADR 0031)
	}
	l, s, err := f.lockFile(n, path, o.rule, &o.file, how, func(keys ...lockmgr.Key) (*lockmgr.Hold, fuse.Status) {
		return o.lock(cancel, lockmgr.Key{Kind: lockmgr.File, Path: path}, []inode{n.inode}, o.rule.wait, keys)
	})
	if l.hold == nil {
		return s, false
	}
	kept := false
	defer func() {
		if !kept {
			l.giveUp()
		}
		l.close()
	}()
	if err == unix.ESTALE {
		s, kept = o.misled(cancel, l.hold)
		return s, s.Ok()
	}
	if err != nil {
		return errno(err), false
	}
	file, err := o.openBacking(l.fd)
	if err != nil {
		s, kept = o.refusedByVolume(err, l.hold)
		return s, false
	}
	// Since the proof the file may have got more names.
	if ok, err := f.locksInode(l.hold, path, o.rule, &o.file); !ok {
		unix.Close(file) // nothing was done to it
		return errno(err), err == nil
	}
	if s := o.settle(cancel, l.hold, path); !s.Ok() {
		unix.Close(file)
		return s, false
	}
	s, kept = o.makeHandle(file, l.hold, out)
	return s, false
}

// settle makes the hold's token larger than all that owners had by other names of the file.
func (o *opening) settle(cancel <-chan struct{}, hold *lockmgr.Hold, path string) fuse.Status {
	if hold.Looked() {
		return fuse.OK
	}
	ctx, stop := o.fs.interrupted(cancel, o.in.Pid, signalGrace)
	defer stop()
	var err error
	if givenUp := o.fs.gates.volume.outside(ctx, &o.in.InHeader, func() { err = hold.Settle(ctx) }); givenUp != nil {
		return errno(givenUp)
	}
	if err != nil {
		return o.fs.refused(&o.in.InHeader, lockmgr.Key{Kind: lockmgr.File, Path: path}, err, fuse.EBUSY)
	}
	return fuse.OK
}

// refusedByVolume answers an open that the volume has refused under the lock.
func (o *opening) refusedByVolume(err error, hold *lockmgr.Hold) (s fuse.Status, kept bool) {
	if err != unix.ESTALE {
		return errno(err), false
	}
	// The server has lost the file that its client still names.
	if o.visit.maySend() {
		o.park(hold)
		return stale, true
	}
	return fuse.EIO, false
}

// misled handles an open whose file is not at the locked path. OK: try its present path.
func (o *opening) misled(cancel <-chan struct{}, hold *lockmgr.Hold) (s fuse.Status, kept bool) {
	f, n := o.fs, o.node
	switch {
	case !o.visit.maySend() && o.mendAbove():
		// The kernel has looked the file up from a directory that has moved.
		return fuse.OK, false
	case o.visit.maySend():
		o.park(hold)
		return o.sendWith(cancel, []dirName{o.at}, false), true // the file there may have more names
	case o.visit.stage != nameless:
		return stale, false
	case f.relocate(n) == nil:
		return fuse.OK, false
	}
	return fuse.EBUSY, false
}

// lock takes the locks of keys, or fetches parked ones. The open may wait for files.
func (o *opening) lock(cancel <-chan struct{}, name lockmgr.Key, files []inode, wait time.Duration, keys []lockmgr.Key) (*lockmgr.Hold, fuse.Status) {
	f := o.fs
	numbers := make([]uint64, len(files))
	for i, file := range files {
		numbers[i] = f.backing.shownIno(file.dev, file.ino)
	}
	req, err := f.caller(&o.in.InHeader, numbers, o.rule.scope, openOwner)
	if err != nil {
		return nil, f.refused(&o.in.InHeader, name, err, fuse.EBUSY)
	}
	if hold := o.visit.fetch(req.Owner, o.rule.scope, o.mode, keys); hold != nil {
		return hold, fuse.OK
	}
	if o.in.Flags&unix.O_NONBLOCK != 0 || isForIoctl(o.in.Flags) {
		wait = 0
	}
	o.visit.drop()
	req.Keys, req.Mode, req.Queue, req.Wait, req.Keep, req.HandedOn, req.Found = keys, o.mode, true, wait, o.rule.keep, true, true
	if o.again != nil {
		req.Resume, req.Entered = &o.again.resume, o.again.arrive
	}
	hold, err := f.acquire(cancel, &o.in.InHeader, signalGrace, req)
	for on := new(lockmgr.HandedOnError); errors.As(err, &on); {
		if o.handed = f.kernel.handOn(&o.in.InHeader, &waiting{request: raw(o.in), visit: o.visit, sends: o.sends, at: o.at, path: name.Path, resume: on.Resume}, cancel); o.handed {
			return nil, handedOn
		}
		req.Resume = &on.Resume
		hold, err = f.acquire(cancel, &o.in.InHeader, signalGrace, req)
	}
	if err != nil {
		return nil, f.refused(&o.in.InHeader, name, err, contended(o.in.Flags))
	}
	return hold, fuse.OK
}

// park keeps the lock while the kernel looks, so that the name cannot change.
func (o *opening) park(hold *lockmgr.Hold) {
	o.node.removeHold(hold)
	o.visit.hold, o.visit.mode = hold, o.mode
}

// makeHandle makes a handle of file, which it takes over. kept: the hold has a handle, or is parked.
func (o *opening) makeHandle(file int, hold *lockmgr.Hold, out *fuse.OpenOut) (s fuse.Status, kept bool) {
	f, n, st, flags := o.fs, o.node, &o.file, o.in.Flags
	defer func() {
		if file >= 0 {
			unix.Close(file)
		}
	}()
	if inodeOf(st) != n.inode {
		return fuse.EBUSY, false
	}
	if !f.nodes.usable(n) { // a lock was lost on it since we came, perhaps this one
		return stale, false
	}
	if flags&unix.O_TRUNC != 0 {
		kill := o.in.Mode&fuse.OPEN_KILL_SUIDGID != 0
		if s := whileHeld(hold, truncation(file, 0), func(truncate func() error) error {
			return f.clearing(n, file, kill, &o.in.InHeader, truncate)
		}); !s.Ok() {
			return s, false
		}
		// The kernel itself sets the size to 0 and drops the times.
		if err := fstat(file, &st.Stat_t); err == nil {
			n.tell(&st.Stat_t)
		}
	} else {
		// The last holder may have written while we waited. A mapping uses the size of the lookup.
		if n.belief(&st.Stat_t) == outdated && o.visit.stage == fresh {
			o.park(hold)
			return stale, true
		}
		// Of two concurrent replies the kernel may have kept the older. This also drops replies
		// under way.
		f.dropAttrs(n)
	}
	if !writes(flags) && !f.readLocks { // opened for its truncation
		return f.openToRead(n, o.in, out, &o.reserved), false
	}
	h := f.newHandle(n, file, flags, hold, &o.reserved)
	file = -1
	return f.reply(h, &o.in.InHeader, f.cacheFlags(h, flags, &st.Stat_t), out), true
}

// openBacking opens the file of fd with the caller's rights, and sets o.file.
func (o *opening) openBacking(fd int) (file int, err error) {
	f, in, flags := o.fs, &o.in.InHeader, int(o.in.Flags)
	mode := flags &^ dropped
	if writes(o.in.Flags) {
		mode |= f.ofRanges(o.node.inode.dev, o.rule)
	}
	if o.mode == lockmgr.Exclusive && !writes(o.in.Flags) { // it truncates
		mode = mode&^unix.O_ACCMODE | unix.O_RDWR
	}
	file, err = f.openAs(in, fd, mode)
	if err == unix.EPERM && o.mode == lockmgr.Exclusive && flags&unix.O_APPEND != 0 { // an append-only file (chattr +a)
		file, err = f.openAs(in, fd, mode|unix.O_APPEND)
	}
	if err != nil {
		return -1, err
	}
	st, err := f.backing.opened(file, o.node.inode.dev)
	if err != nil {
		unix.Close(file)
		return -1, err
	}
	o.file = st
	return file, nil
}

func (f *FS) openToRead(n *node, in *fuse.OpenIn, out *fuse.OpenOut, reserved *reservation) fuse.Status {
	fd, err := f.openNode(n, &in.InHeader, in.Flags)
	if err != nil {
		return f.failed(n, err)
	}
	return f.readBy(n, fd, in, out, reserved)
}

// openNode opens a node's file to read, with the caller's rights.
func (f *FS) openNode(n *node, in *fuse.InHeader, flags uint32) (fd int, err error) {
	err = f.with(n, func(path int) (err error) {
		fd, err = f.openAs(in, path, int(flags)&^dropped)
		return err
	})
	return fd, err
}

// readBy makes a handle of a descriptor, which it takes over.
func (f *FS) readBy(n *node, fd int, in *fuse.OpenIn, out *fuse.OpenOut, reserved *reservation) fuse.Status {
	flags := in.Flags
	st, err := f.backing.opened(fd, n.inode.dev)
	if err != nil {
		unix.Close(fd)
		return errno(err)
	}
	if n.belief(&st.Stat_t) != current {
		f.dropAttrs(n)
	}
	h := f.newHandle(n, fd, flags, nil, reserved)
	return f.reply(h, &in.InHeader, f.cacheFlags(h, flags, &st.Stat_t)|f.noFlush(), out)
}

// noFlush: with cluster advisory locks, a read-only handle's FLUSH ends its process's locks.
func (f *FS) noFlush() uint32 {
	if f.advisory != nil {
		return 0
	}
	return fuse.FOPEN_NOFLUSH
}

func (f *FS) reply(h *handle, in *fuse.InHeader, flags uint32, out *fuse.OpenOut) fuse.Status {
	if h.caches = flags&fuse.FOPEN_DIRECT_IO == 0 || h.mode == lockmgr.Shared; h.caches {
		h.node.cachers.Add(1)
	}
	if h.hold != nil {
		h.hold.OnLost(func() { f.bereave(h) })
	}
	id, ok := f.handles.add(h)
	if !ok { // the view is being closed
		h.leave()
		return ended
	}
	h.fh, h.record, h.opened, h.flags = id, f.record, number(in), flags
	h.note()
	if h.node.bereft.Load() { // since its node was found usable
		h.lost.Store(true)
	}
	out.Fh, out.OpenFlags = h.fh, flags
	return fuse.OK
}
