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

// A creation that has got the lock, and finds a file, leaves the lock to the OPEN of
// that file.
func TestCreationFindsAFile(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		one, other := thread{v, 1}, v.another()
		held := v.holdElsewhere(other, "new")
		answer := make(chan fuse.Status, 1)
		go func() {
			var out fuse.CreateOut
			in := fuse.CreateIn{InHeader: one.header(rootID), Flags: unix.O_WRONLY | unix.O_CREAT, Mode: 0o644}
			answer <- one.fs.Create(nil, &in, "new", &out)
		}()
		synctest.Wait()
		v.make("new")
		held.Release()
		if s := <-answer; s != stale {
			v.t.Fatal(s)
		}
		synctest.Wait()
		if v.holdElsewhere(other, "new") != nil {
			v.t.Error("the file can be replaced before it is opened")
		}
		one.open("what was found", one.look("new"), fuse.OK)
		synctest.Wait()
		if v.holdElsewhere(other, "new") == nil || v.svc.Count() != 1 {
			v.t.Error("something stays locked")
		}
	})
}

// Another mount puts something else in the place of what was just made. The kernel answers
// EIO to an entry of another kind.
func TestReplacedAsItWasMade(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		t, made := v.t, v.source+"/made"
		one, remembered := thread{v, 1}, v.fs.Stats().Inodes
		header := one.header(rootID)
		for kind, make := range map[uint32]func(int) error{
			unix.S_IFDIR: func(int) error { return os.WriteFile(made, nil, 0o644) },
			unix.S_IFLNK: func(int) error { return os.WriteFile(made, nil, 0o644) },
			unix.S_IFREG: func(int) error { return os.Mkdir(made, 0o755) },
		} {
			var out fuse.EntryOut
			if s := v.fs.makeName(&header, kind, 0o755, 0, "made", &out, make); s != stale {
				t.Errorf("%#o: %v", kind, s)
			}
			if got := v.fs.Stats().Inodes; got != remembered {
				t.Errorf("%d inodes are remembered, want %d", got, remembered)
			}
			if err := os.Remove(made); err != nil {
				t.Fatal(err)
			}
		}
	})
}
