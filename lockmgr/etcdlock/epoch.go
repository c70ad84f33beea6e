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
// not move the epoch. The zero value is right for a volume that never had one.
type treeCache struct {
	mu    sync.Mutex
	rev   int64         // what the copy was read at
	epoch int64         // mod revision of the epoch key, 0 before there is one
	dirs  []lockmgr.Key // as of rev
}

// expect returns the epoch to compare with when acquiring keys: never, if the
// copy has an entry that conflicts with one of them.
func (c *treeCache) expect(keys []lockmgr.Key) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.dirs {
		if slices.ContainsFunc(keys, d.Conflicts) {
			return never
		}
	}
	return c.epoch
}

// maxBare bounds the length of what untouched compares, in bytes.
const maxBare = 16 << 10

// untouched holds while no entry of a directory conflicts with one of keys,
// whatever the epoch is. It is a comparison for each directory above a key: not
// ok if they take too much room.
func (l layout) untouched(keys []lockmgr.Key) (cmps []clientv3.Cmp, ok bool) {
	seen, bytes := make(map[string]bool), 0
	add := func(prefix string) {
		if !seen[prefix] {
			seen[prefix], bytes = true, bytes+2*len(prefix)
			cmps = append(cmps, none(prefix, clientv3.GetPrefixRangeEnd(prefix)))
		}
	}
	for _, k := range keys {
		if k.Kind == lockmgr.Inode {
			continue
		}
		for i, c := range k.Path {
			if c == '/' {
				add(l.trees() + k.Path[:i] + "//")
			}
			if bytes > maxBare {
				return nil, false
			}
		}
		if k.Kind == lockmgr.Tree {
			add(l.trees() + k.Path + "/") // those below, too
		} else {
			add(l.trees() + k.Path + "//")
		}
	}
	return cmps, true
}

// read replaces the copy by one that was read in one Txn at rev.
func (c *treeCache) read(rev, epoch int64, dirs []lockmgr.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if rev >= c.rev {
		c.rev, c.epoch, c.dirs = rev, epoch, dirs
	}
}

// forget makes it the copy of a volume that never had one.
func (c *treeCache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rev, c.epoch, c.dirs = 0, 0, nil
}

// placed adds our own directory entries, which were put at rev by a Txn that
// found the epoch as the copy has it.
func (c *treeCache) placed(rev, epoch int64, dirs []lockmgr.Key) {
	if len(dirs) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if rev > c.rev && epoch == c.epoch {
		c.rev, c.epoch, c.dirs = rev, rev, slices.Concat(c.dirs, dirs)
	}
}
