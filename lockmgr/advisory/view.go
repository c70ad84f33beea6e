package advisory

import "slices"

// Waiter is a request that stands in line.
type Waiter struct {
	ID     string
	Lock   Lock
	Ticket int64 // requests with smaller ones came before
	Tries  bool  // it stands in line until it is known whether it can have its lock
}

// View is what stands for one file at a moment.
type View struct {
	Held []Lock   // of other mounts
	Mine Locks    // of this mount
	Line []Waiter // of all mounts, in order of their tickets

	last *Lock // of Mine, that Blocker has found: of a crowd each waits for the same
}

// Grant gives the owner l, in place of what it has there.
func (v *View) Grant(l Lock) {
	v.Mine.Set(l)
	v.last = nil
}

// Here returns a lock of this mount that keeps l from its owner. It looks first at what the owner
// has that was in the way before, if it is known: that makes no difference but in time.
func (v *View) Here(l Lock, before Owner) (Lock, bool) {
	if v.last != nil && v.last.Conflicts(l) {
		return *v.last, true
	}
	by, ok := v.Mine.conflictOf(before, l)
	if !ok {
		by, ok = v.Mine.Conflict(l)
	}
	if ok {
		v.last = &by
	}
	return by, ok
}

// Blocker returns a lock that keeps l from its owner, as Here does, of this mount's if it can.
func (v *View) Blocker(l Lock, before Owner) (Lock, bool) {
	if by, ok := v.Here(l, before); ok {
		return by, true
	}
	if i := slices.IndexFunc(v.Held, l.Conflicts); i >= 0 {
		return v.Held[i], true
	}
	return Lock{}, false
}

// Ahead returns the request whose turn it is before l's. Requests with the ticket or a larger one
// are not ahead.
func (v *View) Ahead(l Lock, ticket int64) (Waiter, bool) {
	for _, w := range v.Line {
		if w.Ticket >= ticket {
			break
		}
		if w.Lock.Conflicts(l) {
			if _, blocked := v.Blocker(w.Lock, Owner{}); !blocked {
				return w, true
			}
		}
	}
	return Waiter{}, false
}
