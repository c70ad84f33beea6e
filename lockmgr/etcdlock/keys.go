package etcdlock

import (
	"strconv"
	"strings"

	"github.com/lockfs/lockfs/lockmgr"
)

// The modes of an entry in its key.
const (
	write     = "w/" // lockmgr.Exclusive
	read      = "r/" // lockmgr.Shared
	delegated = "k/" // lockmgr.Delegated
)

// layout makes and parses the keys of a volume. "//" ends a path: its components are not empty.
type layout struct {
	files string // /locks/<ns>/<name>/
	admin string // /lockfs/<ns>/<name>/
}

func newLayout(namespace, name string) layout {
	volume := namespace + "/" + name + "/"
	return layout{files: "/locks/" + volume, admin: "/lockfs/" + volume}
}

func (l layout) stamps() string            { return l.admin + "stamp/" }
func (l layout) volume() string            { return l.admin + "volume" }
func (l layout) service() string           { return l.admin + "service" }
func (l layout) trees() string             { return l.admin + "tree/" }
func (l layout) inodes() string            { return l.admin + "inode/" }
func (l layout) session(sid string) string { return l.admin + "session/" + sid }
func (l layout) broken(id string) string   { return l.admin + "break/" + id }
func (l layout) recalls() string           { return l.admin + "recall/" }

func (l layout) recall(mount, id string) string { return l.recalls() + mount + "/" + id }

func (l layout) entry(k lockmgr.Key, mode lockmgr.Mode, id lockmgr.AcquisitionID) string {
	return string(l.appendEntry(nil, k, mode, id))
}

func (l layout) appendEntry(b []byte, k lockmgr.Key, mode lockmgr.Mode, id lockmgr.AcquisitionID) []byte {
	b = append(append(append(b, l.root(k)...), k.Path...), "//"...)
	part := write
	switch mode {
	case lockmgr.Shared:
		part = read
	case lockmgr.Delegated:
		part = delegated
	}
	return append(append(b, part...), id.String()...)
}

func (l layout) granted(g lockmgr.Grant) string { return l.entry(g.Key, g.Mode, g.AcquisitionID) }

// at is the prefix of the entries of k itself.
func (l layout) at(k lockmgr.Key) string { return l.root(k) + k.Path + "//" }

func (l layout) root(k lockmgr.Key) string {
	switch k.Kind {
	case lockmgr.Tree:
		return l.trees()
	case lockmgr.Inode:
		return l.inodes()
	default:
		return l.files
	}
}

// rivals is the prefix of the entries that conflict with k, without those of directories.
func (l layout) rivals(k lockmgr.Key, mode lockmgr.Mode) string {
	switch {
	case k.Kind == lockmgr.Tree:
		return l.filesFrom(k.Path)
	case mode == lockmgr.Shared:
		return l.at(k) + write
	}
	return l.at(k)
}

// filesFrom is the prefix of the file entries at and below path; "" is the root.
func (l layout) filesFrom(path string) string {
	if path == "" {
		return l.files
	}
	return l.files + path + "/"
}

func (l layout) lockOf(key string) (lockmgr.Key, bool) {
	k, _, ok := l.split(key)
	return k, ok
}

// parse returns an entry's Grant without the token; false unless entry would make this key.
func (l layout) parse(key string) (lockmgr.Grant, bool) {
	k, rest, ok := l.split(key)
	if !ok {
		return lockmgr.Grant{}, false
	}
	var mode lockmgr.Mode
	text, ok := strings.CutPrefix(rest, write)
	switch {
	case ok:
	case k.Kind == lockmgr.Tree:
		mode = lockmgr.Delegated
		text, ok = strings.CutPrefix(rest, delegated)
	default:
		mode = lockmgr.Shared
		text, ok = strings.CutPrefix(rest, read)
	}
	if !ok {
		return lockmgr.Grant{}, false
	}
	id, err := lockmgr.ParseAcquisitionID(text)
	if err != nil || id.String() != text { // Parse accepts several spellings
		return lockmgr.Grant{}, false
	}
	return lockmgr.Grant{Key: k, Mode: mode, AcquisitionID: id}, true
}

func (l layout) split(key string) (k lockmgr.Key, rest string, ok bool) {
	for _, r := range []struct {
		root string
		key  func(string) (lockmgr.Key, error)
	}{{l.files, lockmgr.FileKey}, {l.trees(), lockmgr.TreeKey}, {l.inodes(), inodeKey}} {
		below, ok := strings.CutPrefix(key, r.root)
		if !ok {
			continue
		}
		path, rest, ok := strings.Cut(below, "//")
		if !ok {
			return lockmgr.Key{}, "", false
		}
		k, err := r.key(path)
		return k, rest, err == nil
	}
	return lockmgr.Key{}, "", false
}

func inodeKey(path string) (lockmgr.Key, error) {
	dir, number := "", path
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		dir, number = path[:i], path[i+1:]
	}
	ino, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return lockmgr.Key{}, err
	}
	k, err := lockmgr.InodeKey(dir, ino)
	if err == nil && k.Path != path { // ParseUint accepts several spellings
		err = lockmgr.ErrInvalidKey
	}
	return k, err
}
