package fs

import (
	"slices"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// In rename(2) the kernel compares inodes: if both names lead to one, it answers success and
// sends no request. When another mount renames a file, this kernel believes the old name for
// cacheTimeout, or until the end of a call that is under way. If it found the same inode under
// the new name, a program that has lost a race for the file would be told that it has won.
//
// So a file that another mount has renamed is another node under its new name. The kernel keeps
// the former node until it has forgotten the old name and nobody uses the node any more. Both
// nodes have the same holds (ADR 0012).

// enterTries is how often a lookup follows a name that changes meanwhile.
const enterTries = 10

// enter looks name up and replies with its node.
func (f *files) enter(dir *node, name string, out *fuse.EntryOut) fuse.Status {
	d := dirName{dir, name}
	for range enterTries {
		fd, st, err := f.backing.look(d)
		f.seen(d, &st, err)
		if err != nil {
			return errno(err)
		}
		was := f.nodes.sighted(inodeOf(&st), d)
		if was.node != nil && !st.certain && f.isGone(was.node) {
			unix.Close(fd) // another file has its inode number
			f.nodes.supplant(was.node)
			continue
		}
		renamed := slices.ContainsFunc(was.names, func(o dirName) bool { return !f.isNamed(was.node, o) })
		if was.names != nil && !renamed && !f.isNamed(was.node, d) {
			unix.Close(fd) // it has been renamed since the look
			continue
		}
		if n := f.nodes.learnAfter(was, renamed, d, fd, &st); n != nil {
			if f.askedAnew(n) {
				_ = fstat(n.fd, &st.Stat_t)
			}
			f.entry(n, &st.Stat_t, out)
			return fuse.OK
		}
		unix.Close(fd)
	}
	return stale
}

// isGone reports whether the volume does not have a node's file any more.
func (f *files) isGone(n *node) bool {
	if !n.enter() {
		return true
	}
	defer n.leave()
	return f.with(n, func(fd int) error { return ask(fd) }) == unix.ESTALE
}

// sight is what a view knows of a file that was just found by a name. node is the file's node; nil:
// there is none. If the name is new to the kernel, names are the other names by which the kernel
// may remember the file.
type sight struct {
	node  *node
	names []dirName
}

// sighted returns what the kernel knows of a file that was found as d.
func (t *nodes) sighted(i inode, d dirName) sight {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.sightedLocked(i, d)
}

// sightedLocked needs mu.
func (t *nodes) sightedLocked(i inode, d dirName) sight {
	n := t.byInode[i]
	if n == nil || n.isShown(d) {
		return sight{node: n}
	}
	return sight{n, n.shownSince(time.Time{})}
}

// learnAfter is learn, unless what the kernel knows of the file has changed: then it returns
// nil, and does not take fd over. renamed: a name that the kernel knows is gone.
func (t *nodes) learnAfter(was sight, renamed bool, d dirName, fd int, st *stat) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.sightedLocked(inodeOf(st), d)
	if now.node != was.node || !slices.Equal(now.names, was.names) {
		return nil
	}
	if !renamed {
		return t.learnLocked(d, fd, st, nil)
	}
	file := was.node.held
	if file.lost() {
		t.retire(was.node)
		file = nil
	}
	was.node.former = true
	t.note(was.node)
	delete(t.byInode, was.node.inode)
	n := t.learnLocked(d, fd, st, file)
	if n.dir { // files below it keep their nodes, and the kernel may still mean them by the old path
		n.moved = time.Now()
		t.note(n)
	}
	return n
}

// succeed takes out a node that the kernel has forgotten. The newest of its file's other nodes
// takes its place. It needs mu.
func (t *nodes) succeed(n *node) {
	others := slices.DeleteFunc(n.nodes, func(o *node) bool { return o == n })
	n.nodes = others
	if t.byInode[n.inode] != n {
		return
	}
	delete(t.byInode, n.inode)
	if len(others) > 0 && !n.retired {
		next := others[len(others)-1]
		next.former = false
		t.byInode[n.inode] = next
		t.note(next)
	}
}

// shown is a name that the kernel was told, and when it was last.
type shown struct {
	dirName
	at time.Time
}

// maxShown is how many names of a file are remembered.
const maxShown = 8

