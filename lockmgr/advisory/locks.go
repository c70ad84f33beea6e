package advisory

import (
	"math"
	"time"
)

// Kind tells the locks apart that do not see each other.
type Kind uint8

const (
	// Posix is a range of fcntl(2), of a process or of an open file.
	Posix Kind = iota
	// Flock is flock(2)'s lock of the whole file.
	Flock
)

func (k Kind) String() string {
	if k == Flock {
		return "flock"
	}
	return "fcntl"
}

// Owner has locks, which do not conflict with each other. Comparable.
type Owner struct {
	Mount string // unique in the volume
	Kind  Kind
	ID    uint64 // the kernel's, unique in its mount while the owner lives
}

// EOF is the end of a lock that reaches to the end of the file, however long that gets.
const EOF = math.MaxInt64

// Lock is a lock that an owner has, or asks for.
type Lock struct {
	Owner      Owner
	Start, End uint64 // the first and the last byte; of a Flock 0 and EOF
	Exclusive  bool

	// For people.
	PID   int
	Comm  string
	Since time.Time
}

// Conflicts reports whether two locks cannot be had at the same time.
func (l Lock) Conflicts(o Lock) bool {
	return l.Owner.Kind == o.Owner.Kind && l.Owner != o.Owner && (l.Exclusive || o.Exclusive) &&
		l.Start <= o.End && o.Start <= l.End
}

// Same reports whether two locks are the same, whatever people are told of them.
func (l Lock) Same(o Lock) bool {
	return l.Owner == o.Owner && l.Start == o.Start && l.End == o.End && l.Exclusive == o.Exclusive
}

// Locks are the locks of any number of owners on one file. The zero value has none. A copy is
// another: neither sees what becomes of the other.
// INVARIANT: an owner's do not overlap, and are merged where they are alike.
type Locks struct {
	of [2]*tree // by Kind
}

// Empty reports whether nobody has a lock.
func (ls Locks) Empty() bool { return ls.Len() == 0 }

// Any reports whether an owner has any of a range.
func (ls Locks) Any(o Owner, start, end uint64) bool {
	last := ls.of[o.Kind].until(o, end)
	return last != nil && last.End >= start
}

// All returns all locks: by kind, of a kind by owner, and of an owner in order.
func (ls Locks) All() []Lock {
	return ls.of[Flock].all(ls.of[Posix].all(make([]Lock, 0, ls.Len())))
}

// Touching returns what an owner has that overlaps a range, in order.
func (ls Locks) Touching(o Owner, start, end uint64) []Lock {
	return ls.of[o.Kind].touching(o, start, end, nil)
}

// Conflict returns a lock of another owner that conflicts with l.
func (ls Locks) Conflict(l Lock) (Lock, bool) {
	return found(ls.of[l.Owner.Kind].conflict(&l, nil, nil))
}

// conflictOf returns a lock of one owner's that conflicts with l.
func (ls Locks) conflictOf(o Owner, l Lock) (Lock, bool) {
	return found(ls.of[o.Kind].conflictOf(o, &l))
}

func found(l *Lock) (Lock, bool) {
	if l == nil {
		return Lock{}, false
	}
	return *l, true
}

// Set gives the owner l, in place of what it has there. It does not look for conflicts.
func (ls *Locks) Set(l Lock) {
	before, after := ls.of[l.Owner.Kind].cut(l.Owner, l.Start, l.End)
	if last := before.last(); last != nil && last.meets(l) {
		l.Start = last.Start
		before, _ = before.split(l.Owner, last.Start)
	}
	if first := after.first(); first != nil && l.meets(*first) {
		l.End = first.End
		_, after = after.split(l.Owner, first.End+1)
	}
	ls.of[l.Owner.Kind] = before.join(newTree(l)).join(after)
}

// meets reports whether next goes on where l ends, of the same owner in the same mode.
func (l Lock) meets(next Lock) bool {
	return l.Owner == next.Owner && l.Exclusive == next.Exclusive && l.End+1 == next.Start
}

// Clear takes from an owner what it has of a range.
func (ls *Locks) Clear(o Owner, start, end uint64) {
	before, after := ls.of[o.Kind].cut(o, start, end)
	ls.of[o.Kind] = before.join(after)
}

// Has reports whether an owner has all of l already, in its mode.
func (ls Locks) Has(l Lock) bool {
	of := ls.of[l.Owner.Kind].until(l.Owner, l.Start)
	return of != nil && of.Exclusive == l.Exclusive && l.End <= of.End
}

// Len returns how many locks there are.
func (ls Locks) Len() (n int) {
	for _, t := range ls.of {
		if t != nil {
			n += t.n
		}
	}
	return n
}
