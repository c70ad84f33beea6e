package etcdlock

import (
	"strings"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/lockmgr"
)

// write is the mode of an entry: it excludes every other entry of its path.
const write = "w"

// layout makes and takes apart the keys of one volume. A component of a path is
// never empty, so "//" ends a path unambiguously and <path>// is a prefix of
// no other path's entries.
type layout struct {
	files string // /locks/<ns>/<name>/
	admin string // /lockfs/<ns>/<name>/
}

func newLayout(namespace, name string) layout {
	volume := namespace + "/" + name + "/"
	return layout{files: "/locks/" + volume, admin: "/lockfs/" + volume}
}

func (l layout) epoch() string             { return l.admin + "epoch" }
func (l layout) volume() string            { return l.admin + "volume" }
func (l layout) trees() string             { return l.admin + "tree/" }
func (l layout) session(sid string) string { return l.admin + "session/" + sid }

// entry is the key of one acquisition's entry.
func (l layout) entry(k lockmgr.Key, owner uuid.UUID) string {
	root := l.files
	if k.Kind == lockmgr.Tree {
		root = l.trees()
	}
	return root + k.Path + "//" + write + "/" + owner.String()
}

// filesAt is the prefix of the file entries of path itself.
func (l layout) filesAt(path string) string { return l.files + path + "//" }

// filesFrom is the prefix of the file entries at path and below it; the empty
// path is the root.
func (l layout) filesFrom(path string) string {
	if path == "" {
		return l.files
	}
	return l.files + path + "/"
}

// lockOf returns what the entry at key locks; false when key is no entry.
func (l layout) lockOf(key string) (lockmgr.Key, bool) {
	k, _, ok := l.split(key)
	return k, ok
}

// parse takes an entry's key apart; false unless entry would make the same key.
func (l layout) parse(key string) (lockmgr.Key, uuid.UUID, bool) {
	k, rest, ok := l.split(key)
	if !ok {
		return lockmgr.Key{}, uuid.Nil, false
	}
	id, ok := strings.CutPrefix(rest, write+"/")
	if !ok {
		return lockmgr.Key{}, uuid.Nil, false
	}
	owner, err := uuid.Parse(id)
	if err != nil || owner.String() != id { // Parse takes several spellings
		return lockmgr.Key{}, uuid.Nil, false
	}
	return k, owner, true
}

func (l layout) split(key string) (k lockmgr.Key, rest string, ok bool) {
	newKey := lockmgr.FileKey
	path, ok := strings.CutPrefix(key, l.files)
	if !ok {
		newKey = lockmgr.TreeKey
		if path, ok = strings.CutPrefix(key, l.trees()); !ok {
			return lockmgr.Key{}, "", false
		}
	}
	path, rest, ok = strings.Cut(path, "//")
	if !ok {
		return lockmgr.Key{}, "", false
	}
	k, err := newKey(path)
	return k, rest, err == nil
}
