package fs

import (
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// The kernel caches a file's attributes and its pages, and other mounts change
// both behind its back. After an open a program sees what the last writer
// left, in fstat, read and lseek: each open compares the backing with what the
// kernel may have.

// told is what replies have let the kernel believe of a file.
type told struct {
	known   bool
	size    int64
	mtime   unix.Timespec
	changed time.Time // when it was last told something else than before
}

// belief says what the kernel makes of a file's attributes.
type belief uint8

const (
	outdated belief = iota // it was told another size
	doubtful               // it was told the size, but may not have listened, or other times
	current
)

// doubtFor is how long the kernel may go on with the attributes it had when it
// was told others: of replies to requests that overlapped it keeps the
// first to arrive and drops the next, whichever is newer. What it keeps it
// believes for cacheTimeout; as much again is for a reply under way.
const doubtFor = 2 * cacheTimeout

// tell notes what a reply lets the kernel believe.
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

// wrote notes what the kernel makes of a WRITE reply by itself: a size that
// covers the bytes at the offset it had sent.
func (n *node) wrote(end int64) {
	n.mu.Lock()
	n.told.size = max(n.told.size, end)
	n.mu.Unlock()
}

// settled notes a file's times after our own writes, of which the kernel was
// not told and need not be: it dropped its own. A size that differs from the
// one it has is not ours, and stays to be found by the next open. A volume's server is
// not asked for them: the next open has the kernel drop its times again.
func (n *node) settled(st *unix.Stat_t) {
	n.mu.Lock()
	if n.told.known && n.told.size == st.Size {
		n.told.mtime = st.Mtim
	}
	n.mu.Unlock()
}

// belief compares what the kernel was told with st.
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

// version tells a file's contents apart; zero is unlike all.
type version struct {
	size         int64
	mtime, ctime unix.Timespec
}

// coarsest is the largest step of a file system's clock in use: two changes
// within one leave the same times.
const coarsest = 2 * time.Second

// cacheFlags picks the kernel's cache for a new handle, when the backing is at
// st. Appends go to the backing's end, which the page cache does not know; a
// handle that only writes gains nothing from it.
func (h *handle) cacheFlags(flags uint32, st *unix.Stat_t) uint32 {
	switch {
	case writes(flags) && flags&unix.O_APPEND != 0:
		return fuse.FOPEN_DIRECT_IO
	case flags&unix.O_ACCMODE == unix.O_WRONLY:
		// The kernel sends writes of several threads at once, as long as nobody
		// has the file cached and none goes beyond its end.
		return fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES
	}
	n := h.node
	if n.stalled.Load() > 0 {
		// The kernel keeps an open that caches waiting until no write goes past
		// the cache, and so until this one has its session.
		return fuse.FOPEN_DIRECT_IO
	}
	now := version{size: st.Size, mtime: st.Mtim, ctime: st.Ctim}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cached == now {
		return fuse.FOPEN_KEEP_CACHE
	}
	n.cached = version{}
	if time.Since(time.Unix(st.Ctim.Unix())) > coarsest {
		h.fills.Store(&now)
	}
	return 0
}

// filling notes that the kernel fills its cache with what h was opened on. Not
// before: until OPEN is answered it has the old pages, and another open that
// kept them would read these.
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

// misfilled notes that the kernel has cached what the file does not hold, and has
// the next open drop it.
func (h *handle) misfilled() {
	h.fills.Store(nil)
	h.node.mu.Lock()
	h.node.cached = version{}
	h.node.mu.Unlock()
}
