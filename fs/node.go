package fs

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// node is one inode the kernel knows, under the id it knows it by.
type node struct {
	id    uint64
	inode inode
	fd    int // O_PATH; see enter, and of files FS.with
	dir   bool
	// certain: its file is found again for sure by its inode.
	certain bool
	// descriptor is held by those who use fd, where it may be let go.
	descriptor sync.RWMutex
	// awaited is until when fd is not let go, in nanoseconds.
	awaited atomic.Int64

	// GUARDED_BY(nodes.mu)
	lookups uint64
	parent  *node     // the directory it was last looked up in; nil for the root
	name    string    // the name there; of a node that was relocated, its whole path
	alias   dirName   // another name of a file that has several
	shown   []shown   // the names that the kernel may remember it by, the last maxShown of them
	moved   time.Time // when its name was last seen to have changed
	retired bool      // a lock was lost on it: it opens no more
	former  bool      // the kernel has another node of the file: see renamed.go

	gone atomic.Bool // it is of a client of the volume that is no more: see remount.go
	past *node       // constant; the directory as it was with that client

	// uses counts who uses fd, and one for the kernel's knowing the node. At 0 fd
	// is closed, and its number may be another file's.
	uses   atomic.Int64
	closer *closer

	// asked is when the volume's client was last made to ask for the names in the
	// directory, in nanoseconds.
	asked atomic.Int64

	mappable atomic.Int64 // how many handles a mapping of which can be stored to
	stalled  atomic.Int64 // how many writes wait for the session
	handles  atomic.Int64

	*held // of the file: a former node of it has the same

	mu sync.Mutex
	// told and cached are what the kernel has of the file. GUARDED_BY(mu)
	told   told
	cached version
}

// held is what a file's holds need to follow its names.
type held struct {
	// naming is held by whoever gives the file a name or removes one, from when it
	// gives the file's holds the locks of the names to be until they have followed:
	// a hold comes before that or after it.
	naming sync.RWMutex

	mu sync.Mutex
	// holds are those of the handles that may write, and of the opens that are
	// about to be such. They follow the file's names. GUARDED_BY(mu)
	holds map[*lockmgr.Hold]struct{}

	nodes []*node // that the kernel knows, the newest last. GUARDED_BY(nodes.mu)
}

// enter begins a use of the node's descriptor; false means that it is closed. The
// kernel does not forget a node while it asks for something of it. Whoever has
// found the node by another, as a directory in which that has or had a name,
// has to enter: the kernel may have forgotten it long ago.
func (n *node) enter() bool {
	for {
		uses := n.uses.Load()
		if uses == 0 {
			return false
		}
		if n.uses.CompareAndSwap(uses, uses+1) {
			return true
		}
	}
}

// leave ends a use.
func (n *node) leave() {
	if n.uses.Add(-1) == 0 {
		n.closer.close(n.fd) // or nothing, if it was let go
	}
}

// lost reports whether one of the file's holds is lost.
func (f *held) lost() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for h := range f.holds {
		if h.Lost() {
			return true
		}
	}
	return false
}

// addHold registers a hold on the file, from when on its locks follow what its
// owner renames. That has to be before the file's path is proved: a rename is then
// either seen by the proof, or takes the hold along.
func (f *held) addHold(h *lockmgr.Hold) {
	if h.Unlocked() {
		return // there is nothing that could follow
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

// allHolds lists the file's holds.
func (f *held) allHolds() []*lockmgr.Hold {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.holds))
}
