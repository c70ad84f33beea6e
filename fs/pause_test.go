package fs

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lockfs/lockfs/lockmgr"
)

// A flush that the volume does not answer neither delays a refusal nor ends the background work.
func TestRestIsBounded(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		f := v.fs
		f.working = make(chan struct{}, 1)
		hangs := make(chan struct{})
		f.cancel, f.stopped = func() {}, hangs
		f.working <- struct{}{}
		for range 2 {
			ctx, cancel := context.WithTimeout(v.t.Context(), time.Second)
			began := time.Now()
			if err := f.rest(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
				t.Errorf("%v, after %v", err, time.Since(began))
			}
			cancel()
		}
		close(hangs)
		synctest.Wait()
		if err := f.rest(v.t.Context()); err != nil {
			t.Errorf("when the volume answers: %v", err)
		}
		f.work()
		f.cancel()
	})
}

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
