package fs

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// node is one inode that the kernel knows by id.
type node struct {
	id    uint64
	inode inode
	fd    int // O_PATH; see enter, and for files FS.with
	dir   bool
	// certain: no other file can ever have its inode.
	certain bool
	// descriptor is held while fd is used, if it may be let go: see letgo.go.
	descriptor sync.RWMutex
	// awaited is the time, in nanoseconds, before which fd is not let go.
	awaited atomic.Int64

	// GUARDED_BY(nodes.mu)
	lookups uint64
	parent  *node     // where it was last looked up; nil for the root
	name    string    // the name there; the whole path of a relocated node
	alias   dirName   // another name of a file with several
	shown   []shown   // the last maxShown names told to the kernel
	moved   time.Time // when its name was last seen to change
	retired bool      // a lock was lost on it: it opens no more
	former  bool      // the kernel has another node of the file: see renamed.go

	gone atomic.Bool // of a former client of the volume: see remount.go
	past *node       // constant; the directory with the former client

	// uses counts the uses of fd, and one for the kernel. At 0 fd is closed.
	uses   uses
	closer *closer

	// asked is when the volume was last asked for the directory's names, in nanoseconds.
	asked atomic.Int64

	place atomic.Pointer[place] // of a directory; nil: unknown

	mappable atomic.Int64 // handles that allow a writable mapping
	cachers  atomic.Int64 // handles that read through the kernel's cache, or by a mapping
	paged    atomic.Bool  // another handle has read, perhaps for a mapping: the kernel may have pages
	stored   atomic.Bool  // pages of a mapping were written back
	handles  atomic.Int64

	overwrites overwrites

	*held // shared by all nodes of the file

	mu sync.Mutex
	// told and cached are what the kernel has of the file. GUARDED_BY(mu)
	told   told
	cached version
	// seen is the file at the last open on a network volume, first seen at seenAt. GUARDED_BY(mu)
	seen   version
	seenAt time.Time
}

// held is a file's holds, which follow its names.
type held struct {
	id uint64 // constant; of the file's first node

	// naming is held for write while the file gets or loses a name, until the holds have followed.
	naming sync.RWMutex

	mu sync.Mutex
	// holds are those of handles that may write, and of opens under way. GUARDED_BY(mu)
	holds map[*lockmgr.Hold]struct{}

	nodes []*node // of the file, the newest last. GUARDED_BY(nodes.mu)

	advisory atomic.Pointer[lockmgr.AdvisoryTable] // of its flock and fcntl locks; nil: none
	caughtUp atomic.Uint64                         // the table's private period in which the kernel's copy was last made fresh
	bereft   atomic.Bool                           // advisory locks were lost while a handle was open
	grants   atomic.Uint64                         // of advisory locks that other mounts can have: see renew

	lockersMu sync.Mutex // guards lockers.owners of the file's handles
}

// dirName is a name in a directory.
type dirName struct {
	dir  *node
	name string
}

// is reports whether two names are one: the kernel may have two nodes of one directory.
func (d dirName) is(other dirName) bool {
	return d == other || d.name == other.name && d.dir != nil && other.dir != nil && d.dir.inode == other.dir.inode
}

// enter begins a use of fd; false: it is closed. The kernel keeps a request's own node meanwhile,
// but may forget any other.
func (n *node) enter() bool { return n.uses.enter() }

func (n *node) leave() {
	if n.uses.leave() {
		n.closer.close(n.fd) // does nothing if it was let go
	}
}

// isMapped reports whether programs may store bytes by a mapping, and have done so.
func (n *node) isMapped() bool { return n.stored.Load() && n.mappable.Load() > 0 }

// lost reports whether one of the file's holds or its advisory locks are lost.
func (f *held) lost() bool {
	if f.bereft.Load() {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for h := range f.holds {
		if h.Lost() {
			return true
		}
	}
	return false
}

// addHold comes before the proof of the path. So either the proof sees a rename, or the rename
// moves the hold.
func (f *held) addHold(h *lockmgr.Hold) {
	if h.Unlocked() {
		return
	}
	f.naming.RLock()
	defer f.naming.RUnlock()
	f.mu.Lock()
	if f.holds == nil {
		f.holds = make(map[*lockmgr.Hold]struct{})
	}
	f.holds[h] = struct{}{}
	f.mu.Unlock()
}

func (f *held) removeHold(h *lockmgr.Hold) {
	f.mu.Lock()
	delete(f.holds, h)
	f.mu.Unlock()
}

// stalls reports whether a write to the file would wait for the session. Counting the writes that
// wait is not enough: one may be on its way here.
func (n *node) stalls() bool {
	if t := n.advisory.Load(); t != nil && errors.Is(t.Check(), lockmgr.ErrSuspended) {
		return true
	}
	n.held.mu.Lock()
	defer n.held.mu.Unlock()
	for h := range n.holds {
		if errors.Is(h.Check(), lockmgr.ErrSuspended) {
			return true
		}
	}
	return false
}

func (f *held) allHolds() []*lockmgr.Hold {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.holds))
}
