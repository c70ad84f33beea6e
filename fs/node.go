package fs

import (
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// inode identifies a file of the backing.
type inode struct{ dev, ino uint64 }

func inodeOf(st *unix.Stat_t) inode { return inode{st.Dev, st.Ino} }

// node is one inode the kernel knows, under the id it knows it by.
type node struct {
	id    uint64
	inode inode
	fd    int // O_PATH; closed when the kernel forgets the node

	// GUARDED_BY(nodes.mu)
	lookups uint64
	parent  *node // the directory and the name it was last looked up by;
	name    string
	retired bool // a lock was lost on it: it opens no more

	mu sync.Mutex
	// told is what the kernel believes of the file. GUARDED_BY(mu)
	told attributes
	// writers are the open handles that may write. GUARDED_BY(mu)
	writers map[*handle]struct{}
}

// attributes are those by which a change behind the kernel's back shows.
type attributes struct {
	known bool
	size  int64
	mtime unix.Timespec
}

func attributesOf(st *unix.Stat_t) attributes {
	return attributes{known: true, size: st.Size, mtime: st.Mtim}
}

// tell notes what a reply lets the kernel believe.
func (n *node) tell(st *unix.Stat_t) {
	n.mu.Lock()
	n.told = attributesOf(st)
	n.mu.Unlock()
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
// one it has is not ours, and stays to be found by the next open.
func (n *node) settled(st *unix.Stat_t) {
	n.mu.Lock()
	if n.told.known && n.told.size == st.Size {
		n.told.mtime = st.Mtim
	}
	n.mu.Unlock()
}

// fresh reports whether the kernel's belief agrees with st.
func (n *node) fresh(st *unix.Stat_t) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.told == attributesOf(st)
}

// lost reports whether one of the node's writers has lost its lock.
func (n *node) lost() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for h := range n.writers {
		if h.hold.Lost() {
			return true
		}
	}
	return false
}

func (n *node) addWriter(h *handle) {
	n.mu.Lock()
	if n.writers == nil {
		n.writers = make(map[*handle]struct{})
	}
	n.writers[h] = struct{}{}
	n.mu.Unlock()
}

func (n *node) removeWriter(h *handle) {
	n.mu.Lock()
	delete(n.writers, h)
	n.mu.Unlock()
}

// openWriters lists the node's writers.
func (n *node) openWriters() []*handle {
	n.mu.Lock()
	defer n.mu.Unlock()
	hs := make([]*handle, 0, len(n.writers))
	for h := range n.writers {
		hs = append(hs, h)
	}
	return hs
}

// nodes is the table of what the kernel knows. Ids are never used twice.
type nodes struct {
	mu      sync.RWMutex
	byID    map[uint64]*node
	byInode map[inode]*node // those that are not retired
	nextID  uint64
}

const rootID = 1

func newNodes(rootFD int, st *unix.Stat_t) *nodes {
	root := &node{id: rootID, inode: inodeOf(st), fd: rootFD, lookups: 1}
	return &nodes{
		byID:    map[uint64]*node{rootID: root},
		byInode: map[inode]*node{root.inode: root},
		nextID:  rootID + 1,
	}
}

// get returns the node of an id that the kernel used, nil if it has none.
func (t *nodes) get(id uint64) *node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byID[id]
}

// find returns the node of an inode, nil if the kernel knows none.
func (t *nodes) find(i inode) *node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byInode[i]
}

// learn returns the node for the file that fd was opened on as name in parent,
// counting one lookup. It takes fd over.
func (t *nodes) learn(parent *node, name string, fd int, st *unix.Stat_t) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := inodeOf(st)
	n := t.byInode[i]
	if n != nil && n.lost() {
		n.retired = true
		n = nil
	}
	if n != nil {
		unix.Close(fd)
	} else {
		n = &node{id: t.nextID, inode: i, fd: fd}
		t.nextID++
		t.byID[n.id] = n
		t.byInode[i] = n
	}
	n.lookups++
	if n.id != rootID {
		n.parent, n.name = parent, name
	}
	return n
}

// forget takes back count lookups of a node.
func (t *nodes) forget(id, count uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.byID[id]
	if n == nil || id == rootID {
		return
	}
	if n.lookups -= min(count, n.lookups); n.lookups > 0 {
		return
	}
	delete(t.byID, id)
	if t.byInode[n.inode] == n {
		delete(t.byInode, n.inode)
	}
	unix.Close(n.fd)
}

// renamed notes a node's new name.
func (t *nodes) renamed(n, parent *node, name string) {
	t.mu.Lock()
	n.parent, n.name = parent, name
	t.mu.Unlock()
}

// nameOf returns the name a node was last looked up by; none for the root.
func (t *nodes) nameOf(n *node) dirName {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return dirName{n.parent, n.name}
}

// isRetired reports whether n opens no more.
func (t *nodes) isRetired(n *node) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return n.retired
}

// path returns a node's path from the volume's root, "" for the root itself.
func (t *nodes) path(n *node) string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return n.path()
}

// pathIn returns the path of a name in a directory.
func (t *nodes) pathIn(dir *node, name string) string {
	if p := t.path(dir); p != "" {
		return p + "/" + name
	}
	return name
}

// path needs nodes.mu.
func (n *node) path() string {
	if n.parent == nil {
		return ""
	}
	var names []string
	for ; n.parent != nil; n = n.parent {
		names = append(names, n.name)
	}
	for i, j := 0, len(names)-1; i < j; i, j = i+1, j-1 {
		names[i], names[j] = names[j], names[i]
	}
	return strings.Join(names, "/")
}
