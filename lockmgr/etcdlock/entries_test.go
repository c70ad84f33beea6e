package etcdlock_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
)

// Rivals reads the entries of one file, and no others of the volume: programs ask for them in
// loops.
func TestRivalsReadLittle(t *testing.T) {
	client := dial(t)
	var read atomic.Int64
	onTxn(client, func(t *txn) (*clientv3.TxnResponse, error) {
		resp, err := t.send()
		byItself := strings.Contains(string(t.then[0].KeyBytes()), "/break/") // a read of the mount's watch
		if err == nil && !byItself {
			for _, r := range resp.Responses {
				read.Add(int64(len(r.GetResponseRange().GetKvs())))
			}
		}
		return resp, err
	})
	b := newBackend(t, client, newName(), func(c *etcdlock.Config) { c.JanitorInterval = time.Hour })
	s := open(t, b)
	for i := range 20 {
		ino, err := lockmgr.InodeKey("", uint64(i+1))
		if err != nil {
			t.Fatal(err)
		}
		must(t, s, lockmgr.NoWait, tree(fmt.Sprint("dir", i)), file(fmt.Sprint("file", i)), ino)
	}
	must(t, s, lockmgr.NoWait, tree("a/b"))
	for k, want := range map[lockmgr.Key]int64{file("file3"): 1, file("a/b/c/d"): 1, file("a/c"): 0, tree("a"): 1, tree("file3"): 1} {
		read.Store(0)
		list, err := b.Rivals(within(t, patience), k)
		if err != nil || int64(len(list)) != want || read.Load() != want {
			t.Errorf("%v: %v, %v, and %d keys were read, want %d", k, list, err, read.Load(), want)
		}
	}
}

// What conflicts with a file is read in one Txn, however far below the root the file is.
func TestRivalsFarBelow(t *testing.T) {
	b, _ := newVolume(t, dial(t))
	g := must(t, open(t, b), lockmgr.NoWait, tree("d"))
	for depth := 120; depth < 135; depth++ {
		list, err := b.Rivals(within(t, patience), file(strings.Repeat("d/", depth)+"f"))
		if err != nil || len(list) != 1 || list[0].Grant() != g[0] {
			t.Errorf("%d directories: %v, %v", depth, list, err)
		}
	}
}
