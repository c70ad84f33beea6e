package fs

import (
	"errors"
	"fmt"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// When a network volume's client dies or is replaced, open files answer ENOTCONN for ever. So the
// view opens SOURCE anew, and puts it under its root's descriptor. The nodes are the former
// client's:
//   - a request on a file is answered ESTALE, and the kernel looks it up from the root;
//   - a directory is opened again by its path, for a program may have it as its working
//     directory and never look it up;
//   - files that are open keep their error, and their locks are given up;
//   - a request that waits for a lock finds its file again.

// ErrOutOfReach: the view does not reach its volume.
var ErrOutOfReach = errors.New("the volume is out of reach")

// Doubts receives a value after the volume has answered that its client is gone.
func (f *FS) Doubts() <-chan struct{} { return f.doubts }

func (f *FS) doubt(s fuse.Status) {
	switch unix.Errno(s) {
	case unix.ENOTCONN, unix.ECONNABORTED, unix.ESHUTDOWN:
		select {
		case f.doubts <- struct{}{}:
		default: // one is pending
		}
	}
}

// Reach checks that the view reaches its volume. If it does not, or if SOURCE leads elsewhere, the
// view goes on with the directory that is at SOURCE now, if verify accepts that as the volume's
// root. again: the volume has another client now. Errors: ErrOutOfReach. If the volume hangs, so
// does Reach.
func (f *FS) Reach(verify func(dir string) error) (again bool, err error) {
	alive := ask(f.backing.root)
	now, err := openBacking(f.source)
	if exhausted(err) { // that says nothing of the volume
		if alive != nil {
			return false, fmt.Errorf("%w: %w", ErrOutOfReach, alive)
		}
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrOutOfReach, err)
	}
	if now.inode == f.nodes.rootInode() {
		unix.Close(now.root)
		if alive != nil { // the same client, which has failed
			return false, fmt.Errorf("%w: %w", ErrOutOfReach, alive)
		}
		return false, nil
	}
	if err := verify(procPath(now.root)); err != nil {
		unix.Close(now.root)
		if alive == nil {
			err = fmt.Errorf("%w; what was mounted there before is served on", err)
		}
		return false, fmt.Errorf("%w: at %s: %w", ErrOutOfReach, f.source, err)
	}
	if now.kind != f.backing.kind {
		unix.Close(now.root)
		return false, fmt.Errorf("%w: %s has a file system of another kind: start lockfs again", ErrOutOfReach, f.source)
	}
	holds, err := f.nodes.renew(now.root, now.inode)
	if err != nil {
		return false, err
	}
	f.backing.device.Store(now.inode.dev)
	f.record.Void() // the nodes are a former client's: nobody could open them again
	f.locks.Abandon(holds, lockmgr.ErrVolumeGone)
	return true, nil
}

// addHold gives a hold up if dir's client was replaced: it would not follow the file's names.
func (f *locker) addHold(n, dir *node, hold *lockmgr.Hold) {
	n.addHold(hold)
	if dir.gone.Load() {
		f.locks.Abandon([]*lockmgr.Hold{hold}, lockmgr.ErrVolumeGone)
	}
}

// rootInode is the root's; zero when all nodes are forgotten.
func (t *nodes) rootInode() inode {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if root := t.byID[rootID]; root != nil {
		return root.inode
	}
	return inode{}
}

// renew takes over fd, which is i, as the root, and returns the holds of all former nodes.
func (t *nodes) renew(fd int, i inode) ([]*lockmgr.Hold, error) {
	defer unix.Close(fd)
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.byID[rootID]
	if old == nil {
		return nil, fmt.Errorf("%w: the view is closed", ErrOutOfReach)
	}
	// The closer closes the former root: that can end a mount, and hang.
	former, err := unix.FcntlInt(uintptr(old.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	t.closer.close(former)
	if err := unix.Dup3(fd, old.fd, unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	// Marked before holds are collected: a hold registered later fails at the proof of its path.
	for _, n := range t.byID {
		n.gone.Store(true)
	}
	holds := make(map[*lockmgr.Hold]struct{})
	for _, n := range t.byID {
		for _, h := range n.allHolds() {
			holds[h] = struct{}{}
		}
	}
	clear(t.byInode)
	root := &node{id: rootID, inode: i, fd: old.fd, lookups: old.lookups, held: &held{id: rootID}, closer: &t.closer}
	root.uses.begin()
	t.byID[rootID], t.byInode[i] = root, root
	list := make([]*lockmgr.Hold, 0, len(holds))
	for h := range holds {
		list = append(list, h)
	}
	return list, nil
}

// returned reopens a former client's directory by its path, with its id; nil: a file, or gone.
func (t *nodes) returned(n *node) *node {
	if !n.dir {
		return nil
	}
	path, err := t.path(n)
	if err != nil {
		return nil
	}
	fd, st, err := t.resolve(path, anew)
	if err != nil {
		return nil
	}
	i := inodeOf(&st)
	t.mu.Lock()
	defer t.mu.Unlock()
	// Only the number tells it from another directory of its name.
	if now := t.byID[n.id]; now != n || i.ino != n.inode.ino || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		unix.Close(fd)
		if now != nil && now != n && !now.gone.Load() {
			return now // by another request
		}
		return nil
	}
	again := &node{id: n.id, inode: i, fd: fd, dir: true, certain: st.certain, lookups: n.lookups, parent: t.byID[rootID], name: path, past: n, held: &held{id: n.id}, closer: &t.closer}
	again.uses.begin()
	again.show(dirName{again.parent, path})
	if other := t.byInode[i]; other != nil { // the kernel has looked it up since
		again.held, again.former = other.held, true
	} else {
		t.byInode[i] = again
	}
	again.nodes = append(again.nodes, again)
	t.byID[n.id] = again
	return again
}

// leavePast closes the directories of former clients.
func (n *node) leavePast() {
	for p := n.past; p != nil; p = p.past {
		p.leave()
	}
}
