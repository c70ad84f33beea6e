package fs

import (
	"time"

	"golang.org/x/sys/unix"
)

// Until it looks again, the kernel keeps a file removed beside the view, and so our descriptor.

// A sweep takes a microsecond for each node: 0.2 % of a processor.
const (
	sweepEvery  = 5 * time.Second
	sweepAtOnce = 10000
)

// sweep makes the kernel forget some of the removed, unused files.
func (s *shedder) sweep() {
	if len(s.round) == 0 {
		s.round = s.nodes.files()
	}
	ids := s.round[:min(len(s.round), sweepAtOnce)]
	s.round = s.round[len(ids):]
	var removed []uint64
	for _, id := range ids {
		if s.removed(id) {
			removed = append(removed, id)
		}
	}
	if len(removed) == 0 || s.pruned(removed) {
		return
	}
	for _, id := range removed {
		if name, ok := s.nodes.droppable(id); ok && !s.reused(name) {
			s.drop(name.dir.id, name.name)
		}
	}
}

func (t *nodes) files() []uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	ids := make([]uint64, 0, len(t.byID))
	for id, n := range t.byID {
		if !n.dir {
			ids = append(ids, id)
		}
	}
	return ids
}

func (s *shedder) removed(id uint64) bool {
	n := s.nodes.get(id)
	if n == nil || n.handles.Load() > 0 || !s.local(n.inode.dev) || !n.enter() {
		return false
	}
	defer n.leave()
	var st unix.Stat_t
	return unix.Fstat(n.fd, &st) == nil && st.Nlink == 0
}

// reused reports whether the kernel knows another file by that name: it might be open.
func (s *shedder) reused(d dirName) bool {
	if !d.dir.enter() {
		return true
	}
	defer d.dir.leave()
	var st stat // of a local file system: its number identifies it
	switch unix.Fstatat(d.dir.fd, d.name, &st.Stat_t, unix.AT_SYMLINK_NOFOLLOW) {
	case nil:
		return s.nodes.find(inodeOf(&st)) != nil
	case unix.ENOENT:
		return false
	}
	return true
}
