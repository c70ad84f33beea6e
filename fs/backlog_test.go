package fs

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// holdAll has a caller's waiting requests hold all the memory that it may.
func (th thread) holdAll() {
	in := th.header(rootID)
	p, held := th.fs.gates.volume.payer(&in), th.fs.gates.volume.held
	for n := int64(backlogSize); n > 0; {
		if !held.take(p, n) {
			n /= 2
		}
	}
}

// A change that was made is answered as such, whatever its caller's other requests hold: the session
// may be suspended right after it.
func TestChangeThatWasMadeIsNotRefused(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		one := thread{v, 1}
		node := one.look("f")
		fh, _ := one.opened(node, unix.O_WRONLY)
		h := v.fs.handles.get(fh)
		in := one.header(node)
		in.Unique = 7
		large := guest{memory: waiterBytes(4096, 0)}
		if err := v.fs.gates.volume.enter(&in, large, nil, nil); err != nil {
			t.Fatal(err)
		}
		one.holdAll()
		suspended := func() {
			v.svc.Disconnect()
			for h.hold.Check() == nil {
				time.Sleep(time.Millisecond)
			}
			if err := h.hold.Check(); !errors.Is(err, lockmgr.ErrSuspended) {
				t.Errorf("after the lock service has gone: %v", err)
			}
			time.AfterFunc(time.Second, v.svc.Connect)
		}
		s := v.fs.change(nil, &in, h, func(check func() error) error {
			err := check()
			suspended()
			return err
		})
		if !s.Ok() {
			t.Errorf("it is answered with %v", s)
		}
		suspended()
		s = v.fs.change(nil, &in, h, func(func() error) error {
			t.Error("it is made")
			return nil
		})
		if s != fuse.Status(unix.ENOMEM) {
			t.Errorf("a change that would wait: %v, want ENOMEM", s)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		v.fs.Release(nil, &fuse.ReleaseIn{InHeader: one.header(node), Fh: fh})
	})
}

// A creation that is refused for lack of memory does not look at the volume, where it might hang.
func TestRefusedCreationStaysOutside(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		one := thread{v, 1}
		other := v.another()
		key, err := lockmgr.FileKey("f")
		if err != nil {
			t.Fatal(err)
		}
		hold, err := other.Acquire(v.t.Context(), lockmgr.Request{Owner: "other", Keys: []lockmgr.Key{key}})
		if err != nil {
			t.Fatal(err)
		}
		in := fuse.CreateIn{InHeader: one.header(rootID), Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL, Mode: 0o644}
		in.Unique = 7
		large := guest{memory: waiterBytes(4096, 0)}
		if err := v.fs.gates.volume.enter(&in.InHeader, large, nil, nil); err != nil {
			t.Fatal(err)
		}
		one.holdAll()
		if s := v.fs.Create(nil, &in, "f", &fuse.CreateOut{}); s != fuse.Status(unix.ENOMEM) { // and not EEXIST
			t.Errorf("creation: %v, want ENOMEM", s)
		}
		hold.Release()
		synctest.Wait()
	})
}
