package fs

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// create creates a file in a directory, and keeps it open. The answer comes when it
// is there.
func (th thread) create(dir uint64, name string) <-chan fuse.Status {
	answer := make(chan fuse.Status, 1)
	go func() {
		in := fuse.CreateIn{InHeader: th.header(dir), Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL, Mode: 0o644}
		answer <- th.fs.Create(nil, &in, name, &fuse.CreateOut{})
	}()
	return answer
}

// moveWhile renames the directory d to e as another mount does, while a request
// waits for the lock of name, and has another request of the mount find out.
func (v *movedView) moveWhile(name string, request func(dir uint64) <-chan fuse.Status) (answer fuse.Status, other *lockmgr.Manager) {
	v.t.Helper()
	if err := os.Mkdir(filepath.Join(v.source, "d"), 0o755); err != nil {
		v.t.Fatal(err)
	}
	v.make("d/f")
	other = v.another()
	held := v.holdElsewhere(other, name)
	dir := thread{v, 1}.look("d")
	got := request(dir)
	synctest.Wait()
	v.renameElsewhere("d", "e")
	if s := <-(thread{v, 2}).create(dir, "beside"); !s.Ok() {
		v.t.Fatal(s)
	}
	held.Release()
	return <-got, other
}

// What is created in a directory that has moved meanwhile has the lock of where it
// is, also if it is another request that has found the directory there.
func TestCreationInDirectoryFoundElsewhere(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		s, other := v.moveWhile("d/new", func(dir uint64) <-chan fuse.Status { return thread{v, 1}.create(dir, "new") })
		if !s.Ok() {
			v.t.Fatal(s)
		}
		if _, err := os.Stat(filepath.Join(v.source, "e/new")); err != nil {
			v.t.Error(err)
		}
		synctest.Wait()
		if v.holdElsewhere(other, "e/new") != nil {
			v.t.Error("the file has a second writer")
		}
		if v.holdElsewhere(other, "d/new") == nil {
			v.t.Error("a file of the old path is kept from others")
		}
	})
}

// A name is removed under the lock of where its directory is, also if another request
// has found that there.
func TestUnlinkInDirectoryFoundElsewhere(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		s, _ := v.moveWhile("d/f", func(dir uint64) <-chan fuse.Status {
			answer := make(chan fuse.Status, 1)
			go func() {
				in := thread{v, 1}.header(dir)
				answer <- v.fs.Unlink(nil, &in, "f")
			}()
			return answer
		})
		if !s.Ok() {
			v.t.Error(s)
		}
		if _, err := os.Stat(filepath.Join(v.source, "e/f")); err == nil {
			v.t.Error("it is there")
		}
	})
}
