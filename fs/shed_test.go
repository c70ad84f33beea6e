package fs

import (
	"fmt"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// crowd is a table with n files and one directory per ten of them.
func crowd(t *testing.T, n int) (*nodes, []*node) {
	t.Helper()
	nodes := newNodes(-1, inode{ino: 1})
	root := nodes.get(rootID)
	var all []*node
	for i := range n {
		fd, err := unix.Open("/dev/null", pathFlags, 0)
		if err != nil {
			t.Fatal(err)
		}
		st := unix.Stat_t{Ino: uint64(i) + 2, Mode: unix.S_IFREG, Nlink: 1}
		if i%10 == 0 {
			st.Mode = unix.S_IFDIR
		}
		all = append(all, nodes.learn(root, fmt.Sprint(i), fd, &st))
	}
	t.Cleanup(func() {
		for _, n := range all {
			nodes.forget(n.id, 1)
		}
	})
	return nodes, all
}

// Nodes in use stay, and do not keep others from being forgotten.
func TestShedsBeyondWhatIsInUse(t *testing.T) {
	nodes, all := crowd(t, 100)
	nodes.limit = 60
	s := &shedder{nodes: nodes, prune: func(ids []uint64) fuse.Status {
		for _, id := range ids {
			if id > 50 { // the oldest are all in use
				nodes.forget(id, 1)
			}
		}
		return fuse.OK
	}}
	for i := 0; nodes.crowded(); i++ {
		if i > len(all) {
			t.Fatal("no end")
		}
		s.shed()
	}
	if len(nodes.byID) < nodes.limit*3/4 {
		t.Errorf("%d nodes are left of %d allowed", len(nodes.byID), nodes.limit)
	}
}

// Where the kernel cannot tell what is in use, open files and directories stay.
func TestShedsByName(t *testing.T) {
	nodes, all := crowd(t, 100)
	nodes.limit = 40
	open := all[1]
	open.handles.Add(1)
	s := &shedder{
		nodes: nodes,
		prune: func([]uint64) fuse.Status { return fuse.ENOSYS },
		drop: func(parent uint64, name string) fuse.Status {
			for _, n := range all {
				if parent == rootID && n.name == name {
					nodes.forget(n.id, 1)
				}
			}
			return fuse.OK
		},
	}
	for range len(all) {
		if nodes.crowded() {
			s.shed()
		}
	}
	if nodes.crowded() {
		t.Errorf("%d nodes are left of %d allowed", len(nodes.byID), nodes.limit)
	}
	for i, n := range all {
		if (n.dir || n == open) && nodes.get(n.id) == nil {
			t.Errorf("node %d was forgotten", i)
		}
	}
}
