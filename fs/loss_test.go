package fs

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// Files whose last change hangs, however many, keep the lock of no other file that is lost with them.
func TestLossBesideHungChanges(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		v.fs.sync = SyncClose
		one := thread{v, 1}
		landing := make(chan struct{})
		var opened []*handle
		var holds []*lockmgr.Hold
		for i := range bereaving + 1 {
			name := fmt.Sprint(i)
			v.make(name)
			fh, _ := one.opened(one.look(name), unix.O_WRONLY)
			h := v.fs.handles.get(fh)
			opened, holds = append(opened, h), append(holds, h.hold)
			if i == bereaving {
				break // the last one writes nothing
			}
			in := one.header(h.node.id)
			go v.fs.change(nil, &in, h, func(check func() error) error {
				err := check()
				<-landing
				return err
			})
		}
		synctest.Wait()
		v.fs.locks.Abandon(holds[:bereaving], errors.New("gone"))
		time.Sleep(time.Second) // they have been told
		v.fs.locks.Abandon(holds[bereaving:], errors.New("gone"))
		key, err := lockmgr.FileKey(fmt.Sprint(bereaving))
		if err != nil {
			t.Fatal(err)
		}
		next, err := v.another().Acquire(v.t.Context(), lockmgr.Request{Owner: "next", Keys: []lockmgr.Key{key}, Queue: true, Wait: 5 * time.Second})
		if err != nil {
			t.Errorf("the lock of a file without a change: %v", err)
		} else {
			next.Release()
		}
		close(landing)
		for _, h := range opened {
			v.fs.Release(nil, &fuse.ReleaseIn{InHeader: one.header(h.node.id), Fh: h.fh})
		}
		synctest.Wait()
	})
}
