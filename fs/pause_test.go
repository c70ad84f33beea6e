package fs

import (
	"testing"
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
