package fs

import (
	"cmp"
	"slices"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lockfs/lockfs/lockmgr"
)

// What a call that fails has made of names is read from the volume, not from the call's
// answer: a rename is answered with EIO because the deadline has passed, or
// because a network volume's client gave up, and was made all the same. So the
// holds of its files get the locks of all names that these may have after the
// call before it, and give up those that the files do not have after it. Too
// many locks are safe.

// lockedName is a name, its lock, and the rule of its path.
type lockedName struct {
	dirName
	key  lockmgr.Key
	rule rule
}

// at returns the name d, whose path is path, to be locked as a kind.
func (f *FS) at(d dirName, path string, kind lockmgr.Kind) (n lockedName, err error) {
	n = lockedName{dirName: d, rule: f.rule(path)}
	if kind == lockmgr.Tree {
		n.key, err = lockmgr.TreeKey(path)
	} else {
		n.key, err = lockmgr.FileKey(path)
	}
	return n, err
}

// toLock returns the keys to be locked: of names, those of files with a rule to lock
// them and of all directories, for what is below may have one; and all others. Each is
// there once: one name may be known in two ways.
func toLock(names []lockedName, others []lockmgr.Key) (keys []lockmgr.Key) {
	for _, n := range names {
		if (n.rule.locked() || n.key.Kind == lockmgr.Tree) && !slices.Contains(keys, n.key) {
			keys = append(keys, n.key)
		}
	}
	for _, k := range others {
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	return keys
}

// fate is what a call may make of a file's names.
type fate struct {
	file        *node // nil if the kernel does not know it, so that nobody here has it open
	gets, loses *lockedName
	unsure      bool // that it succeeds does not tell
}

// changeNames runs a call that changes the names of files as the caller, under
// the locks of these names. The files' names are frozen.
func (f *FS) changeNames(in *fuse.InHeader, l *nameLock, call func() error, fates ...fate) fuse.Status {
	widened := make([][]*lockmgr.Hold, len(fates))
	for i, t := range fates {
		if t.file != nil && t.gets != nil {
			widened[i] = t.file.share(l.hold, t.gets.key)
		}
	}
	for _, t := range fates {
		if t.file != nil && t.gets == nil {
			f.letGo(t.file)
		}
	}
	over := true // what is not made now will not be
	s := whileHeld(l.hold, func() error {
		err := f.as(in, 0, call)
		over = err == nil || isRefusal(err) || f.backing.isLocal(l.names[0].dir.inode.dev)
		return err
	})
	for i, t := range fates {
		if t.file != nil {
			f.follow(t, widened[i], s.Ok() && !t.unsure, over)
		}
		if s.Ok() {
			f.nodes.answered(t)
		}
	}
	return s
}

// follow makes the node of a file, and its holds, follow the names that it has
// after a call. widened are the holds that were given the lock of the name that
// it gets. done: it succeeded under the locks of the names, so that nobody need ask what
// has become of them.
func (f *files) follow(t fate, widened []*lockmgr.Hold, done, over bool) {
	n := t.file
	got, lost := done && t.gets != nil, done && t.loses != nil
	if t.gets != nil && !got {
		is, err := f.backing.bears(n.inode, t.gets.dirName)
		if got = is; !is && err == nil && over {
			drop(widened, t.gets.key)
		}
	}
	if t.loses != nil && !lost {
		is, err := f.backing.bears(n.inode, t.loses.dirName)
		lost = !is && err == nil
	}
	if lost {
		drop(n.allHolds(), t.loses.key)
	}
	switch {
	case got && lost:
		f.nodes.renamed(n, t.loses.dirName, t.gets.dirName)
	case got:
		f.nodes.named(n, t.gets.dirName)
	case lost:
		f.nodes.unname(n, t.loses.dirName)
	}
}

func drop(holds []*lockmgr.Hold, k lockmgr.Key) {
	for _, h := range holds {
		h.Drop(k)
	}
}

// freezeNames keeps holds from being added to files that are about to get or to
// lose names, until the returned function is called.
func freezeNames(fates ...fate) (thaw func()) {
	var files []*node
	for _, t := range fates {
		if t.file != nil {
			files = append(files, t.file)
		}
	}
	slices.SortFunc(files, func(a, b *node) int { return cmp.Compare(a.id, b.id) })
	for _, n := range files {
		n.naming.Lock()
	}
	return func() {
		for _, n := range files {
			n.naming.Unlock()
		}
	}
}
