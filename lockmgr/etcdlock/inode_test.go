package etcdlock_test

import (
	"errors"
	"testing"

	"github.com/lockfs/lockfs/lockmgr"
)

// Two names of one file: who holds the one, and with it the inode, keeps the
// other from being had, and is waited for in line.
func TestNamesOfOneInode(t *testing.T) {
	b, etcd := newVolume(t, dial(t))
	s1, s2 := open(t, b), open(t, newBackend(t, dial(t), etcd.name))
	inode, err := lockmgr.InodeKey("", 7)
	if err != nil {
		t.Fatal(err)
	}
	held := must(t, s1, lockmgr.Queue, file("a"), inode)
	_, err = s2.Acquire(within(t, patience), request(lockmgr.NoWait, file("b"), inode))
	var contended *lockmgr.ContendedError
	if !errors.As(err, &contended) || contended.Key != inode || contended.Holder.Owner != held[0].Owner {
		t.Fatalf("the other name: %v", err)
	}
	waiting := start(within(t, patience), s2, request(lockmgr.Queue, file("b"), inode))
	eventually(t, "the other name waits", func() bool { return len(entries(t, b)) == 2 })
	release(t, s2, must(t, s2, lockmgr.Retry, tree("7"))...) // no path is the inode's
	release(t, s1, held...)
	a := await(t, waiting)
	if a.err != nil || a.grants[1].Token <= held[1].Token {
		t.Fatalf("got %+v, %v", a.grants, a.err)
	}
	release(t, s2, a.grants...)
}
