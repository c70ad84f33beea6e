package lockmgr

import (
	"fmt"
	"strconv"
	"strings"
)

// Kind says what a Key locks.
type Kind uint8

const (
	// File locks one path: a file, or a name about to be one.
	File Kind = iota
	// Tree locks a directory and everything below it, as a whole: it conflicts
	// with every File and Tree key at or below its path, and with every Tree key above.
	Tree
	// Inode locks a file whatever its names. An owner that locks one of several names of
	// a file takes the Inode key too. It conflicts with itself only.
	Inode
)

// Mode says whether others can have a lock at the same time.
type Mode uint8

const (
	// Exclusive: no other owner has it.
	Exclusive Mode = iota
	// Shared with other readers. Directories cannot be.
	Shared
	// Delegated to a mount: a directory, with all files below it. The mount locks these without
	// the service. See Delegator.
	Delegated
)

// Conflicts reports whether locks of both modes exclude each other.
func (m Mode) Conflicts(other Mode) bool { return m != Shared || other != Shared }

// Key names what is locked, within one volume. Keys are comparable.
type Key struct {
	Kind Kind
	// Path is relative to the volume's root, clean, its bytes as they are on
	// the backing file system (no encoding is assumed). Of an inode, it is the
	// number below the path of the file system that numbered it.
	Path string
}

// FileKey returns the key of the file at path, which is relative to the
// volume's root. It fails with ErrInvalidKey unless path is clean: no empty,
// "." or ".." component, no NUL byte, not the root itself; and with ErrTooLong.
func FileKey(path string) (Key, error) { return newKey(File, path) }

// TreeKey returns the key of the directory at path and of all that is below
// it. It fails as FileKey does.
func TreeKey(path string) (Key, error) { return newKey(Tree, path) }

// InodeKey returns the key of inode ino of the file system that is mounted at
// path, "" for the volume's own. It fails as FileKey does.
func InodeKey(path string, ino uint64) (Key, error) {
	number := strconv.FormatUint(ino, 10)
	if path == "" {
		return newKey(Inode, number)
	}
	return newKey(Inode, path+"/"+number)
}

// MaxPath is how many bytes the path of a key may have: the lock service keeps it
// in memory, and its history on disk, for each lock that is taken.
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

// Conflicts reports whether k and other cannot both be held, by two owners of
// which one has its key Exclusive.
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

// below reports whether path lies strictly below dir.
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