// show notes a name that the kernel is told. It needs nodes.mu.
func (n *node) show(d dirName) {
	if n.hide(d); d.dir == nil { // made by O_TMPFILE
		return
	}
	n.shown = append(n.shown, shown{d, time.Now()})
	if len(n.shown) > maxShown {
		n.shown = slices.Clone(n.shown[1:])
	}
}

// hide notes that the kernel has dropped a name. It needs nodes.mu.
func (n *node) hide(d dirName) {
	n.shown = slices.DeleteFunc(n.shown, func(s shown) bool { return s.is(d) })
}

// shownSince returns the names that the kernel was told since then. It needs nodes.mu.
func (n *node) shownSince(then time.Time) (names []dirName) {
	for _, s := range n.shown {
		if s.at.After(then) {
			names = append(names, s.dirName)
		}
	}
	return names
}

// believed returns the names that the kernel uses without asking. A slow system call may use
// older ones.
func (t *nodes) believed(n *node) []dirName {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return n.shownSince(time.Now().Add(-oldName))
}

// maxMeant bounds the paths by which a file may be meant.
const maxMeant = 8

// pathsMeant returns the paths by which the kernel may know a file below directories that have
// just moved. There are none if they are too many.
func (t *nodes) pathsMeant(n *node) []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	since := time.Now().Add(-oldName)
	ways := []way{{from: n}} // from a directory on, each
	for range maxDepth {
		var paths []string
		var next []way
		for _, w := range ways {
			if w.from.id == rootID {
				if !slices.Contains(paths, w.path) {
					paths = append(paths, w.path)
				}
				continue
			}
			next = append(next, w.from.up(w.path, since)...)
		}
		if len(next) == 0 {
			return paths
		}
		for _, p := range paths {
			next = append(next, way{t.byID[rootID], p})
		}
		if ways = next; len(ways) > maxMeant {
			break
		}
	}
	return nil
}

// up returns the ways to what is below n by path, from the directories that n is in as far as
// the kernel knows. It needs nodes.mu.
func (n *node) up(path string, since time.Time) (ways []way) {
	add := func(d dirName) {
		w := way{d.dir, d.name}
		if path != "" {
			w.path += "/" + path
		}
		if d.dir != nil && !slices.Contains(ways, w) {
			ways = append(ways, w)
		}
	}
	for _, of := range n.nodes {
		add(dirName{of.parent, of.name})
		for _, d := range of.shownSince(since) {
			add(d)
		}
	}
	return ways
}

// mayBeMeant returns all names by which a request may mean a node.
func (t *nodes) mayBeMeant(n *node) []dirName {
	names := t.names(n)
	t.mu.RLock()
	defer t.mu.RUnlock()
	return append(names, n.shownSince(time.Time{})...)
}

// answered notes what the kernel does with its names after a successful answer. It knows
// nothing of a call that has failed and has changed them.
func (t *nodes) answered(c fate) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.loses == nil {
		return // a link, whose new name is looked up for the answer
	}
	if c.gets != nil && (c.file == nil || !c.file.isShown(c.loses.dirName)) {
		// The kernel does not know that the name leads to this file, and moves the one that
		// had the name before.
		had := t.lastShown(c.loses.dirName)
		had.follow(c)
		t.note(had)
	}
	c.file.follow(c)
	t.note(c.file)
}

// follow is answered for one node, which may be nil. It needs nodes.mu.
func (n *node) follow(c fate) {
	if n == nil {
		return
	}
	n.hide(c.loses.dirName)
	if c.gets != nil {
		n.show(c.gets.dirName)
	}
}

// isShown reports whether the kernel was told a name. It needs nodes.mu.
func (n *node) isShown(d dirName) bool {
	return slices.ContainsFunc(n.shown, func(s shown) bool { return s.is(d) })
}

// lastShown returns the node that the kernel was last told by a name. It looks at all nodes,
// and needs mu.
func (t *nodes) lastShown(d dirName) (last *node) {
	var at time.Time
	for _, n := range t.byID {
		for _, s := range n.shown {
			if s.is(d) && s.at.After(at) {
				last, at = n, s.at
			}
		}
	}
	return last
}

// isFormer reports whether the kernel has another node of n's file.
func (t *nodes) isFormer(n *node) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return n.former
}
