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
	// certain: no other file can ever have its inode.
	certain bool
	// descriptor is held during a use of fd, where fd may be let go: see letgo.go.
	descriptor sync.RWMutex
	// awaited is until when fd is not let go, in nanoseconds.
	awaited atomic.Int64

	// GUARDED_BY(nodes.mu)
	lookups uint64
	parent  *node     // the directory it was last looked up in; nil for the root
	name    string    // the name there; the whole path, if the node was relocated
	alias   dirName   // another name of a file that has several
	shown   []shown   // the last maxShown names that the kernel was told
	moved   time.Time // when its name was last seen to have changed
	retired bool      // a lock was lost on it: it opens no more
	former  bool      // the kernel has another node of the file: see renamed.go

	gone atomic.Bool // it belongs to a former client of the volume: see remount.go
	past *node       // constant; the same directory with the former client

	// uses counts the uses of fd, and one for the kernel. At 0 fd is closed.
	uses   uses
	closer *closer

	// asked is when the volume was last asked for the names in the directory, in
	// nanoseconds.
	asked atomic.Int64

	place atomic.Pointer[place] // of a directory; nil: not known

	mappable atomic.Int64 // handles that allow a writable mapping
	cachers  atomic.Int64 // handles that the kernel reads from its cache
	stalled  atomic.Int64 // writes that wait for the session
	handles  atomic.Int64

	*held // shared by all nodes of the file

	mu sync.Mutex
	// told and cached are what the kernel has of the file. GUARDED_BY(mu)
	told   told
	cached version
	// seen is what the file was at the last open on a network volume, and seenAt when an open
	// first found it so. GUARDED_BY(mu)
	seen   version
	seenAt time.Time
}

// held is a file's holds, which follow its names.
type held struct {
	// naming is held for write while the file gets or loses a name: from when the holds get
	// the lock of the new name until they have followed. A new hold comes before or after.
	naming sync.RWMutex

	mu sync.Mutex
	// holds are those of handles that may write, and of opens under way. GUARDED_BY(mu)
	holds map[*lockmgr.Hold]struct{}

	nodes []*node // of the file, the newest last. GUARDED_BY(nodes.mu)

	advisory atomic.Pointer[lockmgr.AdvisoryTable] // of its flock and fcntl locks; nil: none was asked for
	bereft   atomic.Bool                           // these were lost while a handle was open

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

// enter begins a use of the node's descriptor; false means that it is closed. A request need
// not enter its own node: the kernel does not forget that meanwhile. Any other node, such as
// the directory of a name, may be forgotten.
func (n *node) enter() bool { return n.uses.enter() }

func (n *node) leave() {
	if n.uses.leave() {
		n.closer.close(n.fd) // or nothing, if it was let go
	}
}

// lost reports whether one of the file's holds is lost, or its advisory locks are.
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

// addHold registers a hold on the file: its locks follow the file's names from now on. It
// comes before the proof of the file's path. A rename is then seen by the proof, or takes the
// hold along.
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

func (f *held) allHolds() []*lockmgr.Hold {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.holds))
}
