package lockmgr

import (
	"maps"
	"slices"
	"strings"
)

// table has the locks of this mount, and the requests that wait in line for them: queue.go. It knows
// nothing of the service, of kept locks and of delegations. All of it is GUARDED_BY(Manager.mu).
type table struct {
	slots map[Key]*slot
	trees int // the number of Tree keys in slots
	dirs  map[string]*dir
	steps int // counts wakes and what they examined, for tests
}

// slot is one key on this mount. All of it is GUARDED_BY(Manager.mu).
//
// INVARIANT: of two locks of different owners or of one mode, one is releasing or both are Shared.
// INVARIANT: it is in table.slots exactly while it has a lock or is queued for.
type slot struct {
	key         Key
	locks       []*lock           // releasing ones come last
	alive       int               // the number of locks that are not releasing
	exclusive   int               // the number of Exclusive locks
	owned       map[Owner][]*lock // locks by owner; nil for at most one lock
	first, last *place            // the requests for the key, in order of arrival
	youngest    map[Owner]*place  // the last request of each owner; nil until needed
	doubtful    [2]crowd          // by mode: requests that have not called SelfWait yet, because no owner of this mount has the key
	passages    map[Owner]*crowd  // requests of each owner that may pass one in line here once the owner has the key
	dir         *dir              // nil for an Inode key
}

func (t *table) tidy(s *slot) {
	if len(s.locks) > 0 || s.first != nil || t.slots[s.key] != s {
		return
	}
	delete(t.slots, s.key)
	if s.key.Kind == Tree {
		t.trees--
	}
	if s.dir != nil {
		delete(s.dir.slots, s)
		t.leaveDir(s.dir)
	}
}

func (t *table) add(s *slot, l *lock) {
	l.slot, l.at = s, len(s.locks)
	s.locks = append(s.locks, l)
	s.swap(l.at, s.alive)
	s.alive++
	if l.grant.Mode == Exclusive {
		s.exclusive++
	}
	if s.owned == nil && len(s.locks) > 1 {
		other := s.locks[1-l.at]
		s.owned = map[Owner][]*lock{other.owner: {other}}
	}
	if s.owned != nil {
		s.owned[l.owner] = append(s.owned[l.owner], l)
	}
	l.sess.locks[l] = struct{}{}
}

// of returns locks, among them all of o's.
func (s *slot) of(o Owner) []*lock {
	if s.owned == nil {
		return s.locks
	}
	return s.owned[o]
}

func (l *lock) stands() bool {
	s := l.slot
	return l.at < len(s.locks) && s.locks[l.at] == l
}

// remove takes out a lock that stands.
func (t *table) remove(l *lock) {
	s := l.slot
	s.putLast(l)
	last := len(s.locks) - 1
	s.swap(l.at, last)
	s.locks[last] = nil
	s.locks = s.locks[:last]
	if l.grant.Mode == Exclusive {
		s.exclusive--
	}
	if s.owned != nil {
		if left := slices.DeleteFunc(s.owned[l.owner], func(o *lock) bool { return o == l }); len(left) > 0 {
			s.owned[l.owner] = left
		} else {
			delete(s.owned, l.owner)
		}
		if len(s.locks) == 0 {
			s.owned = nil
		}
	}
	delete(l.sess.locks, l)
	t.wake(&l.waiting)
	t.tidy(s)
}

// holds returns those of all locks.
func (t *table) holds() map[*Hold]struct{} {
	holds := make(map[*Hold]struct{})
	for _, s := range t.slots {
		for _, l := range s.locks {
			maps.Copy(holds, l.holds)
		}
	}
	return holds
}

func (t *table) giveUp(l *lock) {
	l.releasing = true
	l.slot.putLast(l)
	t.wake(&l.waiting)
}

func (s *slot) swap(i, j int) {
	s.locks[i], s.locks[j] = s.locks[j], s.locks[i]
	s.locks[i].at, s.locks[j].at = i, j
}

func (s *slot) putLast(l *lock) {
	if l.at < s.alive {
		s.alive--
		s.swap(l.at, s.alive)
	}
}

// dir is a directory with slots in or below it, so that a request for the directory finds them.
type dir struct {
	path  string
	up    *dir
	slots map[*slot]struct{} // of names in it
	dirs  map[*dir]struct{}  // those in it
}

// parent splits off the last component; "" is the root.
func parent(path string) string { return path[:max(strings.LastIndexByte(path, '/'), 0)] }

func (t *table) dirOf(path string) *dir {
	path = parent(path)
	d := t.dirs[path]
	if d == nil {
		d = &dir{path: path, slots: make(map[*slot]struct{}), dirs: make(map[*dir]struct{})}
		t.dirs[path] = d
		if path != "" {
			d.up = t.dirOf(path)
			d.up.dirs[d] = struct{}{}
		}
	}
	return d
}

func (t *table) leaveDir(d *dir) {
	for d != nil && len(d.slots) == 0 && len(d.dirs) == 0 {
		delete(t.dirs, d.path)
		if d.up != nil {
			delete(d.up.dirs, d)
		}
		d = d.up
	}
}

// below calls visit for the slots in and below d until it returns false.
func (d *dir) below(visit func(*slot) bool) bool {
	for s := range d.slots {
		if !visit(s) {
			return false
		}
	}
	for sub := range d.dirs {
		if !sub.below(visit) {
			return false
		}
	}
	return true
}
