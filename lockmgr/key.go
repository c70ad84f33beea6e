package lockmgr

import (
	"fmt"
	"strconv"
	"strings"
)

// Kind says what a Key locks.
type Kind uint8

const (
	// File locks one path: a file, or a future name.
	File Kind = iota
	// Tree locks a directory with all below it. It conflicts with File and Tree keys at or below
	// its path, and with Tree keys above.
	Tree
	// Inode locks a file with several names, in addition to one of them. It conflicts only with
	// itself.
	Inode
)

// Mode says whether others can have a lock at the same time.
type Mode uint8

const (
	// Exclusive: no other owner has the lock.
	Exclusive Mode = iota
	// Shared with other readers. Directories cannot be.
	Shared
	// Delegated to a mount: a directory, whose files the mount locks without the service. See
	// Delegator.
	Delegated
)

// Conflicts reports whether locks of both modes exclude each other.
func (m Mode) Conflicts(other Mode) bool { return m != Shared || other != Shared }

// Key names what is locked in one volume. Keys are comparable.
type Key struct {
	Kind Kind
	// Path is clean, relative to the volume's root, and in the bytes of the backing file system.
	// Of an inode: its number below the path where its file system is mounted.
	Path string
}

// FileKey returns the key of the file at path, relative to the volume's root. Errors:
// ErrInvalidKey unless path is clean (no empty, "." or ".." component, no NUL byte, not the root);
// ErrTooLong.
func FileKey(path string) (Key, error) { return newKey(File, path) }

// TreeKey returns the key of the directory at path and all below. Errors: FileKey's.
func TreeKey(path string) (Key, error) { return newKey(Tree, path) }

// InodeKey returns the key of inode ino of the file system mounted at path, "" for the volume's
// own. Errors: FileKey's.
func InodeKey(path string, ino uint64) (Key, error) {
	number := strconv.FormatUint(ino, 10)
	if path == "" {
		return newKey(Inode, number)
	}
	return newKey(Inode, path+"/"+number)
}

// MaxPath limits the bytes of a key's path: the lock service keeps it in memory for each lock.
const MaxPath = 16 << 10

func newKey(kind Kind, path string) (Key, error) {
	if len(path) > MaxPath {
		return Key{}, fmt.Errorf("%w: %d bytes, %d at most", ErrTooLong, len(path), MaxPath)
	}
	if strings.IndexByte(path, 0) >= 0 {
		return Key{}, fmt.Errorf("%w: %q has a NUL byte", ErrInvalidKey, path)
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == "" || part == "." || part == ".." {
			return Key{}, fmt.Errorf("%w: %q has the component %q", ErrInvalidKey, path, part)
		}
	}
	return Key{Kind: kind, Path: path}, nil
}

// Conflicts reports whether two owners cannot hold k and other, one of them Exclusive.
func (k Key) Conflicts(other Key) bool {
	if k.Kind == Inode || other.Kind == Inode {
		return k == other
	}
	if k.Path == other.Path {
		return true
	}
	return k.Kind == Tree && below(other.Path, k.Path) ||
		other.Kind == Tree && below(k.Path, other.Path)
}

// PathHash spreads paths over a bounded number of places that note when a directory was locked.
func PathHash(path string) (last uint16) {
	PathHashes(path, func(h uint16) bool { last = h; return true })
	return last
}

// PathHashes calls visit with the PathHash of each directory above path, the topmost first, and of
// path, until visit returns false. It is one pass (FNV-1a): a path can have thousands above it.
func PathHashes(path string, visit func(uint16) bool) {
	h := uint32(2166136261)
	for i := range len(path) {
		if path[i] == '/' && !visit(uint16(h^h>>16)) {
			return
		}
		h = (h ^ uint32(path[i])) * 16777619
	}
	visit(uint16(h ^ h>>16))
}

func below(path, dir string) bool {
	return len(path) > len(dir) && path[len(dir)] == '/' && strings.HasPrefix(path, dir)
}

func (k Key) String() string {
	switch k.Kind {
	case Tree:
		return k.Path + "/"
	case Inode:
		return "inode " + k.Path
	}
	return k.Path
}
