package etcdlock

import (
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

func file(path string) lockmgr.Key  { return lockmgr.Key{Path: path} }
func tree(path string) lockmgr.Key  { return lockmgr.Key{Kind: lockmgr.Tree, Path: path} }
func inode(path string) lockmgr.Key { return lockmgr.Key{Kind: lockmgr.Inode, Path: path} }

func take(keys ...lockmgr.Key) *request  { return &request{keys: keys} }
func share(keys ...lockmgr.Key) *request { return &request{keys: keys, mode: lockmgr.Shared} }
func free(key lockmgr.Key) *request      { return &request{keys: []lockmgr.Key{key}, release: true} }

// What may share a Txn, and what may not.
func TestApart(t *testing.T) {
	for name, c := range map[string]struct {
		x, y  *request
		apart bool
	}{
		"two files":                            {take(file("a")), take(file("b")), false},
		"a file twice":                         {take(file("a")), take(file("a")), true},
		"one of several":                       {take(file("a"), file("b")), take(file("c"), file("b")), true},
		"a name and what looks like below it":  {take(file("a")), take(file("a/b")), false},
		"readers of a file":                    {share(file("a")), share(file("a")), false},
		"a reader and a writer":                {share(file("a")), take(file("a")), true},
		"names of one inode":                   {take(file("a"), inode("7")), take(file("b"), inode("7")), true},
		"an inode and a file of that name":     {take(inode("7")), take(file("7")), false},
		"a directory and a file below":         {take(tree("d")), take(file("d/e/f")), true},
		"a directory and a reader below":       {take(tree("d")), share(file("d/e/f")), true},
		"a directory and a file beside":        {take(tree("d")), take(file("dd")), false},
		"a directory and the file of its name": {take(tree("d")), take(file("d")), true},
		"a directory and an inode":             {take(tree("d")), take(inode("d/7")), false},
		"two directories":                      {take(tree("d")), take(tree("e")), true}, // they may have one stamp
		"a release and who wants the key":      {free(file("a")), take(file("a")), true},
		"a release and who reads the key":      {free(file("a")), share(file("a")), true},
		"a release below a directory":          {free(file("d/f")), take(tree("d")), true},
		"the release of a directory above":     {free(tree("d")), take(file("d/f")), true},
		"the release of another directory":     {free(tree("d")), take(tree("e")), false},
		"a release and others":                 {free(file("a")), take(file("b")), false},
		"two releases":                         {free(file("a")), free(file("a")), false}, // of two entries
	} {
		if got, back := c.x.apart(c.y), c.y.apart(c.x); got != c.apart || back != c.apart {
			t.Errorf("%s: apart %v and %v, want %v", name, got, back, c.apart)
		}
	}
}

// The first goes, and what may go with it; nobody passes one he has to be kept
// apart from.
func TestPick(t *testing.T) {
	a, again, dir, below, beside := take(file("a")), take(file("a")), take(tree("d"), file("a")), take(file("d/f")), take(file("e"))
	next, left := pick([]*request{a, again, dir, below, beside})
	if !slices.Equal(next, []*request{a, beside}) || !slices.Equal(left, []*request{again, dir, below}) {
		t.Errorf("picked %d, left %d", len(next), len(left))
	}
	for _, want := range []*request{again, dir, below} {
		if next, left = pick(left); !slices.Equal(next, []*request{want}) {
			t.Errorf("then picked %d, left %d", len(next), len(left))
		}
	}
	if next, left = pick(nil); next != nil || left != nil {
		t.Error("picked from nothing")
	}
}

// A group is within what etcd takes: operations, and bytes.
func TestPickLimits(t *testing.T) {
	puts := func(n, size int) *request {
		m := &request{}
		for range n {
			m.then = append(m.then, clientv3.OpPut("k", strings.Repeat("v", size)))
		}
		return m
	}
	queue := &request{els: []clientv3.Op{
		clientv3.OpGet("a"), clientv3.OpGet("b"), clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("a", ""), clientv3.OpPut("b", "")}, nil),
	}}
	if n := queue.ops(); n != 5 {
		t.Errorf("%d operations, want 3 and 2 nested", n)
	}
	voiding := puts(1, 10)
	voiding.voids = 1
	for name, c := range map[string]struct {
		waiting []*request
		picked  int
	}{
		"small ones":              {slices.Repeat([]*request{puts(1, 10)}, 200), 127},
		"larger ones":             {slices.Repeat([]*request{puts(28, 10)}, 200), 100},
		"with the fence":          {append([]*request{voiding}, slices.Repeat([]*request{puts(28, 10)}, 200)...), 99},
		"a large one among them":  {append(slices.Repeat([]*request{puts(1, 10)}, 27), puts(101, 10)), 27},
		"the largest":             {slices.Repeat([]*request{puts(128, 10)}, 2), 1},
		"bytes":                   {slices.Repeat([]*request{puts(1, 300<<10)}, 10), 3},
		"one that is much by far": {slices.Repeat([]*request{puts(1, 2<<20)}, 2), 1},
	} {
		next, left := pick(c.waiting)
		if len(next) != c.picked || len(next)+len(left) != len(c.waiting) {
			t.Errorf("%s: picked %d and left %d of %d, want %d", name, len(next), len(left), len(c.waiting), c.picked)
		}
	}
}
