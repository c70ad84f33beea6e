package fs

import (
	"cmp"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/policy"
)

// A file without a rule to lock it has a hold without locks. A file must not move between locked
// and unlocked paths, by rename, link or with a directory: else somebody could write to a locked
// file without the lock. The same holds for paths with different flock rules.

// rule is what applies to one path: what the policy says, and otherwise what the mount says.
type rule struct {
	action policy.Action
	scope  policy.Scope
	wait   time.Duration // how long an open waits
	keep   *time.Duration
	flock  policy.Flock // whom flock and fcntl exclude
}

// rules find the rule that applies to a path.
type rules struct {
	policy *policy.Policy

	// What the mount says where the policy says nothing.
	scope policy.Scope
	wait  time.Duration
	flock policy.Flock
}

// rule asks the policy, once for a path that a request locks.
func (r *rules) rule(path string) rule {
	d := r.policy.Match(path)
	one := rule{action: d.Action, scope: cmp.Or(d.Scope, r.scope), wait: r.wait, keep: d.Keep, flock: cmp.Or(d.Flock, r.flock)}
	if d.Wait != nil {
		one.wait = *d.Wait
	}
	return one
}

func (r rule) locked() bool { return r.action != policy.NoLock }

func (r rule) readOnly() bool { return r.action == policy.ReadOnly }

// mayName refuses a new name that is too long, or at a read-only path.
func (f *locker) mayName(dir *node, name string) error {
	path, err := f.nodes.pathIn(dir, name)
	switch {
	case err == nil && len(path) > maxPath:
		return unix.ENAMETOOLONG
	case f.policy.Empty():
		return nil
	case err == nil && f.rule(path).readOnly():
		return unix.EROFS
	}
	return err
}

// fits refuses a new name whose path would be too long.
func (f *files) fits(d dirName) error {
	if path, err := f.nodes.pathIn(d.dir, d.name); err == nil && len(path) > maxPath {
		return unix.ENAMETOOLONG
	}
	return nil
}

// mayAlter refuses a change of the attributes of a read-only file.
func (f *locker) mayAlter(n *node) error {
	if f.policy.Empty() {
		return nil
	}
	// A file without a name has no rule.
	if path, err := f.nodes.path(n); err == nil && f.rule(path).readOnly() {
		return unix.EROFS
	}
	return nil
}

// mayMove refuses a move that changes how something is locked.
func (r *rules) mayMove(kind lockmgr.Kind, flags uint32, from, to lockedName) error {
	if r.policy.Empty() {
		return nil
	}
	same := true
	if kind == lockmgr.Tree {
		same = r.policy.SameBelow(from.key.Path, to.key.Path)
	}
	if kind == lockmgr.File || flags&unix.RENAME_EXCHANGE != 0 { // a file, or a file for a directory
		same = same && from.rule.locked() == to.rule.locked() && from.rule.flock == to.rule.flock
	}
	if !same {
		return unix.EXDEV // so that mv copies
	}
	return nil
}

// noteRead counts the policy's rules for a file that is only read as used.
func (f *locker) noteRead(n *node) {
	if f.policy.Empty() {
		return
	}
	if path, err := f.nodes.path(n); err == nil {
		f.policy.Match(path)
	}
}
