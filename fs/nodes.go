package fs

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/journal"
)

type nodes struct {
	mu      sync.RWMutex
	byID    map[uint64]*node
	byInode map[inode]*node // except retired and former ones
	nextID  uint64

	resolve func(path string, how asking) (fd int, st stat, err error) // constant: backing's

	count  atomic.Int64 // len(byID)
	pool   *Pool        // which has joined it
	closer closer
	crowd  chan struct{} // receives when some nodes must be shed
	record *journal.Part // constant; see record.go
}

const rootID = 1

func newNodes(rootFD int, i inode, pool *Pool) *nodes {
	root := &node{id: rootID, inode: i, fd: rootFD, dir: true, lookups: 1, held: &held{id: rootID}}
	root.uses.begin()
	// Ids begin at a random number: a file handle (name_to_handle_at) has the node's id, and a
	// handle from an earlier mount must not lead to another file here.
	t := &nodes{
		byID:    map[uint64]*node{rootID: root},
		byInode: map[inode]*node{root.inode: root},
		nextID:  rootID + 1 + rand.Uint64N(1<<62),
		pool:    pool,
		closer:  closer{pool: pool},
		crowd:   make(chan struct{}, 1),
	}
	root.closer = &t.closer
	t.count.Store(1)
	pool.join(t)
	return t
}

func (t *nodes) len() int { return int(t.count.Load()) }

func (t *nodes) get(id uint64) *node {
	t.mu.RLock()
	n := t.byID[id]
	t.mu.RUnlock()
	if n != nil && n.gone.Load() {
		return t.returned(n)
	}
	return n
}

func (t *nodes) find(i inode) *node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byInode[i]
}

// newest returns the node by which n's file is found: n may be a former one.
func (t *nodes) newest(n *node) *node {
	if found := t.find(n.inode); found != nil {
		return found
	}
	return n
}

// learn returns the node of fd, opened as name in parent, and counts one lookup. It takes fd over.
func (t *nodes) learn(parent *node, name string, fd int, st *stat) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.learnLocked(dirName{parent, name}, fd, st, nil)
}

// learnLocked is learn. It needs mu. If file is not nil, a new node is one more node of that file.
func (t *nodes) learnLocked(d dirName, fd int, st *stat, file *held) *node {
	i := inodeOf(st)
	n := t.byInode[i]
	if n != nil && n.lost() {
		t.retire(n)
		n, file = nil, nil
	}
	if n != nil {
		unix.Close(fd)
	} else {
		if file == nil {
			file = &held{id: t.nextID}
		}
		n = &node{id: t.nextID, inode: i, fd: fd, dir: st.Mode&unix.S_IFMT == unix.S_IFDIR, certain: st.certain, held: file}
		n.uses.begin()
		n.closer = &t.closer
		t.nextID++
		t.byID[n.id] = n
		if d.dir != nil && d.dir.gone.Load() {
			n.gone.Store(true)
		} else {
			t.byInode[i] = n
		}
		file.nodes = append(file.nodes, n)
		t.count.Add(1)
		t.pool.used.Add(1)
		t.noteFD(n)
	}
	t.pool.relieve()
	n.lookups++
	t.noteLookups(n)
	if n.id != rootID {
		known := n.lookups > 1 && n.isShown(d) && d.is(dirName{n.parent, n.name}) // recorded so
		last := dirName{n.parent, n.name}
		switch {
		case last.dir == nil || last.is(d):
		case hasMoreNames(&st.Stat_t):
			n.alias = last
		default: // another mount has renamed it
			n.moved = time.Now()
		}
		n.parent, n.name = d.dir, d.name
		n.show(d)
		if !known {
			t.note(n)
		}
	}
	return n
}

func (t *nodes) forget(id, count uint64) {
	t.mu.Lock()
	n := t.byID[id]
	if n == nil || id == rootID {
		t.mu.Unlock()
		return
	}
	n.lookups -= min(count, n.lookups)
	last := n.lookups == 0
	if last {
		t.unnote(n)
		delete(t.byID, id)
		t.count.Add(-1)
		t.succeed(n)
	} else {
		t.noteLookups(n)
	}
	t.mu.Unlock()
	if last {
		n.leavePast()
		n.leave()
		t.pool.used.Add(-1)
		t.pool.freed()
	}
}

func (t *nodes) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.byID {
		n.leavePast()
		if n.uses.leave() {
			unix.Close(n.fd)
		}
	}
	clear(t.byID)
	clear(t.byInode)
	t.pool.leave(t)
	t.count.Store(0)
}

func (t *nodes) renamed(n *node, from, to dirName) {
	t.mu.Lock()
	if last := (dirName{n.parent, n.name}); !last.is(from) && last.dir != nil {
		n.alias = last // a file with several names has lost another
	}
	n.parent, n.name, n.moved = to.dir, to.name, time.Now()
	t.note(n)
	t.mu.Unlock()
}

