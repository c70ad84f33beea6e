package policy

import (
	"cmp"
	"slices"
)

// Terms are what the mounts of a volume agree on.
type Terms struct {
	Policy *Policy
	Flock  Flock // of the paths for which Policy does not say it; empty: FlockLocal
}

// Digest is Policy.Digest.
func (t Terms) Digest() string { return t.Policy.Digest(t.Flock) }

// at returns what holds for a path, with scope if no rule says one.
func (t Terms) at(path string, scope Scope) Decision {
	d := t.Policy.Match(path)
	d.Scope = cmp.Or(d.Scope, scope)
	d.Flock = cmp.Or(d.Flock, t.Flock, FlockLocal)
	return d
}

func (t Terms) sharesFlocks() bool { return t.Flock == FlockCluster || t.Policy.SharesFlocks() }

// both are the terms of a mount that enforces two.
type both struct {
	next, former Terms
	scope        Scope // of the mount
}

// Both returns the policy of a mount that enforces two, while a volume's policy changes from former to
// next. Beside a mount of either, the mount keeps all that this one promises: what one of them locks
// is locked, what one makes read-only is so, the smaller circle shares a lock, and flock excludes the
// larger one. Wait and Keep are next's, but for a path that only former locks. scope is the mount's.
func Both(next, former Terms, scope Scope) *Policy {
	return &Policy{both: &both{next, former, scope}}
}

// strength orders the actions by what they refuse.
var strength = []int{NoLock: 0, Lock: 1, ReadOnly: 2}

// circles orders the scopes by how many callers are one owner.
var circles = []Scope{ScopeHandle, ScopeProcess, ScopeAuto, ScopePod, ScopeNode}

func (b *both) match(path string) Decision {
	next, former := b.next.at(path, b.scope), b.former.at(path, b.scope)
	d := next
	switch {
	case strength[former.Action] > strength[next.Action]:
		d = former
	case former.Action == next.Action && slices.Index(circles, former.Scope) < slices.Index(circles, next.Scope):
		d.Scope = former.Scope
	}
	if next.Flock == FlockCluster || former.Flock == FlockCluster {
		d.Flock = FlockCluster
	}
	return d
}
