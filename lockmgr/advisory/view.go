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
}

// Blocker returns a lock that keeps l from its owner.
func (v *View) Blocker(l Lock) (Lock, bool) {
	if by, ok := v.Mine.Conflict(l); ok {
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
			if _, blocked := v.Blocker(w.Lock); !blocked {
				return w, true
			}
		}
	}
	return Waiter{}, false
}
