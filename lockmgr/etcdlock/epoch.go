package etcdlock

import (
	"slices"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

// never is a revision no key has: comparing with it fails.
const never = -1

// treeCache is the copy of the volume's directory entries. It holds all that
// live as long as the epoch stands, and maybe some that are gone: a delete does
// not move the epoch. The zero value is the copy of a volume that never had such an entry.
type treeCache struct {
	mu    sync.Mutex
	rev   int64       // what the copy was read at
	epoch int64       // mod revision of the epoch key, 0 before there is one
	dirs  []treeEntry // as of rev
}

// treeEntry is a directory entry.
type treeEntry struct {
	key   lockmgr.Key
	entry string
}

// expect returns the epoch to compare with when acquiring keys: never, if the
// copy has an entry that conflicts with one of them, apart from those of own.
func (c *treeCache) expect(keys []lockmgr.Key, own []string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.dirs {
		if slices.ContainsFunc(keys, d.key.Conflicts) && !slices.Contains(own, d.entry) {
			return never
		}
	}
	return c.epoch
}

// maxAround bounds the length of what around returns, in bytes.
const maxAround = 16 << 10

// around returns the prefixes of the entries of directories that conflict with
// one for k: a prefix for each directory above. Not ok if they take too much room.
func (l layout) around(k lockmgr.Key) (prefixes []string, ok bool) {
	if k.Kind == lockmgr.Inode {
		return nil, true
	}
	bytes := 0
	for i, c := range k.Path {
		if c == '/' {
			prefixes = append(prefixes, l.trees()+k.Path[:i]+"//")
			bytes += len(l.trees()) + i
		}
		if bytes > maxAround {
			return nil, false
		}
	}
	own := l.trees() + k.Path + "//"
	if k.Kind == lockmgr.Tree {
		own = l.trees() + k.Path + "/" // those below, too
	}
	return append(prefixes, own), true
}

// aroundAll is around for several keys.
func (l layout) aroundAll(keys []lockmgr.Key) (prefixes []string, ok bool) {
	seen := make(map[string]bool)
	for _, k := range keys {
		around, ok := l.around(k)
		if !ok {
			return nil, false
		}
		for _, p := range around {
			if !seen[p] {
				seen[p] = true
				prefixes = append(prefixes, p)
			}
		}
	}
	return prefixes, true
}

// untouched holds while no entry of a directory is at one of prefixes, apart from those of own.
// Not ok if that takes too many comparisons.
func untouched(prefixes, own []string) (cmps []clientv3.Cmp, ok bool) {
	for _, p := range prefixes {
		cmps = append(cmps, noneBut(p, clientv3.GetPrefixRangeEnd(p), own)...)
	}
	return cmps, len(cmps) <= maxKeys
}

// undisturbed reports whether no directory entry was put from one grant of the mount to another. The
// copy is not older than either: the answer that granted it has refreshed the copy.
func (c *treeCache) undisturbed(from, to int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.epoch < from && from <= to
}

// read replaces the copy by one that was read in one Txn at rev.
func (c *treeCache) read(rev, epoch int64, dirs []treeEntry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if rev >= c.rev {
		c.rev, c.epoch, c.dirs = rev, epoch, dirs
	}
}

// placed adds our own directory entries, which were put at rev by a Txn that
// found the epoch as the copy has it.
func (c *treeCache) placed(rev, epoch int64, dirs []treeEntry) {
	if len(dirs) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if rev > c.rev && epoch == c.epoch {
		c.rev, c.epoch, c.dirs = rev, rev, slices.Concat(c.dirs, dirs)
	}
}
