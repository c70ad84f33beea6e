package etcdlock

import "github.com/lockfs/lockfs/lockmgr"

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
