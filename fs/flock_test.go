package fs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/advisory"
)

// A lock that was granted, and fails because the volume does not answer, takes nothing from its
// owner: the owner goes on to write under what it had of the range before.
func TestFailedLockTakesNothing(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		t, f := v.t, v.fs
		f.backing.local = false
		var err error
		if f.advisory, err = f.locks.NewAdvisory(lockmgr.AdvisoryConfig{OnLost: f.advisoryLost}); err != nil {
			t.Fatal(err)
		}
		elsewhere, err := v.another().NewAdvisory(lockmgr.AdvisoryConfig{})
		if err != nil {
			t.Fatal(err)
		}
		n := f.learn(t, f.nodes.get(rootID), "f")
		r := reservation{payer: payerOf("", 7)}
		fd, err := unix.Open(v.source+"/f", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		h := f.newHandle(n, fd, unix.O_RDWR, nil, &r)
		h.fh, _ = f.handles.add(h)
		lock := func(kind uint32, start, end uint64) fuse.Status {
			return f.SetLk(nil, &fuse.LkIn{
				InHeader: fuse.InHeader{NodeId: n.id}, Fh: h.fh, Owner: 1, Lk: fuse.FileLock{Start: start, End: end, Typ: kind},
			})
		}
		for at, kind := range map[uint64]uint32{0: unix.F_WRLCK, 100: unix.F_RDLCK} {
			if s := lock(kind, at, at+99); !s.Ok() {
				t.Fatal(s)
			}
		}
		key, err := f.advisoryKey(h)
		if err != nil {
			t.Fatal(err)
		}
		table := elsewhere.Open(key, nil)
		defer table.Close()
		other := elsewhere.Owner(advisory.Posix, 1)

		file, err := unix.FcntlInt(uintptr(h.fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(file)
		socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(socket)
		become := func(of int) {
			if err := unix.Dup3(of, h.fd, unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
		}
		for what, c := range map[string]struct {
			kind       uint32
			start, end uint64
			lost       bool
			at         uint64 // what the other mount wants then
			want       error
		}{
			"a part of what it has":          {unix.F_WRLCK, 10, 19, false, 10, lockmgr.ErrContended},
			"more than it has":               {unix.F_WRLCK, 190, 209, false, 190, lockmgr.ErrContended},
			"for write what it has for read": {unix.F_WRLCK, 110, 119, false, 110, lockmgr.ErrContended},
			"by a handle that is lost":       {unix.F_WRLCK, 20, 29, true, 20, lockmgr.ErrContended},
			"what it does not have":          {unix.F_WRLCK, 300, 309, false, 300, nil},
		} {
			if h.lost.Store(c.lost); !c.lost {
				become(socket) // which cannot be opened anew
			}
			if s := lock(c.kind, c.start, c.end); s.Ok() || s == fuse.EAGAIN {
				t.Errorf("%s: %v, want the volume's error", what, s)
			}
			become(file)
			l := advisory.Lock{Owner: other, Start: c.at, End: c.at, Exclusive: true}
			if _, err := table.Lock(t.Context(), l, false); !errors.Is(err, c.want) {
				t.Errorf("%s: another mount gets %v, want %v", what, err, c.want)
			}
		}
		table.Unlock(nil, other, 0, advisory.EOF)
		f.Release(nil, &fuse.ReleaseIn{InHeader: fuse.InHeader{NodeId: n.id}, Fh: h.fh})
		<-h.gone
	})
}

// The locks of a file on a file system below the volume's are under a key with the path. When a directory
// above is renamed, those who come by the new path meet those who have locked by the former one.
func TestFlockWhileADirectoryAboveIsRenamed(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		t, f := v.t, v.fs
		var err error
		if f.advisory, err = f.locks.NewAdvisory(lockmgr.AdvisoryConfig{OnLost: f.advisoryLost}); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(v.source, "d"), 0o755); err != nil {
			t.Fatal(err)
		}
		v.make("d/f")
		f.backing.device.Store(0) // so d is on another file system than the volume
		one := thread{v, 1}
		node := one.lookIn(one.look("d"), "f")
		open := func() uint64 {
			var out fuse.OpenOut
			if s := f.Open(nil, &fuse.OpenIn{InHeader: one.header(node)}, &out); !s.Ok() {
				t.Fatal(s)
			}
			return out.Fh
		}
		flock := func(fh uint64) fuse.Status {
			return f.SetLk(nil, &fuse.LkIn{
				InHeader: one.header(node), Fh: fh, Lk: fuse.FileLock{End: advisory.EOF, Typ: unix.F_WRLCK}, LkFlags: fuse.FUSE_LK_FLOCK,
			})
		}
		release := func(fh uint64) {
			h := f.handles.get(fh)
			f.Release(nil, &fuse.ReleaseIn{InHeader: one.header(node), Fh: fh})
			<-h.gone
		}
		first := open()
		if s := flock(first); !s.Ok() {
			t.Fatal(s)
		}
		one.rename("d", "e")
		second := open()
		if s := flock(second); s != fuse.EAGAIN {
			t.Errorf("a second lock, by the new path: %v, want EAGAIN", s)
		}
		release(first)
		if s := flock(second); !s.Ok() {
			t.Errorf("when the first one has ended: %v", s)
		}
		release(second)
	})
}
