package fs

import (
	"os"
	"slices"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// Only what was removed is swept: not what has a name or is open, no directory, nor
// what is on another volume. Where names have to be dropped, those stay that the
// kernel knows another file by.
func TestSweep(t *testing.T) {
	source := t.TempDir()
	b, err := openBacking(source)
	if err != nil {
		t.Fatal(err)
	}
	nodes := newNodes(b.root, b.inode, &Pool{limit: 1000})
	defer nodes.close()
	at := func(name string) string { return source + "/" + name }
	learn := func(name string) *node {
		fd, st, err := b.lookOnce(b.root, name, asUsual)
		if err != nil {
			t.Fatal(err)
		}
		return nodes.learn(nodes.get(rootID), name, fd, &st)
	}
	for _, name := range []string{"removed", "kept", "open", "elsewhere", "replaced", "reused"} {
		if err := os.WriteFile(at(name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(at("dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	known := make(map[string]*node)
	for _, name := range []string{"removed", "kept", "open", "elsewhere", "replaced", "reused", "dir"} {
		known[name] = learn(name)
		if name != "kept" {
			if err := os.Remove(at(name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	known["open"].handles.Add(1)
	known["elsewhere"].inode.dev++
	for _, name := range []string{"replaced", "reused"} {
		if err := os.WriteFile(at(name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	learn("reused")

	var pruned []uint64
	s := &shedder{nodes: nodes, local: func(dev uint64) bool { return dev == b.inode.dev },
		prune: func(ids []uint64) fuse.Status { pruned = ids; return fuse.OK }}
	s.sweep()
	slices.Sort(pruned)
	if want := []uint64{known["removed"].id, known["replaced"].id, known["reused"].id}; !slices.Equal(pruned, want) {
		t.Errorf("pruned %v, want %v", pruned, want)
	}
	var dropped []string
	s.prune = func([]uint64) fuse.Status { return fuse.ENOSYS }
	s.drop = func(parent uint64, name string) fuse.Status {
		if parent != rootID {
			t.Errorf("%s was dropped in %d", name, parent)
		}
		dropped = append(dropped, name)
		return fuse.OK
	}
	s.sweep()
	slices.Sort(dropped)
	if want := []string{"removed", "replaced"}; !slices.Equal(dropped, want) {
		t.Errorf("dropped %v, want %v", dropped, want)
	}
}
