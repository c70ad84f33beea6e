package advisory

import (
	"maps"
	"math"
	"slices"
	"sort"
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

// Locks are the locks of any number of owners on one file. The zero value has none.
// INVARIANT: an owner's are in order, do not overlap, and are merged where they are alike.
type Locks struct {
	of           map[Owner][]Lock
	n, exclusive int // all of them, and those of them that are exclusive
}

// Clone returns a copy that changes by itself.
func (ls Locks) Clone() Locks {
	ls.of = maps.Clone(ls.of) // lists are never changed in place
	return ls
}

// Empty reports whether nobody has a lock.
func (ls Locks) Empty() bool { return len(ls.of) == 0 }

// Of returns an owner's locks, in order.
func (ls Locks) Of(o Owner) []Lock { return ls.of[o] }

// All returns all locks, in no order.
func (ls Locks) All() (all []Lock) {
	for _, list := range ls.of {
		all = append(all, list...)
	}
	return all
}

// Conflict returns a lock of another owner that conflicts with l.
func (ls Locks) Conflict(l Lock) (Lock, bool) {
	if !l.Exclusive && ls.exclusive == 0 {
		return Lock{}, false
	}
	for o, list := range ls.of {
		if o == l.Owner || o.Kind != l.Owner.Kind {
			continue
		}
		if by, ok := conflict(list, l); ok {
			return by, true
		}
	}
	return Lock{}, false
}

// conflict returns a lock of one owner's that conflicts with l.
func conflict(list []Lock, l Lock) (Lock, bool) {
	i := sort.Search(len(list), func(i int) bool { return l.Start <= list[i].End })
	for ; i < len(list) && list[i].Start <= l.End; i++ {
		if list[i].Conflicts(l) {
			return list[i], true
		}
	}
	return Lock{}, false
}

// Set gives the owner l, in place of what it has there. It does not look for conflicts.
func (ls *Locks) Set(l Lock) {
	list := cut(ls.of[l.Owner], l.Start, l.End)
	i, _ := slices.BinarySearchFunc(list, l.Start, func(o Lock, start uint64) int {
		if o.Start < start {
			return -1
		}
		return 1
	})
	if i < len(list) && l.meets(list[i]) {
		l.End = list[i].End
		list = slices.Delete(list, i, i+1)
	}
	if i > 0 && list[i-1].meets(l) {
		l.Start = list[i-1].Start
		i--
		list = slices.Delete(list, i, i+1)
	}
	ls.put(l.Owner, slices.Insert(list, i, l))
}

// meets reports whether next goes on where l ends, in the same mode.
func (l Lock) meets(next Lock) bool { return l.Exclusive == next.Exclusive && l.End+1 == next.Start }

// Clear takes from an owner what it has of a range.
func (ls *Locks) Clear(o Owner, start, end uint64) {
	ls.put(o, cut(ls.of[o], start, end))
}

// put makes list all that an owner has.
func (ls *Locks) put(o Owner, list []Lock) {
	ls.count(ls.of[o], -1)
	ls.count(list, 1)
	switch {
	case len(list) == 0:
		delete(ls.of, o)
		return
	case ls.of == nil:
		ls.of = make(map[Owner][]Lock)
	}
	ls.of[o] = list
}

func (ls *Locks) count(list []Lock, each int) {
	ls.n += each * len(list)
	for _, l := range list {
		if l.Exclusive {
			ls.exclusive += each
		}
	}
}

// cut returns a copy of list without a range.
func cut(list []Lock, start, end uint64) (left []Lock) {
	for _, l := range list {
		if l.End < start || l.Start > end {
			left = append(left, l)
			continue
		}
		if l.Start < start {
			before := l
			before.End = start - 1
			left = append(left, before)
		}
		if l.End > end {
			after := l
			after.Start = end + 1
			left = append(left, after)
		}
	}
	return left
}

// Has reports whether an owner has all of l already, in its mode.
func (ls Locks) Has(l Lock) bool {
	return slices.ContainsFunc(ls.of[l.Owner], func(o Lock) bool {
		return o.Exclusive == l.Exclusive && o.Start <= l.Start && l.End <= o.End
	})
}

// Len returns how many locks there are.
func (ls Locks) Len() int { return ls.n }
