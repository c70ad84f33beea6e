package etcdlock

import (
	"slices"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

// never is a revision that no key has.
const never = -1

// treeCache is a copy of the volume's directory entries, complete while the epoch is unchanged. It
// may have deleted entries: a delete does not move the epoch. The zero value is a volume that
// never had a directory entry.
type treeCache struct {
	mu    sync.Mutex
	rev   int64       // when the copy was read
	epoch int64       // mod revision of the epoch key; 0: no such key
	dirs  []treeEntry // as of rev
}

type treeEntry struct {
	key   lockmgr.Key
	entry string
}

// expect returns the epoch to compare with: never, if a directory entry outside own conflicts.
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

// maxAround limits the total length of what around returns, in bytes.
const maxAround = 16 << 10

// around returns the prefixes of directory entries that conflict with k. Not ok: too long.
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
		own = l.trees() + k.Path + "/" // and those below
	}
	return append(prefixes, own), true
}

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

// untouched holds while the prefixes have no entries outside own. Not ok: too many comparisons.
func untouched(prefixes, own []string) (cmps []clientv3.Cmp, ok bool) {
	for _, p := range prefixes {
		cmps = append(cmps, noneBut(p, clientv3.GetPrefixRangeEnd(p), own)...)
	}
	return cmps, len(cmps) <= maxKeys
}

// undisturbed needs no read: the answer that granted from and to has refreshed the copy.
func (c *treeCache) undisturbed(from, to int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.epoch < from && from <= to
}

// read replaces the copy by one that was read at rev.
func (c *treeCache) read(rev, epoch int64, dirs []treeEntry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if rev >= c.rev {
		c.rev, c.epoch, c.dirs = rev, epoch, dirs
	}
}

// placed adds our own directory entries, put at rev by a Txn that confirmed the copy's epoch.
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
