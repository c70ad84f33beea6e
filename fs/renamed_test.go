package fs

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/lockfs/lockfs/lockmgr"
)

// renameElsewhere renames a file as another mount does.
func (v *movedView) renameElsewhere(name, to string) {
	v.t.Helper()
	if err := os.Rename(filepath.Join(v.source, name), filepath.Join(v.source, to)); err != nil {
		v.t.Fatal(err)
	}
}

// A file that another mount has renamed is another node for the kernel, each time
// that it is seen under a new name; one that this mount has renamed, or that has one
// more name, is the same.
func TestRenamedElsewhereIsAnotherNode(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		t := v.t
		one := thread{v, 1}
		last := one.look("f")
		other := func(name string) {
			t.Helper()
			node := one.look(name)
			if node == last {
				t.Errorf("the kernel knows %s already, by a name that is gone", name)
			}
			if again := one.look(name); again != node {
				t.Errorf("%s is node %d and %d", name, node, again)
			}
			last = node
		}
		same := func(name string) {
			t.Helper()
			if node := one.look(name); node != last {
				t.Errorf("%s is node %d, want %d", name, node, last)
			}
		}
		v.renameElsewhere("f", "g")
		other("g")
		v.renameElsewhere("g", "f")
		other("f")
		one.rename("f", "h")
		same("h")
		if err := os.Link(filepath.Join(v.source, "h"), filepath.Join(v.source, "l")); err != nil {
			t.Fatal(err)
		}
		same("l")
		same("h")
		v.renameElsewhere("l", "m") // the kernel may remember l
		other("m")
		same("h")
	})
}

// What is open by a file's former node has its locks follow the file's names, also
// when the kernel has forgotten the newer node.
func TestHoldsOfAFormerNode(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		t := v.t
		one := thread{v, 1}
		former := one.look("f")
		key, err := lockmgr.FileKey("g")
		if err != nil {
			t.Fatal(err)
		}
		hold, err := v.fs.locks.Acquire(t.Context(), lockmgr.Request{Owner: "me", Keys: []lockmgr.Key{key}})
		if err != nil {
			t.Fatal(err)
		}
		defer hold.Release()
		v.renameElsewhere("f", "g")
		newer := one.look("g")
		v.fs.nodes.get(former).addHold(hold) // as a program that reopens a descriptor
		inode := v.fs.nodes.get(former).inode
		for _, what := range []string{"is known", "is forgotten"} {
			if n := v.fs.nodes.find(inode); n == nil || len(n.allHolds()) != 1 {
				t.Errorf("the hold is not found while the newer node %s", what)
			}
			v.fs.Forget(newer, 1)
		}
		if node := one.look("g"); node == former || len(v.fs.nodes.get(node).allHolds()) != 1 {
			t.Errorf("looked up again it is node %d", node)
		}
	})
}

// Two calls that freeze the same files in another order, and by other nodes of them, do not wait for
// each other.
func TestNamesAreFrozenInOneOrder(t *testing.T) {
	one, two := &held{id: 1}, &held{id: 2}
	first := &node{id: 1, held: one}
	second := &node{id: 2, held: two}
	again := &node{id: 3, held: one} // by another name of the file
	var calls sync.WaitGroup
	for _, files := range [][2]*node{{first, second}, {second, again}} {
		calls.Go(func() {
			for range 300_000 {
				freezeNames(fate{file: files[0]}, fate{file: files[1]})()
			}
		})
	}
	calls.Wait()
}
