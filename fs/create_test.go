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

// A creation meets another mount that has the name. It waits for the lock, as all that
// tries, whether there is a file or not: what is removed again leaves it a free name.
func TestCreationBesideAnother(t *testing.T) {
	for name, c := range map[string]struct {
		during func(v *movedView, held *lockmgr.Hold)
		want   fuse.Status
		waits  bool // for all of nameWait
	}{
		"there is no file":              {func(*movedView, *lockmgr.Hold) {}, fuse.EBUSY, true},
		"there is a file, and it stays": {func(v *movedView, _ *lockmgr.Hold) { v.make("new") }, stale, true},
		"there was a file, and it went": {func(v *movedView, held *lockmgr.Hold) {
			v.make("new")
			time.Sleep(v.fs.nameWait / 2)
			if err := os.Remove(v.source + "/new"); err != nil {
				v.t.Error(err)
			}
			held.Release()
		}, fuse.OK, false},
	} {
		t.Run(name, func(t *testing.T) {
			inMovedView(t, func(v *movedView) {
				one, held, begin := thread{v, 1}, v.holdElsewhere(v.another(), "new"), time.Now()
				created := make(chan fuse.Status)
				var out fuse.CreateOut
				go func() {
					in := fuse.CreateIn{InHeader: one.header(rootID), Flags: unix.O_WRONLY | unix.O_CREAT, Mode: 0o644}
					created <- v.fs.Create(nil, &in, "new", &out)
				}()
				synctest.Wait()
				c.during(v, held)
				s, took := <-created, time.Since(begin)
				if s != c.want || c.waits != (took == v.fs.nameWait) {
					v.t.Errorf("%v after %v", s, took)
				}
				if s.Ok() {
					v.fs.Release(nil, &fuse.ReleaseIn{Fh: out.Fh})
				}
			})
		})
	}
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
		for kind, create := range map[uint32]func(int) error{
			unix.S_IFDIR: func(int) error { return os.WriteFile(made, nil, 0o644) },
			unix.S_IFLNK: func(int) error { return os.WriteFile(made, nil, 0o644) },
			unix.S_IFREG: func(int) error { return os.Mkdir(made, 0o755) },
		} {
			var out fuse.EntryOut
			if s := v.fs.makeName(&header, kind, 0o755, 0, "made", &out, create); s != stale {
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

// A call that fails because descriptors are short has made nothing: a program that makes its lock file
// again does not find the one of before.
func TestCreationWithoutDescriptors(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		one := thread{v, 1}
		create := func(name string) fuse.Status {
			return <-one.create(rootID, name)
		}
		made := func(name string) bool {
			_, err := os.Lstat(v.source + "/" + name)
			return err == nil
		}
		if s := create("before"); !s.Ok() { // and remembers its caller
			v.t.Fatal(s)
		}
		free, err := unix.FcntlInt(uintptr(v.fs.backing.root), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			v.t.Fatal(err)
		}
		unix.Close(free)
		withDescriptorsBelow(v.t, free+1, func() { // for the file, and not for its node
			if s := create("new"); s != fuse.Status(unix.EMFILE) {
				v.t.Errorf("creation: %v, want EMFILE", s)
			}
		})
		if made("new") {
			v.t.Error("a creation that was refused has made a file")
		}
		if s := create("new"); !s.Ok() {
			v.t.Errorf("the next one: %v", s)
		}
		node := one.look("f")
		for name, call := range map[string]func(string) fuse.Status{
			"directory": func(name string) fuse.Status {
				return v.fs.Mkdir(nil, &fuse.MkdirIn{InHeader: one.header(rootID), Mode: 0o755}, name, &fuse.EntryOut{})
			},
			"symlink": func(name string) fuse.Status {
				in := one.header(rootID)
				return v.fs.Symlink(nil, &in, "target", name, &fuse.EntryOut{})
			},
			"link": func(name string) fuse.Status { return one.tryLink(node, name) },
		} {
			withoutDescriptors(v.t, func() {
				if s := call(name); s != fuse.Status(unix.EMFILE) {
					v.t.Errorf("%s: %v, want EMFILE", name, s)
				}
			})
			if made(name) {
				v.t.Errorf("%s: it was refused, and is there", name)
			}
			if s := call(name); !s.Ok() {
				v.t.Errorf("%s, the next one: %v", name, s)
			}
		}
	})
}
