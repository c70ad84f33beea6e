package kubelease

import (
	"slices"

	"github.com/lockfs/lockfs/lockmgr"
)

// state is the Leases of a volume: each as it was at the revision asOf, or later. A Lease
// that was put up to asOf and is not in it was removed.
type state struct {
	names   layout
	objects map[string]*object
	asOf    int64
	buried  map[string]bool // names of sessions and pulses known to be gone before asOf shows it
}

// ended reports whether the session of an entry that was put at token has ended.
// Ids are never used again, and a session is older than its entries.
func (s *state) ended(id string, token int64) bool {
	name := s.names.session(id)
	return s.buried[name] || s.asOf >= token && s.objects[name] == nil
}

func (s *state) lives(e *entry) bool { return !s.ended(e.Session, e.Token) }

// obstacle is an entry in the way of an acquisition.
type obstacle struct {
	object string // the name of its Lease
	wants  lockmgr.Key
	entry  entry
}

// inLine returns the entries of o before index at that are in e's way, the oldest first.
func (s *state) inLine(o *object, at int, e *entry) (ahead []obstacle) {
	if o == nil {
		return nil
	}
	for i := range o.entries[:at] {
		if other := &o.entries[i]; other.inWayOf(e) && s.lives(other) {
			ahead = append(ahead, obstacle{o.name, e.key, *other})
		}
	}
	return ahead
}

// across returns the entries of directories in the way of a file, or those of
// files in the way of a directory, whenever they were put.
func (s *state) across(e *entry) (found []obstacle) {
	add := func(o *object) {
		for i := range o.entries {
			if other := &o.entries[i]; other.inWayOf(e) && s.lives(other) {
				found = append(found, obstacle{o.name, e.key, *other})
			}
		}
	}
	switch e.key.Kind {
	case lockmgr.File:
		if o := s.objects[s.names.tree()]; o != nil {
			add(o)
		}
	case lockmgr.Tree:
		for _, o := range s.objects {
			if o.kind == kindFile {
				add(o)
			}
		}
		slices.SortFunc(found, func(x, y obstacle) int { return int(x.entry.Token - y.entry.Token) })
	}
	return found
}

// broken returns why a Lease that decides about k cannot be read, or nil.
func (s *state) broken(k lockmgr.Key) error {
	for _, name := range []string{s.names.lock(k), s.names.tree()} {
		if o := s.objects[name]; o != nil && o.broken != nil {
			return o.broken
		}
	}
	return nil
}
