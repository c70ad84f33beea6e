package fs

import (
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// After an open a program must see the last writer's changes, made on another mount, by fstat,
// read and lseek. So each open compares the backing with what the kernel may have cached.

// told is what replies have told the kernel of a file.
type told struct {
	known   bool
	size    int64
	mtime   unix.Timespec
	changed time.Time // when it was last told a change
}

// belief says whether the kernel has a file's attributes right.
type belief uint8

const (
	outdated belief = iota // the kernel was told another size
	doubtful               // the kernel was told another time of change, or was told a change only recently: see doubtFor
	current
)

// doubtFor is how long the kernel may use old attributes after a reply with new ones. Of two
// concurrent replies it keeps the first to arrive, perhaps the older, for cacheTimeout; the other
// half is for a reply under way.
const doubtFor = 2 * cacheTimeout

func (n *node) tell(st *unix.Stat_t) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.told.known && !n.told.agrees(st) {
		n.told.changed = time.Now()
	}
	n.told.known, n.told.size, n.told.mtime = true, st.Size, st.Mtim
}

func (t *told) agrees(st *unix.Stat_t) bool {
	return t.known && t.size == st.Size && t.mtime == st.Mtim
}

// wrote notes what the kernel infers from a WRITE: the size is at least end.
func (n *node) wrote(end int64) {
	n.mu.Lock()
	n.told.size = max(n.told.size, end)
	n.mu.Unlock()
}

// noteOwnWrites notes a file's time after our own writes. If the size is not what the kernel was told,
// another mount has written: then it notes nothing, and the next open finds the difference.
func (n *node) noteOwnWrites(st *unix.Stat_t) {
	n.mu.Lock()
	if n.told.known && n.told.size == st.Size {
		n.told.mtime = st.Mtim
	}
	n.mu.Unlock()
}

func (n *node) belief(st *unix.Stat_t) belief {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case !n.told.known || n.told.size != st.Size:
		return outdated
	case n.told.mtime != st.Mtim || !n.told.changed.IsZero() && time.Since(n.told.changed) < doubtFor:
		return doubtful
	}
	return current
}

// version distinguishes a file's contents. The zero version differs from all.
type version struct {
	size         int64
	mtime, ctime unix.Timespec
}

// coarsest is the largest time step of a file system: two changes in one step have equal times.
const coarsest = 2 * time.Second

// cacheFlags says how the kernel may cache the file by this handle. Appends go to the file's end,
// which the cache does not know. Write-only handles would gain nothing.
func (f *files) cacheFlags(h *handle, flags uint32, st *unix.Stat_t) uint32 {
	switch {
	case writes(flags) && flags&unix.O_APPEND != 0:
		return fuse.FOPEN_DIRECT_IO
	case flags&unix.O_ACCMODE == unix.O_WRONLY:
		// The kernel sends concurrent writes unless the file is cached or one goes beyond its end.
		return fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES
	}
	n := h.node
	if n.stalls() {
		// An open that caches waits in the kernel for all direct writes, and so for the session.
		return fuse.FOPEN_DIRECT_IO
	}
	now := version{size: st.Size, mtime: st.Mtim, ctime: st.Ctim}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cached == now {
		return fuse.FOPEN_KEEP_CACHE
	}
	n.cached = version{}
	since := time.Unix(st.Ctim.Unix())
	if !f.backing.isLocal(n.inode.dev) { // their times are by a server's clock, which may be late
		if n.seen != now {
			n.seen, n.seenAt = now, time.Now()
		}
		since = n.seenAt
	}
	if time.Since(since) > coarsest {
		h.fills.Store(&now)
	}
	return 0
}

// filling is called at h's first READ. From then on the kernel's cache is of the version that the
// open has seen. Before the answer to OPEN, the cache still has old pages.
func (h *handle) filling() {
	if h.fills.Load() == nil {
		return
	}
	if v := h.fills.Swap(nil); v != nil {
		h.node.mu.Lock()
		h.node.cached = *v
		h.node.mu.Unlock()
	}
}

// misfilled notes that the kernel's cache has bytes that the file does not have. The next open
// drops the cache.
func (h *handle) misfilled() {
	h.fills.Store(nil)
	h.node.mu.Lock()
	h.node.cached = version{}
	h.node.mu.Unlock()
}
