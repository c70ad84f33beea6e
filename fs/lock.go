package fs

import (
	"log/slog"
	"slices"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// locker takes locks for requests, and proves that what it has locked is what they mean. It knows
// neither open files nor what has become of earlier requests.
type locker struct {
	locks *lockmgr.Manager
	callers
	rules
	files
	gates    gates
	nameWait time.Duration // see Config.NameWait
	log      *slog.Logger
	refusals sparse // the log's lines about refused locks
}

type nodeLock struct {
	node *node
	hold *lockmgr.Hold // registered with the node
	fd   int           // O_PATH: the inode proved to have the locked path
}

func (l *nodeLock) release() {
	l.giveUp()
	l.close()
}

func (l *nodeLock) giveUp() {
	l.node.removeHold(l.hold)
	l.hold.Release()
}

func (l *nodeLock) close() {
	if l.fd >= 0 {
		unix.Close(l.fd)
	}
}

// lastKnown returns what this machine knows of a file, to guess its locks.
func (f *files) lastKnown(n *node) (st stat, err error) {
	err = f.with(n, func(fd int) (err error) {
		st, err = f.backing.stat(fd, unasked)
		return err
	})
	if err == unix.ESTALE {
		// The path is locked all the same: the proof fails, and the kernel looks up what has the
		// name.
		f.nodes.doubtNames(n)
		err = nil
	}
	return st, err
}

// lockFile takes the locks of the file at path, by take, and proves that the file is n. file is
// what is known of it, and then what the proof has found. A nil l.hold means not granted. With err
// l.fd is void.
func (f *locker) lockFile(n *node, path string, r rule, file *stat, how asking, take func(...lockmgr.Key) (*lockmgr.Hold, fuse.Status)) (l nodeLock, s fuse.Status, err error) {
	for {
		keys, err := f.fileKeys(path, r, &file.Stat_t)
		if err != nil {
			return nodeLock{}, errno(err), nil
		}
		hold, s := take(keys...)
		if !s.Ok() {
			return nodeLock{}, s, nil
		}
		l := nodeLock{node: n, hold: hold, fd: -1}
		n.addHold(hold)
		lock := under{hold: hold}
		if len(keys) > 0 {
			lock.key = keys[0]
		}
		var st stat
		if l.fd, st, err = f.prove(n, path, how, lock); err != nil {
			return l, fuse.OK, err
		}
		*file = st
		// While we waited the file may have got more names.
		if ok, err := f.locksInode(hold, path, r, file); ok || err != nil {
			return l, fuse.OK, err
		}
		l.release()
	}
}

// fileKeys returns the keys of path and, for a file with several names, its inode. None: no lock.
func (f *files) fileKeys(path string, r rule, st *unix.Stat_t) ([]lockmgr.Key, error) {
	key, err := lockmgr.FileKey(path)
	if err != nil || !r.locked() {
		return nil, err
	}
	keys := []lockmgr.Key{key}
	if !hasMoreNames(st) {
		return keys, nil
	}
	inode, err := f.backing.inodeKey(path, st)
	return append(keys, inode), err
}

// locksInode does not compare the path's key, which changes when the owner renames the file.
func (f *files) locksInode(hold *lockmgr.Hold, path string, r rule, file *stat) (bool, error) {
	if !r.locked() || !hasMoreNames(&file.Stat_t) {
		return true, nil
	}
	key, err := f.backing.inodeKey(path, &file.Stat_t)
	return err == nil && hold.Token(key) != 0, err
}

// lockNode does not queue: the caller has the inode's kernel lock.
func (f *locker) lockNode(cancel <-chan struct{}, in *fuse.InHeader, n *node) (*nodeLock, fuse.Status) {
	for range mendTries {
		l, s := f.lockNodeOnce(cancel, in, n)
		if s != stale {
			return l, s
		}
		if !f.mendAbove(n) {
			break // it is another file now: the kernel looks again
		}
	}
	return nil, stale
}

func (f *locker) lockNodeOnce(cancel <-chan struct{}, in *fuse.InHeader, n *node) (*nodeLock, fuse.Status) {
	path, err := f.nodes.path(n)
	if err != nil {
		return nil, errno(err)
	}
	rule := f.rule(path)
	if rule.readOnly() {
		return nil, fuse.EROFS
	}
	st, err := f.lastKnown(n)
	if err != nil {
		return nil, errno(err)
	}
	l, s, err := f.lockFile(n, path, rule, &st, anew, func(keys ...lockmgr.Key) (*lockmgr.Hold, fuse.Status) {
		return f.try(cancel, in, rule, false, keys...)
	})
	if l.hold == nil {
		return nil, s
	}
	if err != nil {
		l.release()
		return nil, errno(err)
	}
	return &l, fuse.OK
}

// try takes keys for one call, without queueing.
func (f *locker) try(cancel <-chan struct{}, in *fuse.InHeader, r rule, renames bool, keys ...lockmgr.Key) (*lockmgr.Hold, fuse.Status) {
	req, err := f.caller(in, nil, r.scope, f.callOwner)
	if err != nil {
		return nil, f.refused(in, slices.Concat(keys, []lockmgr.Key{{}})[0], err, fuse.EBUSY)
	}
	req.Keys, req.Wait, req.Keep, req.HandedOn, req.Found, req.Renames = keys, f.nameWait, r.keep, true, !renames, renames
	hold, err := f.acquire(cancel, in, 0, req)
	if err != nil {
		return nil, f.refused(in, keys[0], err, fuse.EBUSY)
	}
	return hold, fuse.OK
}

// acquire waits outside of the gate, until the caller is being killed, or after anyAfter for any
// signal, unless that is 0. After errGivenUp and errBacklog the request stays outside.
func (f *locker) acquire(cancel <-chan struct{}, in *fuse.InHeader, anyAfter time.Duration, req lockmgr.Request) (hold *lockmgr.Hold, err error) {
	if len(req.Keys) == 0 {
		return f.locks.Unlocked(req.Owner), nil
	}
	if hold = f.locks.AcquireHere(req); hold != nil { // without timers, and inside
		return hold, nil
	}
	ctx, stop := f.interrupted(cancel, in.Pid, anyAfter)
	defer stop()
	givenUp := f.gates.volume.outside(ctx, in, func() { hold, err = f.locks.Acquire(ctx, req) })
	if givenUp == nil {
		return hold, err
	}
	if hold != nil {
		hold.Release()
	}
	return nil, givenUp
}

func (f *FS) whileHeldAs(in *fuse.InHeader, hold *lockmgr.Hold, change func() error) fuse.Status {
	return whileHeld(hold, change, func(change func() error) error { return f.as(in, 0, change) })
}

// whileHeld makes a change, through by, if hold is good right before it. EIO: hold may not have
// been good to the end.
func whileHeld(hold *lockmgr.Hold, change func() error, by func(change func() error) error) fuse.Status {
	if err := hold.Change(func() error { return by(checked(hold.Check, change)) }); err != nil {
		return errno(err)
	}
	return errno(hold.Check())
}
