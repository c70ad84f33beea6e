package fs

import (
	"context"
	"slices"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Each inode that the kernel knows costs a descriptor. When descriptors run out, the kernel is
// asked to forget some.

type shedder struct {
	nodes *nodes
	prune func(ids []uint64) fuse.Status               // connection.prune
	drop  func(parent uint64, name string) fuse.Status // connection.dropName

	// local, unless nil, reports whether to look for removed files on a device: only this
	// machine's.
	local func(dev uint64) bool

	cannotPrune bool
	last        uint64   // the last node tried
	round       []uint64 // the nodes that the sweep has still to visit
}

func (f *FS) shedder() *shedder {
	s := &shedder{nodes: f.nodes, prune: f.kernel.prune, drop: f.kernel.dropName}
	if f.backing.local { // it does not hang
		s.local = f.backing.isLocal
	}
	return s
}

// run needs its own goroutine: a request may arrive under the lock for which drop waits.
func (s *shedder) run(ctx context.Context) {
	var due <-chan time.Time
	if s.local != nil {
		tick := time.NewTicker(sweepEvery)
		defer tick.Stop()
		due = tick.C
	}
	for {
		select {
		case <-s.nodes.crowd:
			s.shed()
		case <-due:
			s.sweep()
		case <-ctx.Done():
			return
		}
	}
}

// shed frees the excess nodes and a quarter more, except those in use. The next call tries others.
func (s *shedder) shed() {
	ids := s.candidates()
	if len(ids) == 0 {
		return
	}
	if !s.pruned(ids) {
		for _, id := range ids {
			if name, ok := s.nodes.droppable(id); ok {
				s.drop(name.dir.id, name.name)
			}
		}
	}
	s.last = ids[len(ids)-1]
}

// pruned asks the kernel to forget nodes; false: this kernel cannot be asked.
func (s *shedder) pruned(ids []uint64) bool {
	if !s.cannotPrune && s.prune(ids) == fuse.ENOSYS {
		s.cannotPrune = true
	}
	return !s.cannotPrune
}

// candidates are the oldest nodes not tried in this round.
func (s *shedder) candidates() []uint64 {
	t := s.nodes
	excess := t.pool.excess(t)
	t.mu.RLock()
	ids := make([]uint64, 0, len(t.byID))
	for id := range t.byID {
		if id != rootID {
			ids = append(ids, id)
		}
	}
	t.mu.RUnlock()
	slices.Sort(ids)
	next, found := slices.BinarySearch(ids, s.last)
	if found {
		next++
	}
	ids = append(ids[next:], ids[:next]...)
	return ids[:max(0, min(excess, len(ids)))]
}

// droppable returns the name of a node that the kernel may be made to forget. An open file may not:
// /proc would show it as deleted. Nor may a directory: it might be a working directory.
func (t *nodes) droppable(id uint64) (dirName, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	n := t.byID[id]
	if n == nil || n.parent == nil || n.dir || n.handles.Load() > 0 {
		return dirName{}, false
	}
	return dirName{n.parent, n.name}, true
}
