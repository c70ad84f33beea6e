package fs

import (
	"cmp"
	"slices"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lockfs/lockfs/lockmgr"
)

// A rename that fails with EIO may have been made: a deadline passed, or the volume's client gave
// up. So before the call, holds get the locks of all names that their files may have. After it, the
// volume says which names they have, and the other locks are given up.

// fate is what a call may do to a file's names.
type fate struct {
	file        *node // nil: the kernel does not know it, so it is not open here
	gets, loses *lockedName
	unsure      bool // even if the call succeeds, the names may not have changed
}

// changeNames runs call with the caller's rights. l has the locks of the frozen names.
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
	over := true // the volume cannot make the change later, if it has not made it yet
	s := f.whileHeldAs(in, l.hold, func() error {
		err := call()
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

// follow updates a file's node and holds after a call. widened are the holds given the new name's
// lock. done: the call has succeeded. over: the volume cannot make the change later, if it has not
// made it yet.
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

// freezeNames keeps files from getting new holds until thaw is called. Calls that freeze the same
// files do so in one order, whatever nodes they know them by.
func freezeNames(fates ...fate) (thaw func()) {
	var files []*held
	for _, t := range fates {
		if t.file != nil {
			files = append(files, t.file.held)
		}
	}
	slices.SortFunc(files, func(a, b *held) int { return cmp.Compare(a.id, b.id) })
	for _, f := range files {
		f.naming.Lock()
	}
	return func() {
		for _, f := range files {
			f.naming.Unlock()
		}
	}
}
