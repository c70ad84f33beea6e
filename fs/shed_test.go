package fs

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// crowd is a table with n files and one directory per ten of them.
func crowd(t *testing.T, n int, pool *Pool) (*nodes, []*node) {
	t.Helper()
	nodes := newNodes(-1, inode{ino: 1}, pool)
	root := nodes.get(rootID)
	var all []*node
	for i := range n {
		fd, err := unix.Open("/dev/null", pathFlags, 0)
		if err != nil {
			t.Fatal(err)
		}
		st := stat{Stat_t: unix.Stat_t{Ino: uint64(i) + 2, Mode: unix.S_IFREG, Nlink: 1}}
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
	pool := &Pool{limit: 60}
	nodes, all := crowd(t, 100, pool)
	s := &shedder{nodes: nodes, prune: func(ids []uint64) fuse.Status {
		for _, id := range ids {
			if id > 50 { // the oldest are all in use
				nodes.forget(id, 1)
			}
		}
		return fuse.OK
	}}
	for i := 0; pool.crowded(); i++ {
		if i > len(all) {
			t.Fatal("no end")
		}
		s.shed()
	}
	if len(nodes.byID) < pool.limit*3/4 {
		t.Errorf("%d nodes are left of %d allowed", len(nodes.byID), pool.limit)
	}
}

// Where the kernel cannot tell what is in use, open files and directories stay.
func TestShedsByName(t *testing.T) {
	pool := &Pool{limit: 40}
	nodes, all := crowd(t, 100, pool)
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
		if pool.crowded() {
			s.shed()
		}
	}
	if pool.crowded() {
		t.Errorf("%d nodes are left of %d allowed", len(nodes.byID), pool.limit)
	}
	for i, n := range all {
		if (n.dir || n == open) && nodes.get(n.id) == nil {
			t.Errorf("node %d was forgotten", i)
		}
	}
}

// A view may have what the others leave. Once they all have too many, those that
// have more than their share give up some, whoever came last.
func TestViewsShareDescriptors(t *testing.T) {
	pool := &Pool{limit: 90}
	large, all := crowd(t, 79, pool)
	small, _ := crowd(t, 5, pool)
	other, _ := crowd(t, 2, pool)
	told := func(n *nodes) bool {
		select {
		case <-n.crowd:
			return true
		default:
			return false
		}
	}
	if pool.crowded() || told(large) || pool.limitOf(large) != 81 || pool.limitOf(small) != 30 {
		t.Fatalf("of %d: %d nodes, limits %d and %d", pool.limit, pool.used.Load(), pool.limitOf(large), pool.limitOf(small))
	}
	more, _ := crowd(t, 3, pool)
	if !pool.crowded() || !told(large) || told(small) || told(other) || told(more) {
		t.Fatal("not the large one is told that there are too many")
	}
	s := &shedder{nodes: large, prune: func(ids []uint64) fuse.Status {
		for _, id := range ids {
			large.forget(id, 1)
		}
		return fuse.OK
	}}
	s.shed()
	if got, want := pool.used.Load(), int64(90*3/4); got != want {
		t.Errorf("%d nodes are left of %d allowed, want %d", got, pool.limit, want)
	}
	for _, n := range all {
		large.forget(n.id, 1)
	}
	for range 3 {
		(&shedder{nodes: small, prune: s.prune}).shed() // too few to shed any
	}
	if got := small.len(); got != 6 {
		t.Errorf("a small view has %d nodes left", got)
	}
	large.close()
	if got := pool.used.Load(); got != int64(small.len()+other.len()+more.len()) {
		t.Errorf("a view that is no more leaves %d nodes", got)
	}
}

// A program that looks up names faster than the kernel forgets waits for it, but not for what is
// in use.
func TestLookupsWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := &Pool{limit: 60}
		nodes, all := crowd(t, 89, pool) // and the root
		begin := time.Now()
		pool.awaitRoom(nil)
		if waited := time.Since(begin); waited != roomWait {
			t.Errorf("waited for %v with all nodes in use", waited)
		}
		begin = time.Now()
		pool.awaitRoom(nil)
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("waited for %v after a wait in vain", waited)
		}

		more, _ := crowd(t, 1, pool)
		nodes.forget(all[0].id, 1)
		synctest.Wait() // the closer
		done := make(chan struct{})
		go func() {
			pool.awaitRoom(nil)
			close(done)
		}()
		synctest.Wait()
		select {
		case <-done:
			t.Fatalf("%d of %d nodes are room enough", pool.used.Load(), pool.limit)
		default:
		}
		begin = time.Now()
		more.close()
		nodes.forget(all[1].id, 1)
		<-done
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("waited for %v after a node was forgotten", waited)
		}
	})
}
