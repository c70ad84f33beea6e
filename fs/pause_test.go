package fs

import (
	"errors"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lockfs/lockfs/lockmgr"
)

// A signal that comes when a request is handed on already is not lost.
func TestLateSignal(t *testing.T) {
	f := &FS{}
	f.kernel.handing.relay = &relay{withheld: make(map[uint64]bool)}
	cancel := make(chan struct{})
	in := &fuse.InHeader{Unique: 2}
	if !f.kernel.handOn(in, &waiting{resume: lockmgr.Resume{Since: time.Now()}}, cancel) {
		t.Fatal("it is not handed on")
	}
	close(cancel)
	e := &exporter{f: f, st: &State{}}
	e.waiting()
	if len(e.st.Waiting) != 1 || !e.st.Waiting[0].Interrupted {
		t.Errorf("handed on: %+v", e.st.Waiting)
	}
}

// A view that cannot go on after a pause ends: its daemon then gives its locks back.
func TestResumeThatFails(t *testing.T) {
	f := newStateView(t).fs
	f.kernel.init = initOf(6) // the library refuses it
	f.kernel.options = &fuse.MountOptions{}
	f.kernel.serving.Store(endedServer())
	failed := f.Resume()
	if failed == nil {
		t.Fatal("it goes on")
	}
	if err := f.Wait(); err != failed {
		t.Errorf("it has ended with %v, want %v", err, failed)
	}
}

// A server that has begun, but gets no requests of the kernel, ends with the view.
func TestBeginThatFails(t *testing.T) {
	device, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	c := connection{
		requests: fuse.NewDefaultRawFileSystem(), options: &fuse.MountOptions{}, log: slog.New(slog.DiscardHandler),
		init: initOf(7), device: int(device.Fd()), abort: -1, ended: make(chan struct{}),
	}
	s, err := c.replay(c.requests)
	if err != nil {
		t.Fatal(err)
	}
	c.device = -1
	failed := c.begin(s)
	if failed == nil {
		t.Fatal("it goes on")
	}
	if <-c.ended; c.failed != failed {
		t.Errorf("it has ended with %v, want %v", c.failed, failed)
	}
}

// Requests that stand in line again end with a view that cannot go on.
func TestBeginThatFailsEndsWaits(t *testing.T) {
	v := newStateView(t)
	f := v.fs
	f.kernel.init, f.kernel.options = initOf(7), &fuse.MountOptions{}
	next, err := f.kernel.replay(f.kernel.requests)
	if err != nil {
		t.Fatal(err)
	}
	f.kernel.device = -1
	key, err := lockmgr.FileKey("waited for")
	if err != nil {
		t.Fatal(err)
	}
	request := lockmgr.Request{Owner: "holder", Keys: []lockmgr.Key{key}, Mode: lockmgr.Exclusive}
	if _, err := v.locks.Acquire(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	request.Owner, request.Queue, request.Wait = "waiter", true, -1
	waited := make(chan error, 1)
	go func() {
		_, err := v.locks.Acquire(t.Context(), request)
		waited <- err
	}()
	if f.goOn(next) == nil {
		t.Fatal("it goes on")
	}
	if err := <-waited; !errors.Is(err, lockmgr.ErrClosed) {
		t.Errorf("who waits for a lock is told: %v", err)
	}
	_ = f.Wait()
	if err := f.housekeeping.end(t.Context()); err != nil {
		t.Error(err)
	}
}

// A view that cannot go on has not ended while a request is under way, and is not paused again.
func TestFailedViewAwaitsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connection{log: slog.New(slog.DiscardHandler), abort: -1, ended: make(chan struct{})}
		busy := &serving{done: make(chan struct{})}
		c.former = []*serving{busy}
		c.serving.Store(endedServer())
		c.fail(errors.New("no descriptor is free"))
		synctest.Wait()
		select {
		case <-c.ended:
			t.Error("it has ended, with a request")
		default:
		}
		if err := c.divert(); err == nil {
			t.Error("it is paused again")
		}
		close(busy.done)
		<-c.ended
	})
}

// initOf is the INIT of a kernel whose protocol has the version.
func initOf(major uint32) *fuse.InitIn {
	const opcode = 26 // FUSE_INIT
	return &fuse.InitIn{InHeader: fuse.InHeader{Opcode: opcode, Unique: 2}, Major: major, Minor: 40}
}

// endedServer is one that has ended.
func endedServer() *serving {
	s := &serving{done: make(chan struct{})}
	close(s.done)
	return s
}
