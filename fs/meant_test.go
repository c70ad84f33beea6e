package fs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/policy"
)

// An open that may mean another name than that by which the file is known gets the
// lock before it is sent to look, so that nobody changes the name meanwhile.
func TestLockedBeforeTheLook(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		t := v.t
		if err := os.Link(filepath.Join(v.source, "f"), filepath.Join(v.source, "g")); err != nil {
			t.Fatal(err)
		}
		one, two := thread{v, 1}, thread{v, 2}
		node := one.look("f")
		one.look("g")
		for _, name := range []string{"g", "f"} { // it is known as g, and as f
			one.open("one of two names", node, stale)
			one.look(name)
			two.cannotRename(name, "away")
			two.cannotRename("f", "away")
			one.open("by its name", node, fuse.OK)
		}
	})
}

// link gives a file one more name, and lets the kernel know both.
func (th thread) link(name, to string) {
	th.t.Helper()
	if err := os.Link(filepath.Join(th.source, name), filepath.Join(th.source, to)); err != nil {
		th.t.Fatal(err)
	}
	th.look(to)
	th.look(name)
}

// holdElsewhere takes the lock of a name as another mount does. It is nil if that
// cannot have it at once.
func (v *movedView) holdElsewhere(m *lockmgr.Manager, name string) *lockmgr.Hold {
	v.t.Helper()
	key, err := lockmgr.FileKey(name)
	if err != nil {
		v.t.Fatal(err)
	}
	hold, err := m.Acquire(v.t.Context(), lockmgr.Request{Owner: "another", Keys: []lockmgr.Key{key}})
	if err != nil && !errors.Is(err, lockmgr.ErrContended) {
		v.t.Fatal(err)
	}
	return hold
}

// opens begins to open a node for write. The answer comes when it is there.
func (th thread) opens(node uint64, flags uint32) <-chan fuse.Status {
	answer := make(chan fuse.Status, 1)
	go func() {
		var out fuse.OpenOut
		answer <- th.fs.Open(nil, &fuse.OpenIn{InHeader: th.header(node), Flags: unix.O_WRONLY | flags}, &out)
	}()
	synctest.Wait()
	return answer
}

// Whoever holds a name that is another file's by now may replace that file as well.
// An open that can mean the name waits for its lock, and is sent to look with it.
func TestWaitsForTheNameThatIsMeant(t *testing.T) {
	for name, others := range map[string]func(v *movedView, two thread) (meant string){
		"the file is known by its new name": func(v *movedView, two thread) string {
			v.putAway("f", "old")
			two.look("old")
			return "f"
		},
		"the file has another name": func(v *movedView, two thread) string {
			two.link("f", "g")
			v.putAway("f", "old")
			return "f"
		},
		"the kernel has renamed what is another file": func(v *movedView, two thread) string {
			v.putAway("f", "old")
			two.rename("f", "g")
			return "g"
		},
	} {
		t.Run(name, func(t *testing.T) {
			inMovedView(t, func(v *movedView) {
				v.fs.wait = time.Minute
				one, other := thread{v, 1}, v.another()
				node := one.look("f")
				meant := others(v, thread{v, 2})
				synctest.Wait()
				held := v.holdElsewhere(other, meant)
				answer := one.opens(node, 0)
				v.putAway(meant, "older") // by its holder
				select {
				case s := <-answer:
					v.t.Fatalf("it was sent to look at what is held, and may change: %v", s)
				default:
				}
				held.Release()
				if s := <-answer; s != stale {
					v.t.Fatalf("by a name that is another file's: %v", s)
				}
				synctest.Wait()
				if v.holdElsewhere(other, meant) != nil {
					v.t.Fatal("the name can change before the program has looked")
				}
				one.open("by what has the name", one.look(meant), fuse.OK)
				synctest.Wait()
				if v.holdElsewhere(other, meant) == nil || v.svc.Count() != 1 {
					v.t.Error("something stays locked")
				}
			})
		})
	}
}

// An open means the name that its file had when it came, whatever the holder makes of
// that meanwhile.
func TestHolderRenamesWhatIsWaitedFor(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		v.fs.wait, v.fs.scope = time.Minute, policy.ScopeProcess
		one, holder, other := thread{v, 1}, thread{v, uint32(os.Getpid())}, v.another()
		node := one.look("f")
		in, out := fuse.OpenIn{InHeader: holder.header(node), Flags: unix.O_WRONLY}, fuse.OpenOut{}
		if s := v.fs.Open(nil, &in, &out); !s.Ok() {
			v.t.Fatal(s)
		}
		answer := one.opens(node, 0)
		holder.rename("f", "g") // and f is free
		if s := <-answer; s != stale {
			v.t.Fatal(s)
		}
		synctest.Wait()
		if v.holdElsewhere(other, "f") != nil {
			v.t.Error("the name can change before the program has looked")
		}
		v.make("f")
		one.open("by what has the name", one.look("f"), fuse.OK)
		v.fs.Release(nil, &fuse.ReleaseIn{InHeader: in.InHeader, Fh: out.Fh})
	})
}

