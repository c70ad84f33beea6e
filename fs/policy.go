package fs

import (
	"cmp"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/policy"
)

// A file that needs no lock is opened, made and removed like any other, with a hold without
// locks. A file must not get from a path that is locked to one that is not, nor back: by
// rename, by link, or with a directory above it. Else somebody could write to a locked file
// without the lock.

// rule is what holds for one path: the policy's word, or the mount's where the policy
// has none.
type rule struct {
	action policy.Action
	scope  policy.Scope
	wait   time.Duration // how long an open waits
	keep   *time.Duration
}

// rule asks the policy, once for a path that a request locks.
func (f *FS) rule(path string) rule {
	d := f.policy.Match(path)
	r := rule{action: d.Action, scope: cmp.Or(d.Scope, f.scope), wait: f.wait, keep: d.Keep}
	if d.Wait != nil {
		r.wait = *d.Wait
	}
	return r
}

func (r rule) locked() bool { return r.action != policy.NoLock }

func (r rule) readOnly() bool { return r.action == policy.ReadOnly }

// mayName refuses a new name that is too long, or at a read-only path.
func (f *FS) mayName(dir *node, name string) error {
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

// fits refuses a new name that is too long.
func (f *files) fits(d dirName) error {
	if path, err := f.nodes.pathIn(d.dir, d.name); err == nil && len(path) > maxPath {
		return unix.ENAMETOOLONG
	}
	return nil
}

// mayAlter refuses a change of the attributes of a read-only file.
func (f *FS) mayAlter(n *node) error {
	if f.policy.Empty() {
		return nil
	}
	// A file without a name has no rule.
	if path, err := f.nodes.path(n); err == nil && f.rule(path).readOnly() {
		return unix.EROFS
	}
	return nil
}

// mayMove refuses to move what would be locked in another way afterwards.
func (f *FS) mayMove(kind lockmgr.Kind, flags uint32, from, to lockedName) error {
	if f.policy.Empty() {
		return nil
	}
	same := true
	if kind == lockmgr.Tree {
		same = f.policy.SameBelow(from.key.Path, to.key.Path)
	}
	if kind == lockmgr.File || flags&unix.RENAME_EXCHANGE != 0 { // a file, or one for a directory
		same = same && from.rule.locked() == to.rule.locked()
	}
	if !same {
		return unix.EXDEV // so that mv copies
	}
	return nil
}

// noteRead shows the policy a file that is only read, so that its rules count as used.
func (f *FS) noteRead(n *node) {
	if f.policy.Empty() {
		return
	}
	if path, err := f.nodes.path(n); err == nil {
		f.policy.Match(path)
	}
}
