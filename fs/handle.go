package fs

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/journal"
	"github.com/lockfs/lockfs/lockmgr"
)

type handle struct {
	fh       uint64
	node     *node
	reserved reservation
	fd       int           // of the backing
	hold     *lockmgr.Hold // nil for reading without a lock
	mode     lockmgr.Mode  // what hold is used for: Shared to read, whatever its own mode is
	maps     bool          // it allows a writable mapping
	// caches: the kernel reads by it through its cache, or by a mapping, and writes through its cache.
	caches bool
	sync   int // O_DSYNC and O_SYNC, as RWF_ flags

	// fills is the file's version when this open emptied the kernel's cache; nil after a READ.
	fills atomic.Pointer[version]

	lockers lockers
	renewed renewed
	locks   atomic.Bool // it was asked for flock or fcntl locks
	lost    atomic.Bool // the mount has lost its advisory locks on the file

	record *journal.Part // see record.go
	noting sync.Mutex    // held while it is recorded; before lockers.mu
	opened uint64        // the request that has opened it
	flags  uint32        // of the answer to that

	unflushed unflushed
	// uses counts requests that use fd, and one until RELEASE, which can overtake them.
	uses uses
	gone chan struct{} // closed when fd is closed and the hold released
}

// newHandle takes fd, hold and reserved over; flags are the program's.
func (f *files) newHandle(n *node, fd int, flags uint32, hold *lockmgr.Hold, reserved *reservation) *handle {
	h := &handle{node: n, reserved: reserved.move(), fd: fd, hold: hold, sync: syncing(flags), gone: make(chan struct{})}
	if !writes(flags) {
		h.mode = lockmgr.Shared
	}
	h.renewed.grants.Store(n.grants.Load())
	h.uses.begin()
	n.handles.Add(1)
	f.hasOpen(n, fd)
	if h.maps = hold != nil && flags&unix.O_ACCMODE == unix.O_RDWR; h.maps {
		n.mappable.Add(1)
	}
	return h
}

func syncing(flags uint32) (how int) {
	if flags&unix.O_DSYNC != 0 {
		how |= unix.RWF_DSYNC
	}
	if flags&unix.O_SYNC == unix.O_SYNC {
		how |= unix.RWF_SYNC
	}
	return how
}

// enter begins a use of the handle; false: it is closed.
func (h *handle) enter() bool { return h.uses.enter() }

// leave ends a use. The last one flushes and closes the file, and then releases the lock.
func (h *handle) leave() {
	if !h.uses.leave() {
		return
	}
	_ = h.flush() // what a mapping wrote after the last close(): nobody waits for an error
	h.record.Delete(recordHandle, h.fh)
	unix.Close(h.fd)
	h.reserved.release()
	h.node.handles.Add(-1)
	if h.caches {
		h.node.cachers.Add(-1)
	}
	if h.hold != nil {
		if h.maps {
			h.node.mappable.Add(-1)
		}
		h.node.removeHold(h.hold)
		h.hold.Release()
	}
	close(h.gone)
}

type table[T any] struct {
	mu      sync.RWMutex
	m       map[uint64]*T
	next    uint64
	drained bool // no more are added
}

func (t *table[T]) add(v *T) (uint64, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.drained {
		return 0, false
	}
	if t.m == nil {
		t.m = make(map[uint64]*T)
	}
	t.next++
	t.m[t.next] = v
	return t.next, true
}

func (t *table[T]) get(id uint64) *T {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.m[id]
}

// last is the largest number so far.
func (t *table[T]) last() uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.next
}

func (t *table[T]) len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.m)
}

func (t *table[T]) all() []*T {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Values(t.m))
}

func (t *table[T]) each(f func(*T)) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, v := range t.m {
		f(v)
	}
}

func (t *table[T]) remove(id uint64) *T {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := t.m[id]
	delete(t.m, id)
	return v
}

// drain removes and returns all values, and refuses later ones.
func (t *table[T]) drain() []*T {
	t.mu.Lock()
	defer t.mu.Unlock()
	vs := slices.Collect(maps.Values(t.m))
	t.m, t.drained = nil, true
	return vs
}

// check returns nil if the handle may be written at this instant, as Hold.Check does.
func (h *handle) check() error {
	if h.lost.Load() {
		return lockmgr.ErrLockLost
	}
	if t := h.node.advisory.Load(); t != nil {
		if err := t.Check(); err != nil {
			return err
		}
	}
	if h.hold == nil {
		return nil
	}
	return h.hold.Check()
}

// isLost reports whether a lock that the handle depends on is lost for ever. h.lost alone is set
// some time after the loss.
func (h *handle) isLost() bool {
	if h.lost.Load() || h.hold != nil && h.hold.Lost() {
		return true
	}
	t := h.node.advisory.Load()
	return t != nil && errors.Is(t.Check(), lockmgr.ErrSessionLost)
}

// awaitLocks waits while check says ErrSuspended.
func (h *handle) awaitLocks(ctx context.Context) error {
	if t := h.node.advisory.Load(); t != nil {
		if err := t.Await(ctx); err != nil {
			return err
		}
	}
	if h.hold != nil {
		if err := h.hold.Await(ctx); err != nil {
			return err
		}
	}
	return h.check()
}

// troubled is Hold.Troubled for all that the handle depends on.
func (h *handle) troubled() bool {
	t := h.node.advisory.Load()
	return h.hold.Troubled() || t != nil && t.Troubled()
}
