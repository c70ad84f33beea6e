package advisory

import (
	"cmp"
	"math/rand/v2"
	"strings"
)

// tree has locks of one kind, in order of their owners and then of their bytes. Locks of one owner
// do not overlap. nil: none.
//
// INVARIANT: no tree is ever changed. A change makes a new one, which shares with the old one all
// but the way down to where it is. So whoever has a tree goes on to have what was in it.
type tree struct {
	lock        *Lock
	left, right *tree
	weight      uint32 // drawn by lot; nothing below weighs more (a treap): so few are below each other
	n           int    // locks
	exclusive   int    // of them
	start, end  uint64 // all of them are between
}

func newTree(l Lock) *tree {
	return (&tree{lock: &l, weight: rand.Uint32()}).with(nil, nil)
}

// with returns t with others below it.
func (t *tree) with(left, right *tree) *tree {
	l := t.lock
	with := &tree{lock: l, left: left, right: right, weight: t.weight, n: 1, start: l.Start, end: l.End}
	if l.Exclusive {
		with.exclusive = 1
	}
	for _, below := range [...]*tree{left, right} {
		if below != nil {
			with.n += below.n
			with.exclusive += below.exclusive
			with.start, with.end = min(with.start, below.start), max(with.end, below.end)
		}
	}
	return with
}

// compare tells where a lock of the owner that begins at start is, beside l.
func (l *Lock) compare(o Owner, start uint64) int {
	if l.Owner.ID == o.ID && l.Owner.Mount == o.Mount {
		return cmp.Compare(start, l.Start)
	}
	return cmp.Or(cmp.Compare(o.ID, l.Owner.ID), strings.Compare(o.Mount, l.Owner.Mount))
}

// split returns what is before a lock of the owner that begins at start, and the rest.
func (t *tree) split(o Owner, start uint64) (before, rest *tree) {
	switch {
	case t == nil:
		return nil, nil
	case t.lock.compare(o, start) <= 0:
		before, rest = t.left.split(o, start)
		return before, t.with(rest, t.right)
	default:
		before, rest = t.right.split(o, start)
		return t.with(t.left, before), rest
	}
}

// join returns what is in both. All of t is before all of after.
func (t *tree) join(after *tree) *tree {
	switch {
	case t == nil:
		return after
	case after == nil:
		return t
	case t.weight >= after.weight:
		return t.with(t.left, t.right.join(after))
	default:
		return after.with(t.join(after.left), after.right)
	}
}

func (t *tree) first() *Lock {
	if t == nil {
		return nil
	}
	for t.left != nil {
		t = t.left
	}
	return t.lock
}

func (t *tree) last() *Lock {
	if t == nil {
		return nil
	}
	for t.right != nil {
		t = t.right
	}
	return t.lock
}

// until returns the last lock of an owner that begins at start or before.
func (t *tree) until(o Owner, start uint64) (last *Lock) {
	for t != nil {
		if t.lock.compare(o, start) < 0 {
			t = t.left
		} else {
			last, t = t.lock, t.right
		}
	}
	if last == nil || last.Owner != o {
		return nil
	}
	return last
}

// cut returns what is before an owner's bytes, and what is after them. What it has there is left out.
func (t *tree) cut(o Owner, start, end uint64) (before, after *tree) {
	before, rest := t.split(o, start)
	within, after := rest.split(o, end+1)
	last := within.last()
	if l := before.last(); l != nil && l.Owner == o && l.End >= start {
		left := *l
		left.End = start - 1
		before, _ = before.split(o, l.Start)
		before = before.join(newTree(left))
		if last == nil {
			last = l
		}
	}
	if last != nil && last.End > end {
		left := *last
		left.Start = end + 1
		after = newTree(left).join(after)
	}
	return before, after
}

// conflict returns a lock that conflicts with l. The locks just before and after the tree are of the
// owners from and to; nil: there is none. So what l's owner has is passed over.
func (t *tree) conflict(l *Lock, from, to *Owner) *Lock {
	if !t.near(l) || from != nil && to != nil && *from == l.Owner && *to == l.Owner {
		return nil
	}
	if by := t.left.conflict(l, from, &t.lock.Owner); by != nil {
		return by
	}
	if t.lock.Conflicts(*l) {
		return t.lock
	}
	return t.right.conflict(l, &t.lock.Owner, to)
}

// conflictOf returns a lock of one owner that conflicts with l.
func (t *tree) conflictOf(o Owner, l *Lock) *Lock {
	if !t.near(l) {
		return nil
	}
	at := t.lock.compare(o, t.lock.Start)
	if at <= 0 {
		if by := t.left.conflictOf(o, l); by != nil || at < 0 {
			return by
		}
	}
	if at == 0 && t.lock.Conflicts(*l) {
		return t.lock
	}
	return t.right.conflictOf(o, l)
}

// near reports whether anything may conflict with l.
func (t *tree) near(l *Lock) bool {
	return t != nil && t.start <= l.End && l.Start <= t.end && (l.Exclusive || t.exclusive > 0)
}

// touching appends an owner's locks that overlap a range to list, in order.
func (t *tree) touching(o Owner, start, end uint64, list []Lock) []Lock {
	if t == nil {
		return list
	}
	if t.lock.compare(o, start) < 0 { // else those before end before start
		list = t.left.touching(o, start, end, list)
	}
	if t.lock.compare(o, end) < 0 {
		return list
	}
	if t.lock.Owner == o && t.lock.End >= start {
		list = append(list, *t.lock)
	}
	return t.right.touching(o, start, end, list)
}

// all appends the locks to list, in order.
func (t *tree) all(list []Lock) []Lock {
	if t == nil {
		return list
	}
	return t.right.all(append(t.left.all(list), *t.lock))
}
