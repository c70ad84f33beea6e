package fs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

func TestKeys(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.Mkdir(at("d"), 0o755), os.WriteFile(at("d/one"), nil, 0o644),
		os.WriteFile(at("a"), nil, 0o644), os.Link(at("a"), at("d/b")), os.Symlink("a", at("link"))); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(at("a"), &st); err != nil {
		t.Fatal(err)
	}
	inode, err := lockmgr.InodeKey("", st.Ino)
	if err != nil {
		t.Fatal(err)
	}
	for path, several := range map[string]bool{"a": true, "d/b": true, "d/one": false, "none": false, "none/at/all": false, "a/below": false, "d": false, "link": false} {
		keys, err := Keys(dir, path)
		if err != nil || keys[0] != (lockmgr.Key{Path: path}) || several != (len(keys) == 2) || several && keys[1] != inode {
			t.Errorf("Keys(%q): %v, %v", path, keys, err)
		}
	}
	for _, path := range []string{"", "../x", "/a"} {
		if keys, err := Keys(dir, path); !errors.Is(err, lockmgr.ErrInvalidKey) {
			t.Errorf("Keys(%q): %v, %v", path, keys, err)
		}
	}
}