func (t *nodes) named(n *node, d dirName) {
	t.mu.Lock()
	if last := (dirName{n.parent, n.name}); !last.is(d) && last.dir != nil {
		n.alias = last
	}
	n.parent, n.name = d.dir, d.name
	t.note(n)
	t.mu.Unlock()
}

// oldName is how long the kernel may use a name that another mount has renamed: until the next
// lookup.
const oldName = cacheTimeout

// meaning returns a node's name and path, and whether an open of the node may mean another file or
// path. file is what is known of the node's file. All three are of one instant: the proof finds a
// rename that comes later.
func (t *nodes) meaning(n *node, file *stat) (at dirName, path string, doubtful bool, err error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	path, err = n.path()
	return dirName{n.parent, n.name}, path, n.mayMeanAnother(file), err
}

// mayMeanAnother reports whether a request for n, known as file, may mean another file or path.
func (t *nodes) mayMeanAnother(n *node, file *stat) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return n.mayMeanAnother(file)
}

// mayMeanAnother needs nodes.mu.
func (n *node) mayMeanAnother(file *stat) bool {
	if n.former || n.alias.dir != nil || hasMoreNames(&file.Stat_t) || n.justMoved() {
		return true
	}
	name, since := dirName{n.parent, n.name}, time.Now().Add(-oldName)
	return slices.ContainsFunc(n.shown, func(s shown) bool { return s.at.After(since) && !s.is(name) })
}

// justMoved reports whether an open may mean n by a former path. It needs nodes.mu.
func (n *node) justMoved() bool {
	for range maxDepth {
		if n == nil || time.Since(n.moved) < oldName {
			break
		}
		n = n.parent
	}
	return n != nil
}

// dirJustMoved is justMoved for the directory that n was last looked up in.
func (t *nodes) dirJustMoved(n *node) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return n.parent.justMoved()
}

func (t *nodes) unname(n *node, gone dirName) {
	t.mu.Lock()
	switch {
	case n.alias.dir == nil:
	case n.alias.is(gone):
		n.alias = dirName{}
	case gone.is(dirName{n.parent, n.name}):
		n.parent, n.name, n.alias = n.alias.dir, n.alias.name, dirName{}
	}
	t.note(n)
	t.mu.Unlock()
}

// relocated notes the whole path at which a node was found.
func (t *nodes) relocated(n *node, path string) {
	t.mu.Lock()
	n.parent, n.name, n.moved = t.byID[rootID], path, time.Now()
	t.note(n)
	t.mu.Unlock()
}

// names returns the names by which a node was known last. The file may have lost them since.
func (t *nodes) names(n *node) []dirName {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.DeleteFunc([]dirName{{n.parent, n.name}, n.alias}, func(d dirName) bool { return d.dir == nil })
}

// nameOf returns the name of a node's last lookup; zero for the root.
func (t *nodes) nameOf(n *node) dirName {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return dirName{n.parent, n.name}
}

// usable reports whether a node may be opened. After the loss of a lock it may not: the kernel
// would write the lost handle's dirty pages through a new handle. The next lookup makes another
// node.
func (t *nodes) usable(n *node) bool {
	t.mu.RLock()
	retired := n.retired
	t.mu.RUnlock()
	if retired || !n.lost() {
		return !retired
	}
	t.mu.Lock()
	t.retire(n)
	t.mu.Unlock()
	return false
}

// supplant retires a node whose inode number has become another file's.
func (t *nodes) supplant(n *node) {
	t.mu.Lock()
	t.retire(n)
	t.mu.Unlock()
}

// retire takes a node out of use: no lookup finds it any more. Its holds are lost, because they
// could no longer follow the file's names. It needs nodes.mu.
func (t *nodes) retire(n *node) {
	n.retired = true
	for _, h := range n.allHolds() {
		h.Void()
	}
	if t.byInode[n.inode] == n {
		delete(t.byInode, n.inode)
	}
	t.note(n)
}

// maxPath bounds new paths, in bytes. Longer ones, moved or foreign, can be used and removed.
const maxPath = 8191

// maxDepth ends walks: renames elsewhere can make the known names a circle.
const maxDepth = 1 << 15

// path is from the volume's root, "" for the root. ESTALE: the names do not lead to the root.
func (t *nodes) path(n *node) (string, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return n.path()
}

// path needs nodes.mu.
func (n *node) path() (string, error) {
	var names []string
	for ; n.parent != nil; n = n.parent {
		if names = append(names, n.name); len(names) > maxDepth {
			return "", unix.ESTALE
		}
	}
	if n.id != rootID {
		return "", unix.ESTALE // made by O_TMPFILE
	}
	slices.Reverse(names)
	return strings.Join(names, "/"), nil
}

// pathIn returns the path of a name in a directory. It fails as path does.
func (t *nodes) pathIn(dir *node, name string) (string, error) {
	p, err := t.path(dir)
	return join(p, name), err
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}
