package etcdlock

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/lockmgr"
)

// FuzzKeys: what entry makes, parse takes apart; and a prefix covers the
// entries it stands for, and no others.
func FuzzKeys(f *testing.F) {
	for _, p := range []string{"a", "a/b", "ab", "w", "w/w", "tree/x", "\xff", " ", "a/00000000-0000-0000-0000-000000000000"} {
		f.Add(p, "a/b")
	}
	l := newLayout("ns", "name")
	id := lockmgr.AcquisitionID(uuid.MustParse("0190b8f2-6a34-7d1c-9e5b-1f2a3b4c5d6e"))
	f.Fuzz(func(t *testing.T, path, other string) {
		if _, err := lockmgr.FileKey(path); err != nil {
			t.Skip()
		}
		if _, err := lockmgr.FileKey(other); err != nil {
			t.Skip()
		}
		for _, kind := range []lockmgr.Kind{lockmgr.File, lockmgr.Tree} {
			k := lockmgr.Key{Kind: kind, Path: path}
			for _, mode := range []lockmgr.Mode{lockmgr.Exclusive, lockmgr.Shared} {
				want := lockmgr.Grant{Key: k, Mode: mode, AcquisitionID: id}
				if got, ok := l.parse(l.granted(want)); ok != (kind == lockmgr.File || mode == lockmgr.Exclusive) || ok && got != want {
					t.Fatalf("parse(granted(%+v)): %+v, %v", want, got, ok)
				}
			}
		}
		inode, err := lockmgr.InodeKey(path, uint64(len(other)))
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := l.parse(l.entry(inode, lockmgr.Shared, id)); !ok || got.Key != inode {
			t.Fatalf("parse(entry(%+v)): %+v, %v", inode, got, ok)
		}
		entry := l.entry(lockmgr.Key{Path: other}, lockmgr.Exclusive, id)
		shared := l.entry(lockmgr.Key{Path: other}, lockmgr.Shared, id)
		for _, mode := range []lockmgr.Mode{lockmgr.Exclusive, lockmgr.Shared} {
			rivals := l.rivals(lockmgr.Key{Path: path}, mode)
			if got := strings.HasPrefix(entry, rivals); got != (path == other) {
				t.Errorf("rivals(%q) covers %q: %v", path, other, got)
			}
			if got := strings.HasPrefix(shared, rivals); got != (path == other && mode == lockmgr.Exclusive) {
				t.Errorf("rivals(%q) covers %q, shared: %v", path, other, got)
			}
		}
		from := path == other || strings.HasPrefix(other, path+"/")
		if got := strings.HasPrefix(entry, l.filesFrom(path)); got != from {
			t.Errorf("filesFrom(%q) covers %q: %v", path, other, got)
		}
		entry = l.entry(lockmgr.Key{Kind: lockmgr.Tree, Path: other}, lockmgr.Exclusive, id)
		if !strings.HasPrefix(entry, l.trees()) || strings.HasPrefix(entry, l.files) {
			t.Errorf("trees() does not cover %q", entry)
		}
	})
}

// FuzzParse: parse takes only what entry makes.
func FuzzParse(f *testing.F) {
	const id = "0190b8f2-6a34-7d1c-9e5b-1f2a3b4c5d6e"
	for _, key := range []string{
		"/locks/ns/name/a//w/" + id, "/lockfs/ns/name/tree/a//w/" + id, "/locks/ns/name//w/" + id,
		"/locks/ns/name/a//r/" + id, "/lockfs/ns/name/tree/a//r/" + id, "/locks/ns/name/a//w/{" + id + "}", "/locks/ns/name/a//w/" + strings.ToUpper(id),
		"/lockfs/ns/name/inode/7//w/" + id, "/lockfs/ns/name/inode/a/7//w/" + id, "/lockfs/ns/name/inode/a//w/" + id, "/lockfs/ns/name/inode/07//w/" + id,
		"/locks/ns/name/../a//w/" + id, "/locks/ns/other/a//w/" + id, "/lockfs/ns/name/epoch", "/locks/ns/name/a",
	} {
		f.Add(key)
	}
	l := newLayout("ns", "name")
	f.Fuzz(func(t *testing.T, key string) {
		if g, ok := l.parse(key); ok && l.granted(g) != key {
			t.Errorf("parse(%q): %+v", key, g)
		}
	})
}
