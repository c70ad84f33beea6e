package fs

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/policy"
)

// catchUp makes the program see what the last holder has left: the volume is asked by force, as
// when the file is opened, and the kernel forgets what it has of the file.
func (f *FS) catchUp(ctx context.Context, in *fuse.LkIn, h *handle) error {
	t := h.node.advisory.Load()
	private := t.Private()
	if t.Local() || private != 0 && private == h.node.caughtUp.Load() {
		return nil // nobody else has left anything
	}
	h.node.grants.Add(1) // before the pages are dropped: a later read brings no old ones back
	if dev := h.node.inode.dev; !f.backing.isLocal(dev) {
		file, err := reopen(h.fd, unix.O_RDONLY)
		if err == unix.EACCES { // a network volume's server may not let root read
			file, err = unix.FcntlInt(uintptr(h.fd), unix.F_DUPFD_CLOEXEC, 0)
		}
		if err != nil {
			return err
		}
		_, err = f.backing.opened(file, dev)
		unix.Close(file)
		if err != nil {
			return err
		}
	}
	var err error
	givenUp := f.gates.volume.outside(ctx, &in.InHeader, func() { err = f.gates.notices.notify(ctx, &in.InHeader, func() { f.dropPages(h.node) }) })
	if err = errors.Join(givenUp, err); err == nil {
		h.node.caughtUp.Store(private)
	}
	return err
}

// renewed.grants is the file's count of advisory grants when the handle's descriptor was opened.
type renewed struct {
	mu     sync.Mutex // held while the descriptor is replaced
	grants atomic.Uint64
}

// renew opens the handle's file anew, in place of its descriptor, if an advisory lock on the file
// was granted since. JuiceFS serves later reads of a descriptor from what it has read by it,
// whatever another client has written meanwhile.
func (f *files) renew(h *handle) error {
	grants := h.node.grants.Load()
	if h.renewed.grants.Load() == grants || !f.backing.on(h.node.inode.dev).readsAhead {
		return nil
	}
	h.renewed.mu.Lock()
	defer h.renewed.mu.Unlock()
	if h.renewed.grants.Load() >= grants {
		return nil
	}
	if err := h.flush(); err != nil { // dup3 tells nobody of it
		return err
	}
	flags, err := unix.FcntlInt(uintptr(h.fd), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	file, err := reopen(h.fd, flags&(unix.O_ACCMODE|unix.O_APPEND|unix.O_SYNC))
	if err != nil {
		return err
	}
	defer unix.Close(file)
	if err := unix.Dup3(file, h.fd, unix.O_CLOEXEC); err != nil {
		return err
	}
	h.renewed.grants.Store(grants)
	return nil
}

// ofRanges returns open flags for a file in which programs of several nodes write, each under a lock
// of its own range. The client of NFS knows nothing of these locks. So with a few bytes it would write
// what it knows of their page, over what another node has written there, unless each write is synced.
func (f *files) ofRanges(dev uint64, r rule) int {
	if f.backing.on(dev).wholePages && !r.locked() && r.flock == policy.FlockCluster {
		return unix.O_DSYNC
	}
	return 0
}

func (f *FS) flushToUnlock(in *fuse.InHeader, h *handle) error {
	defer f.gates.closing.closes(in)()
	return f.flushFile(h)
}

// flushClosed is before a handle is forgotten: a table that is published flushes only what is known.
func (f *FS) flushClosed(in *fuse.InHeader, h *handle) {
	defer f.gates.closing.closes(in)()
	_ = h.flush() // nobody waits for an error
}
