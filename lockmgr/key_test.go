package lockmgr_test

import (
	"errors"
	"hash/fnv"
	"slices"
	"strings"
	"testing"

	"github.com/lockfs/lockfs/lockmgr"
)

func TestKeysAreCleanPaths(t *testing.T) {
	for _, path := range []string{"f", "d/f", "a b/\xff\xfe", "...", "w", "tree", strings.Repeat("x/", 2000) + "f"} {
		if _, err := lockmgr.FileKey(path); err != nil {
			t.Errorf("%q: %v", path, err)
		}
	}
	for _, path := range []string{"", "/", "/f", "f/", "d//f", ".", "..", "d/./f", "d/../f", "../f", "f\x00", "\x00"} {
		if _, err := lockmgr.FileKey(path); !errors.Is(err, lockmgr.ErrInvalidKey) {
			t.Errorf("%q: %v, want ErrInvalidKey", path, err)
		}
		if _, err := lockmgr.TreeKey(path); !errors.Is(err, lockmgr.ErrInvalidKey) {
			t.Errorf("tree %q: %v, want ErrInvalidKey", path, err)
		}
	}
}

func inode(path string, ino uint64) lockmgr.Key {
	k, err := lockmgr.InodeKey(path, ino)
	if err != nil {
		panic(err)
	}
	return k
}

func TestConflicts(t *testing.T) {
	for _, c := range []struct {
		a, b lockmgr.Key
		want bool
	}{
		{file("f"), file("f"), true},
		{file("f"), file("g"), false},
		{file("d"), file("d/f"), false},
		{tree("d"), file("d"), true},
		{tree("d"), file("d/f"), true},
		{tree("d"), file("d/e/f"), true},
		{tree("d"), file("dd/f"), false},
		{tree("d"), file("d.f"), false},
		{tree("d/e"), file("d/f"), false},
		{tree("d"), tree("d/e"), true},
		{tree("d"), tree("e"), false},
		{inode("", 7), inode("", 7), true},
		{inode("", 7), inode("", 8), false},
		{inode("", 7), inode("d", 7), false},
		{inode("", 7), file("7"), false},
		{inode("d", 7), tree("d"), false},
	} {
		if c.a.Conflicts(c.b) != c.want || c.b.Conflicts(c.a) != c.want {
			t.Errorf("%v and %v: want conflict %v, both ways round", c.a, c.b, c.want)
		}
	}
}

// The stamps of directories are stored under these hashes, and mounts of other versions read them.
func TestPathHashes(t *testing.T) {
	path := "dir/\xff\xfe/ä/f"
	var want, got []uint16
	for i := range len(path) + 1 {
		if i == len(path) || path[i] == '/' {
			h := fnv.New32a()
			h.Write([]byte(path[:i]))
			want = append(want, uint16(h.Sum32()^h.Sum32()>>16))
		}
	}
	lockmgr.PathHashes(path, func(h uint16) bool { got = append(got, h); return true })
	if !slices.Equal(got, want) || lockmgr.PathHash(path) != want[len(want)-1] {
		t.Errorf("%v, want %v", got, want)
	}
	lockmgr.PathHashes(path, func(h uint16) bool { got = []uint16{h}; return false })
	if len(got) != 1 || got[0] != want[0] {
		t.Errorf("%v after one visit", got)
	}
}
