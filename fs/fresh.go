package fs

import (
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// The kernel caches a file's attributes and pages, and other mounts change the file. After an
// open a program sees what the last writer left, by fstat, read and lseek. So each open
// compares the backing with what the kernel may have cached.

// told is what replies have let the kernel believe of a file.
type told struct {
	known   bool
	size    int64
	mtime   unix.Timespec
	changed time.Time // when it was last told something else than before
}

// belief says whether the kernel has a file's attributes right.
type belief uint8

const (
	outdated belief = iota // it was told another size
	doubtful               // it was told another time, or the size only lately: see doubtFor
	current
)

// doubtFor is how long the kernel may go on with old attributes after it was told new ones.
// Of two replies that overlap, the kernel keeps the one that arrives first, which may be the
// older one, and believes it for cacheTimeout. The other half allows for a reply that is still
// under way.
const doubtFor = 2 * cacheTimeout

// tell notes the attributes in a reply.
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

// wrote notes what the kernel concludes from a WRITE: the size is at least end.
func (n *node) wrote(end int64) {
	n.mu.Lock()
	n.told.size = max(n.told.size, end)
	n.mu.Unlock()
}

// settled notes a file's times after our own writes. The kernel has dropped its own, so that
// the next reader need not drop them again. Another size than the kernel's is not of our
// writes: the next open finds it.
func (n *node) settled(st *unix.Stat_t) {
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

// version tells a file's contents apart. The zero version differs from all.
type version struct {
	size         int64
	mtime, ctime unix.Timespec
}

// coarsest is the largest time step of a file system in use. Two changes within one step leave
// the same times.
const coarsest = 2 * time.Second

// cacheFlags decides whether a new handle uses the kernel's page cache, when the file is st. An
// append goes to the file's own end, which the cache does not know. A handle that only
// writes gains nothing from it.
func (f *FS) cacheFlags(h *handle, flags uint32, st *unix.Stat_t) uint32 {
	switch {
	case writes(flags) && flags&unix.O_APPEND != 0:
		return fuse.FOPEN_DIRECT_IO
	case flags&unix.O_ACCMODE == unix.O_WRONLY:
		// The kernel sends the writes of several threads at once, unless somebody has the
		// file cached, or one goes beyond the end of file.
		return fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES
	}
	n := h.node
	if n.stalled.Load() > 0 {
		// An open that caches waits in the kernel for all writes that go past the cache, and
		// so for the session.
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
	if !f.backing.isLocal(n.inode.dev) { // that is by the clock of a server, which may be late
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

// filling notes, at h's first READ, that the kernel fills its cache with the version that h was
// opened on. Before the answer to OPEN it still has the old pages, which another open would
// keep.
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

// misfilled notes that the kernel has cached what the file does not hold. The next open drops
// it.
func (h *handle) misfilled() {
	h.fills.Store(nil)
	h.node.mu.Lock()
	h.node.cached = version{}
	h.node.mu.Unlock()
}
