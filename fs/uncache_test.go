package fs

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/procid"
)

// opened opens a node, and returns the handle and how the kernel is to use it.
func (th thread) opened(node uint64, flags uint32) (fh uint64, how uint32) {
	th.t.Helper()
	in, out := fuse.OpenIn{InHeader: th.header(node), Flags: flags}, fuse.OpenOut{}
	if s := th.fs.Open(nil, &in, &out); !s.Ok() {
		th.t.Fatalf("open: %v", s)
	}
	return out.Fh, out.OpenFlags
}

// A reader that has pages of the file cached sees what a writer on the same node writes past
// the cache, also within one tick of the volume's clock.
func TestWriteDropsCachedPages(t *testing.T) {
	type notice struct{ off, length int64 }
	inMovedView(t, func(v *movedView) {
		one, two := thread{v, 1}, thread{v, 2}
		node := one.look("f")
		writer, how := one.opened(node, unix.O_WRONLY|unix.O_APPEND)
		if how&fuse.FOPEN_DIRECT_IO == 0 {
			t.Fatal("an append goes by the kernel's cache")
		}
		var dropped []notice
		v.fs.invalidate = func(_ uint64, off, length int64) fuse.Status {
			if off >= 0 {
				dropped = append(dropped, notice{off, length})
			}
			return fuse.OK
		}
		write := func(off uint64, openFlags, how uint32) []notice {
			t.Helper()
			dropped = nil
			in := fuse.WriteIn{InHeader: one.header(node), Fh: writer, Offset: off, Size: 3, Flags: openFlags, WriteFlags: how}
			if _, s := v.fs.Write(nil, &in, []byte("abc")); !s.Ok() && how == 0 {
				t.Fatalf("write: %v", s)
			}
			return dropped
		}
		appends := uint32(unix.O_WRONLY | unix.O_APPEND)
		if got := write(0, appends, 0); got != nil {
			t.Errorf("nobody has it cached, and the kernel drops %v", got)
		}
		reader, how := two.opened(node, unix.O_RDONLY)
		if how&fuse.FOPEN_DIRECT_IO != 0 {
			t.Fatal("a read goes past the kernel's cache")
		}
		if got, want := write(3, appends, 0), []notice{{3, 0}}; !slices.Equal(got, want) {
			t.Errorf("after an append the kernel drops %v, want %v", got, want)
		}
		if got, want := write(1, unix.O_WRONLY, 0), []notice{{1, 3}}; !slices.Equal(got, want) {
			t.Errorf("after a write the kernel drops %v, want %v", got, want)
		}
		// The kernel waits for this one before it drops the page that it is from.
		if got := write(0, unix.O_WRONLY, fuse.WRITE_CACHE); got != nil {
			t.Errorf("while a mapping is written back the kernel drops %v", got)
		}
		v.fs.Release(nil, &fuse.ReleaseIn{InHeader: two.header(node), Fh: reader})
		if got := write(6, appends, 0); got != nil {
			t.Errorf("the reader has closed it, and the kernel drops %v", got)
		}
		v.fs.Release(nil, &fuse.ReleaseIn{InHeader: one.header(node), Fh: writer})
	})
}

// A page that the kernel cannot drop, as somebody's read of it hangs in the volume, does not
// hold a writer that is killed, nor the lock.
func TestKilledWhilePagesAreDropped(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "1"), 0o755); err != nil {
		t.Fatal(err)
	}
	status := "Name:\tprog\nTgid:\t1\nPid:\t1\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000100\n"
	if err := os.WriteFile(filepath.Join(root, "1", "status"), []byte(status), 0o644); err != nil {
		t.Fatal(err)
	}
	inMovedView(t, func(v *movedView) {
		one, two := thread{v, 1}, thread{v, 2}
		node := one.look("f")
		writer, _ := one.opened(node, unix.O_WRONLY)
		reader, _ := two.opened(node, unix.O_RDONLY)
		v.fs.procs = procid.Proc{Root: root}
		hangs := make(chan struct{})
		v.fs.invalidate = func(uint64, int64, int64) fuse.Status { <-hangs; return fuse.OK }
		cancel, done := make(chan struct{}), make(chan fuse.Status)
		go func() {
			in := fuse.WriteIn{InHeader: one.header(node), Fh: writer, Size: 3, Flags: unix.O_WRONLY}
			_, s := v.fs.Write(cancel, &in, []byte("abc"))
			done <- s
		}()
		synctest.Wait()
		select {
		case s := <-done:
			t.Errorf("the write does not wait for the kernel: %v", s)
			return
		default:
		}
		close(cancel)
		<-done
		v.fs.Release(nil, &fuse.ReleaseIn{InHeader: one.header(node), Fh: writer})
		synctest.Wait()
		if held := v.fs.locks.Stats().Held; held != 0 {
			t.Errorf("%d locks are held by a file that is closed", held)
		}
		v.fs.Release(nil, &fuse.ReleaseIn{InHeader: two.header(node), Fh: reader})
		close(hangs)
	})
}

// A handle that bypasses the kernel's cache can be mapped all the same, and its pages are dropped too.
func TestWriteDropsMappedPages(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		one := thread{v, 1}
		node := one.look("f")
		fh, how := one.opened(node, unix.O_RDWR|unix.O_APPEND)
		if how&fuse.FOPEN_DIRECT_IO == 0 {
			t.Fatal("an append goes by the kernel's cache")
		}
		var dropped []int64
		v.fs.invalidate = func(_ uint64, off, _ int64) fuse.Status {
			dropped = append(dropped, off)
			return fuse.OK
		}
		write := func(off uint64) {
			t.Helper()
			in := fuse.WriteIn{InHeader: one.header(node), Fh: fh, Offset: off, Size: 3, Flags: unix.O_RDWR | unix.O_APPEND}
			if _, s := v.fs.Write(nil, &in, []byte("abc")); !s.Ok() {
				t.Fatalf("write: %v", s)
			}
		}
		write(0)
		if len(dropped) > 0 {
			t.Errorf("nothing was read, and the kernel drops pages from %v", dropped)
		}
		read := fuse.ReadIn{InHeader: one.header(node), Fh: fh, Size: 3}
		if _, s := v.fs.Read(nil, &read, make([]byte, 3)); !s.Ok() { // as for a page of a mapping
			t.Fatalf("read: %v", s)
		}
		write(3)
		if !slices.Equal(dropped, []int64{3}) {
			t.Errorf("the kernel drops pages from %v, want from 3", dropped)
		}
		v.fs.Release(nil, &fuse.ReleaseIn{InHeader: one.header(node), Fh: fh})
	})
}
