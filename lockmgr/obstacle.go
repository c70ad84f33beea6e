package lockmgr

import (
	"fmt"
	"slices"
	"time"
)

// obstacle is what a request waits for on this mount: a lock, an earlier request, or both.
type obstacle struct {
	lock  *lock
	ahead *place // the nearest
}

func (o *obstacle) key() Key {
	if o.lock != nil {
		return o.lock.grant.Key
	}
	return o.ahead.slot.key
}

// obstacle finds what blocks p; nil: p may ask the service. p can share no lock there. m.mu is
// held.
func (m *Manager) obstacle(p *place) *obstacle {
	var in *lock
	if p.Mode == Exclusive || p.slot.exclusive > 0 {
		for _, l := range p.slot.locks {
			m.table.steps++
			if l.grant.Mode.Conflicts(p.Mode) && (l.owner != p.Owner || l.releasing) {
				in = worse(in, l)
			}
			if in.rank() == worst || in != nil && l.releasing { // the rest is releasing
				break
			}
		}
	}
	if ahead := p.before(); in != nil || ahead != nil {
		return &obstacle{lock: in, ahead: ahead}
	}
	return m.rival(p.slot.key)
}

func (l *lock) rank() int {
	switch {
	case l == nil:
		return 0
	case l.deleting():
		return 1
	case l.closing():
		return 2
	}
	return worst
}

const worst = 3

// deleting reports whether the lock only waits for the service to delete its entry.
func (l *lock) deleting() bool { return l.releasing && !l.surrendering }

func worse(a, b *lock) *lock {
	if a.rank() < b.rank() {
		return b
	}
	return a
}

// rival finds a conflicting lock of another key. The service would find its entry too, if it has
// one, but would refuse a request that does not wait, even while the entry is being deleted.
func (m *Manager) rival(key Key) *obstacle {
	if d := m.endingFor(key); d != nil {
		return &obstacle{lock: d.lock}
	}
	if m.table.trees > 0 && key.Kind != Inode { // a directory at or above the path whose lock is being released, or has no entry
		for path := key.Path; path != ""; path = parent(path) {
			if s := m.table.slots[Key{Tree, path}]; s != nil {
				if i := slices.IndexFunc(s.locks, func(l *lock) bool { return l.releasing || l.below != nil }); i >= 0 {
					return &obstacle{lock: s.locks[i]}
				}
			}
		}
	}
	if key.Kind != Tree {
		return nil
	}
	var in *lock
	consider := func(s *slot) bool {
		if l := s.idleLock(); l != nil {
			m.giveIdleBack(l)
		}
		for _, l := range s.locks {
			m.table.steps++
			if in = worse(in, l); in.rank() == worst {
				return false
			}
		}
		return true
	}
	found := []*slot{m.table.slots[Key{File, key.Path}]}
	for path := parent(key.Path); path != ""; path = parent(path) {
		found = append(found, m.table.slots[Key{Tree, path}])
	}
	for _, s := range found {
		if s != nil {
			consider(s)
		}
	}
	if d := m.table.dirs[key.Path]; d != nil && in.rank() < worst {
		d.below(consider)
	}
	if in == nil {
		return nil
	}
	return &obstacle{lock: in}
}

// another reports whether r waits for another owner. m.mu is held.
func (o *obstacle) another(r *request) bool {
	if o.lock != nil && !o.lock.deleting() {
		return true
	}
	return o.ahead != nil && o.ahead.Owner != r.Owner
}

// releasing reports whether the request waits only for the service to release a lock.
func (o *obstacle) releasing() bool { return o.ahead == nil && o.lock != nil && o.lock.deleting() }

// patience says how long r may wait for o, from its first wait, and whether more than ctx limits
// that.
func (m *Manager) patience(r *request, o *obstacle) (time.Duration, bool) {
	switch {
	case o.releasing():
		return m.answerTime(), r.Wait == 0 // the lock is free once the service answers
	case o.lock != nil && !o.lock.deleting() && (r.Wait == 0 || !r.Queue && !o.briefly(r)):
		if o.lock.closing() {
			return m.cfg.CloseGrace, true
		}
		return 0, true
	}
	return m.cfg.CloseGrace, r.Wait == 0
}

// briefly reports whether r waits for a system call that changes a directory above: it needs nothing
// of r's to end.
func (o *obstacle) briefly(r *request) bool {
	return o.lock.grant.Key.Kind == Tree && r.places[0].slot.key.Kind != Tree
}

// deadlocked reports whether r upgrades a key that an earlier Exclusive request waits for.
func (r *request) deadlocked() bool {
	return slices.ContainsFunc(r.places, func(p *place) bool {
		if !r.upgrades(p.slot) {
			return false
		}
		q := p.exclusive()
		for q != nil && q.Owner == r.Owner {
			q = q.exclusive()
		}
		return q != nil
	})
}

// upgrades reports whether r wants Exclusive what its owner has Shared.
func (r *request) upgrades(s *slot) bool {
	return r.Mode == Exclusive && s.shareable(r) == nil &&
		slices.ContainsFunc(s.of(r.Owner), func(l *lock) bool { return l.owner == r.Owner && !l.releasing })
}

// mayWaitForItself reports whether to call r.SelfWait: another owner of this mount has a key.
func (r *request) mayWaitForItself() bool {
	return r.Queue && r.SelfWait != nil && !r.asked && slices.ContainsFunc(r.places, func(p *place) bool {
		return slices.ContainsFunc(p.slot.locks[:p.slot.alive], func(l *lock) bool {
			return l.idle == nil && l.owner != r.Owner && l.grant.Mode.Conflicts(r.Mode)
		})
	})
}

func (o *obstacle) refusal(why error) error {
	if o.releasing() {
		err := fmt.Errorf("%w: the release of %s was not answered", ErrUnavailable, o.key())
		if why != nil {
			err = fmt.Errorf("%w: %w", err, why)
		}
		return err
	}
	e := &ContendedError{Key: o.key(), Err: why}
	if o.lock != nil && !o.lock.deleting() {
		e.Holder = o.lock.holder
	}
	return e
}
