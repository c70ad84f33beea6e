package fs

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// A creation meets another mount that is about to make a file of the name, and
// keeps it open. It waits for the file to be there, not for its lock: the kernel
// lets nobody else into the directory meanwhile.
func TestCreationBesideAnother(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		t := v.t // of the bubble
		key, err := lockmgr.FileKey("new")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := v.another().Acquire(t.Context(), lockmgr.Request{Owner: "another", Keys: []lockmgr.Key{key}}); err != nil {
			t.Fatal(err)
		}
		one, begin := thread{v, 1}, time.Now()
		created := make(chan fuse.Status)
		go func() {
			created <- v.fs.Create(nil, &fuse.CreateIn{InHeader: one.header(rootID), Flags: unix.O_WRONLY | unix.O_CREAT}, "new", &fuse.CreateOut{})
		}()
		synctest.Wait()
		v.make("new")
		if s, took := <-created, time.Since(begin); s != stale || took > 2*therePoll {
			t.Errorf("%v after %v", s, took)
		}
		if err := os.Remove(v.source + "/new"); err != nil {
			t.Fatal(err)
		}
		begin = time.Now()
		go func() {
			created <- v.fs.Create(nil, &fuse.CreateIn{InHeader: one.header(rootID), Flags: unix.O_WRONLY | unix.O_CREAT}, "new", &fuse.CreateOut{})
		}()
		if s, took := <-created, time.Since(begin); s != fuse.EBUSY || took != v.fs.nameWait {
			t.Errorf("where there is no file: %v after %v", s, took)
		}
	})
}
