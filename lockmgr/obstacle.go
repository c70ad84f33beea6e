package lockmgr

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// obstacle is what a request has to wait for on this mount.
type obstacle struct {
	slot  *slot
	lock  *lock    // held, or being given back; or it is nil and
	ahead *request // came before and wants the key too
}

// obstacle finds what keeps s from r, nil if r may ask the service for it. r's
// own lock there does not cover what it wants. m.mu is held.
func (m *Manager) obstacle(r *request, s *slot) *obstacle {
	var in *lock
	for _, l := range s.locks {
		if l.grant.Mode.Conflicts(r.Mode) && (l.owner != r.Owner || l.dying) {
			in = worse(in, l)
		}
	}
	if in != nil {
		return &obstacle{slot: s, lock: in}
	}
	for _, q := range s.queue {
		if q == r {
			break
		}
		// Who upgrades need not let those pass who would share with it so far:
		// they may stand in line, elsewhere, behind one who waits for it.
		if q.Mode.Conflicts(r.Mode) && !(q.Mode == Shared && r.upgrades(s)) || q.Owner == r.Owner {
			return &obstacle{slot: s, ahead: q}
		}
	}
	return m.rival(s.key)
}

// worse is the one of two locks that there is less use in waiting for.
func worse(a, b *lock) *lock {
	rank := func(l *lock) int {
		switch {
		case l == nil:
			return 0
		case l.dying:
			return 1
		case l.closing():
			return 2
		}
		return 3
	}
	if rank(a) < rank(b) {
		return b
	}
	return a
}

// rival finds a lock of another key that keeps key from being had. The service
// would find its entry too, but not before the request had waited; and a request
// that does not wait it would refuse for an entry that is being deleted.
func (m *Manager) rival(key Key) *obstacle {
	if o := m.dyingAbove(key); o != nil || key.Kind != Tree {
		return o
	}
	var in *lock
	for k, s := range m.slots {
		if k == key || !key.Conflicts(k) {
			continue
		}
		for _, l := range s.locks {
			in = worse(in, l)
		}
	}
	if in == nil {
		return nil
	}
	return &obstacle{slot: m.slots[in.grant.Key], lock: in}
}

// dyingAbove finds a directory at or above key's path whose entry is being
// given back.
func (m *Manager) dyingAbove(key Key) *obstacle {
	if m.trees == 0 || key.Kind == Inode {
		return nil
	}
	for path := key.Path; ; {
		if s := m.slots[Key{Tree, path}]; s != nil {
			if i := slices.IndexFunc(s.locks, func(l *lock) bool { return l.dying }); i >= 0 {
				return &obstacle{slot: s, lock: s.locks[i]}
			}
		}
		i := strings.LastIndexByte(path, '/')
		if i < 0 {
			return nil
		}
		path = path[:i]
	}
}

// another reports whether it is another owner that r waits for. m.mu is held.
func (o *obstacle) another(r *request) bool {
	if o.lock != nil {
		return !o.lock.dying
	}
	return o.ahead.Owner != r.Owner
}

// patience says how long r may wait for o, counted from when it first had to
// wait, and whether that is limited by more than its context.
func (m *Manager) patience(r *request, o *obstacle) (time.Duration, bool) {
	switch {
	case o.lock != nil && o.lock.dying:
		return m.cfg.AnswerTimeout, r.Wait == 0 // nobody has it: the service is to answer
	case o.lock != nil && (!r.Queue || r.Wait == 0):
		if o.lock.closing() {
			return m.cfg.CloseGrace, true
		}
		return 0, true
	}
	return m.cfg.CloseGrace, r.Wait == 0
}

// deadlocked reports whether r would wait for one who waits for it: who came
// before and wants for itself alone what r's owner shares, and does not let go.
func (r *request) deadlocked() bool {
	return slices.ContainsFunc(r.slots, func(s *slot) bool {
		before := s.queue[:slices.Index(s.queue, r)]
		return r.upgrades(s) && slices.ContainsFunc(before, func(q *request) bool {
			return q.Mode == Exclusive && q.Owner != r.Owner
		})
	})
}

// upgrades reports whether r's owner shares what r wants for its owner alone.
func (r *request) upgrades(s *slot) bool {
	return r.Mode == Exclusive && s.shareable(r) == nil &&
		slices.ContainsFunc(s.locks, func(l *lock) bool { return l.owner == r.Owner && !l.dying })
}

func (r *request) mayWaitForItself(o *obstacle) bool {
	return o.lock != nil && !o.lock.dying && r.Queue && r.SelfWait != nil && !r.asked
}

// refusal says why a wait for o is over. m.mu is held.
func (o *obstacle) refusal(why error) error {
	if o.lock != nil && o.lock.dying {
		// Nobody has it: the service does not answer that it let go.
		err := fmt.Errorf("%w: it does not answer the release of %s", ErrUnavailable, o.slot.key)
		if why != nil {
			err = fmt.Errorf("%w: %w", err, why)
		}
		return err
	}
	e := &ContendedError{Key: o.slot.key, Err: why}
	if o.lock != nil {
		e.Holder = o.lock.holder
	}
	return e
}