// What is waited for on suspicion is no reason to refuse an open: it may be one by a
// descriptor, or by another name, which nobody holds.
func TestWaitForWhatIsNotMeant(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		v.fs.wait = time.Minute
		one, two, other := thread{v, 1}, thread{v, 2}, v.another()
		node := one.look("f")
		v.putAway("f", "old")
		newer := two.look("old")
		v.holdElsewhere(other, "f")
		if s := <-one.opens(node, unix.O_NONBLOCK); s != stale {
			v.t.Errorf("without waiting: %v", s)
		}
		one.open("by the new name", newer, fuse.OK)
		node = one.look("old")
		v.renameElsewhere("old", "older")
		two.look("older")
		v.holdElsewhere(other, "old")
		one.open("a descriptor of what had a name that is held", node, stale)
		one.open("the descriptor, which is not looked up", node, fuse.OK)
	})
	inMovedView(t, func(v *movedView) {
		v.fs.wait = -1
		one, two, other := thread{v, 1}, thread{v, 2}, v.another()
		node := one.look("f")
		two.link("f", "g")
		v.putAway("g", "old")
		v.holdElsewhere(other, "g")
		one.open("one of two names", node, stale)
		one.open("by the name that nobody holds", one.look("f"), fuse.OK)
	})
}

// A handle has the locks of its file's names, and not those of names that its open
// might have meant.
func TestHandleKeepsNobodyFromAnotherName(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		one, other := thread{v, 1}, v.another()
		node := one.look("f")
		one.link("f", "g")
		v.putAway("g", "old")
		one.open("one of two names", node, stale)
		synctest.Wait()
		if v.holdElsewhere(other, "g") != nil {
			v.t.Error("a name that may be meant can change")
		}
		if s := <-one.opens(one.look("f"), 0); !s.Ok() {
			v.t.Fatal(s)
		}
		synctest.Wait()
		if v.holdElsewhere(other, "f") != nil {
			v.t.Error("the file is not locked")
		}
		if v.holdElsewhere(other, "g") == nil {
			v.t.Error("another file is locked")
		}
	})
}

// Another mount has two directories change places. An open of a file below may mean either path:
// it has both before it is sent to look, so that nobody moves or replaces what it finds. If somebody
// has one of them, the open waits for no longer than a call that tries.
func TestLockedInADirectoryThatHasMoved(t *testing.T) {
	for _, meant := range []string{"d", "e"} {
		inMovedView(t, func(v *movedView) {
			v.fs.wait = time.Minute
			one, other := thread{v, 1}, v.another()
			in := func(name string) string { return filepath.Join(v.source, name) }
			for _, dir := range []string{"d", "e"} {
				if err := os.MkdirAll(in(dir+"/sub"), 0o755); err != nil {
					v.t.Fatal(err)
				}
				v.make(dir + "/sub/f")
			}
			find := func(dir string) uint64 { return one.lookIn(one.lookIn(one.look(dir), "sub"), "f") }
			find("d")
			if err := unix.Renameat2(unix.AT_FDCWD, in("d"), unix.AT_FDCWD, in("e"), unix.RENAME_EXCHANGE); err != nil {
				v.t.Fatal(err)
			}
			node := find("e")
			one.open("in a directory that has moved", node, stale)
			synctest.Wait()
			if v.holdElsewhere(other, "d/sub/f") != nil || v.holdElsewhere(other, "e/sub/f") != nil {
				v.t.Error("what is meant can change before the program has looked")
			}
			one.open("by the name that is meant", find(meant), fuse.OK)
			synctest.Wait()
			held := v.holdElsewhere(other, "d/sub/f")
			if held == nil || v.svc.Count() != 1 {
				v.t.Fatal("something stays locked")
			}
			begin := time.Now()
			one.open("beside who has one of the paths", node, stale)
			if took := time.Since(begin); took != v.fs.nameWait {
				v.t.Errorf("it waited for %v", took)
			}
			one.open("by the one that nobody has", find("e"), fuse.OK)
			held.Release()
		})
	}
}
