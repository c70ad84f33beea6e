package fs

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/journal"
	"github.com/lockfs/lockfs/internal/journal/journaltest"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
	"github.com/lockfs/lockfs/renew"
)

// recordedLocks returns a Manager that records, and what reads its records.
func recordedLocks(t *testing.T) (*lockmgr.Manager, *journal.Part, func() *journal.Records) {
	t.Helper()
	part, read := journaltest.Part(t)
	m, err := lockmgr.New(t.Context(), lockmgr.Config{
		Backend: lockmgrtest.NewMemory(), Renew: renew.Config{TTL: 15 * time.Second}, Logger: slog.New(slog.DiscardHandler), Record: part,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close(context.WithoutCancel(t.Context())) })
	return m, part, read
}

// At each moment of a close of a file with a flock, the records make sense: a handle has no table that
// is forgotten, and no lock is left without a handle.
func TestRecordsOfAClosedFlock(t *testing.T) {
	m, part, read := recordedLocks(t)
	v := &stateView{t: t, source: linked(t), locks: m}
	f := v.view()
	f.record, f.nodes.record = part, part
	var err error
	if f.advisory, err = m.NewAdvisory(lockmgr.AdvisoryConfig{OnLost: f.advisoryLost, OnShared: f.flushTable}); err != nil {
		t.Fatal(err)
	}
	part.Put(recordView, 0, viewRecord{})
	root := f.nodes.get(rootID)
	n := f.learn(t, f.learn(t, root, "d"), "f")
	f.nodes.mu.Lock()
	for _, n := range f.nodes.byID {
		n.lookups++
		f.nodes.note(n)
		f.nodes.noteLookups(n)
	}
	f.nodes.mu.Unlock()
	r := reservation{payer: payerOf("", 7)}
	h := f.newHandle(n, v.open("d/f", unix.O_RDWR), unix.O_RDWR, nil, &r)
	fh, _ := f.handles.add(h)
	h.fh, h.record = fh, part
	h.note()

	left := func() (*State, *lockmgr.AdvisoryState) {
		t.Helper()
		view, err := Recovered(read())
		if err != nil {
			t.Fatal(err)
		}
		locks, err := lockmgr.Recovered(read(), view.Holds, view.Tables)
		if err != nil {
			t.Fatal(err)
		}
		return view.State, locks.Advisory
	}
	lock := &fuse.LkIn{InHeader: fuse.InHeader{NodeId: n.id}, Fh: fh, LkFlags: fuse.FUSE_LK_FLOCK, Lk: fuse.FileLock{End: 1<<63 - 1, Typ: unix.F_WRLCK}}
	if s := f.SetLk(nil, lock); !s.Ok() {
		t.Fatal(s)
	}
	if view, locks := left(); len(view.Handles) != 1 || view.Handles[0].Table != 0 || len(view.Handles[0].Lockers) != 1 || len(locks.Tables[0].Locks) != 1 {
		t.Errorf("with the lock: %+v, %+v", view.Handles, locks.Tables)
	}
	h.enter() // a request that RELEASE has overtaken: the handle is there for longer than its table
	f.Release(nil, &fuse.ReleaseIn{InHeader: fuse.InHeader{NodeId: n.id}, Fh: fh})
	for {
		view, locks := left()
		if len(view.Handles) != 1 || view.Handles[0].Table != -1 {
			t.Fatalf("after the close: %+v", view.Handles)
		}
		for _, tab := range locks.Tables {
			if len(tab.Locks) > 0 {
				t.Fatalf("a lock without a handle: %+v", tab)
			}
		}
		if len(locks.Tables) == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	h.leave()
	if view, _ := left(); len(view.Handles) != 0 {
		t.Errorf("in the end: %+v", view.Handles)
	}
}

// No number is given out twice by processes that die one after the other, also if all that the last one
// has opened is closed: its RELEASE may be sent again.
func TestNumbersAfterDeaths(t *testing.T) {
	_, part, read := recordedLocks(t)
	v := &stateView{t: t, source: linked(t)}
	f := v.view()
	f.nodes.record = part
	f.nodes.mu.Lock()
	f.nodes.note(f.nodes.byID[rootID])
	f.nodes.noteLookups(f.nodes.byID[rootID])
	f.nodes.mu.Unlock()
	const former = 5 * beyond // what the last process began with
	part.Put(recordView, 0, viewRecord{NextNode: former, NextHandle: former, NextDir: former})
	view, err := Recovered(read())
	if err != nil {
		t.Fatal(err)
	}
	if s := view.State; s.NextNode <= former || s.NextHandle <= former || s.NextDir <= former {
		t.Errorf("nodes from %d, handles from %d, directories from %d; all want more than %d", s.NextNode, s.NextHandle, s.NextDir, uint64(former))
	}
}

// A CREATE that comes again, and whose file the dead process has opened, gets that file. The locks that
// were kept for it are let go: the file has its own.
func TestFormerCreateLetsItsLocksGo(t *testing.T) {
	m, err := lockmgr.New(t.Context(), lockmgr.Config{
		Backend: lockmgrtest.NewMemory(), Renew: renew.Config{TTL: 15 * time.Second}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close(t.Context()) }()
	v := &stateView{t: t, source: linked(t), locks: m}
	f := v.view()
	n := f.learn(t, f.learn(t, f.nodes.get(rootID), "d"), "f")
	r := reservation{payer: payerOf("", 7)}
	h := f.newHandle(n, v.open("d/f", unix.O_RDWR), unix.O_RDWR, nil, &r)
	h.fh, _ = f.handles.add(h)
	hold, err := m.Acquire(t.Context(), lockmgr.Request{Keys: []lockmgr.Key{{Kind: lockmgr.File, Path: "d/f"}}, Owner: "7", Mode: lockmgr.Exclusive})
	if err != nil {
		t.Fatal(err)
	}
	const request = 7
	f.calls.begun = map[uint64]*former{request: {CallState: CallState{Request: request, What: uint8(making)}, hold: hold}}
	f.calls.files = map[uint64]*handle{request: h}
	in := &fuse.CreateIn{InHeader: fuse.InHeader{NodeId: rootID, Unique: request | sentAgain}}
	var out fuse.CreateOut
	if s := f.Create(nil, in, "new", &out); !s.Ok() || out.Fh != h.fh {
		t.Errorf("the CREATE gets %v, handle %d, want %d", s, out.Fh, h.fh)
	}
	for end := time.Now().Add(3 * time.Minute); m.Stats().Held != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the locks are held for a request that was answered")
		}
	}
}

// The locks that were kept for a request end with the request, whatever it is answered, and by whom.
func TestFormerLocksEndWithTheRequest(t *testing.T) {
	const request = 7
	for name, set := range map[string]func(f *FS, in *fuse.InHeader){
		"it is refused, for it may kill": func(f *FS, _ *fuse.InHeader) { f.calls.deaths, f.calls.tries = 2, map[uint64]uint64{request: 1} },
		"its directory is not known":     func(_ *FS, in *fuse.InHeader) { in.NodeId = 1 << 40 },
		"it is not let in":               func(f *FS, _ *fuse.InHeader) { f.gates.volume.free = 0; f.gates.volume.held = newBudget(0) },
	} {
		part, _ := journaltest.Part(t)
		m, err := lockmgr.New(t.Context(), lockmgr.Config{
			Backend: lockmgrtest.NewMemory(), Renew: renew.Config{TTL: 15 * time.Second}, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		v := &stateView{t: t, source: linked(t), locks: m}
		f := v.view()
		f.calls.record, f.calls.log = part, slog.New(slog.DiscardHandler)
		f.gates = f.newGates(newBudget(backlogSize), f.log)
		hold, err := m.Acquire(t.Context(), lockmgr.Request{Keys: []lockmgr.Key{{Kind: lockmgr.File, Path: "d/f"}}, Owner: "7", Mode: lockmgr.Exclusive})
		if err != nil {
			t.Fatal(err)
		}
		f.calls.begun = map[uint64]*former{request: {CallState: CallState{Request: request, What: uint8(removing)}, hold: hold}}
		f.calls.keep()
		in := &fuse.InHeader{NodeId: rootID, Unique: request | sentAgain}
		in.Pid = uint32(os.Getpid())
		set(f, in)
		if s := (counting{f}).Unlink(nil, in, "nothing"); s.Ok() {
			t.Errorf("%s: it succeeds", name)
		}
		for end := time.Now().Add(3 * time.Minute); m.Stats().Held != 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: the locks stay", name)
			}
		}
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// A call about names is answered in the records before its locks are released: a death in between would
// leave a call of which nobody could tell whether it was made.
func TestCallsAreAnsweredUnderTheirLocks(t *testing.T) {
	m, part, read := recordedLocks(t)
	v := &stateView{t: t, source: t.TempDir(), locks: m}
	f := v.view()
	f.record, f.nodes.record, f.calls.record = part, part, part
	f.gates = f.newGates(newBudget(backlogSize), f.log)
	for _, name := range []string{"a", "b", "c", "dir/x", "dir2/x"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(v.source, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(v.source, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(v.source, "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	root := f.nodes.get(rootID)
	a := f.learn(t, root, "a")
	header := func(unique uint64) fuse.InHeader {
		return fuse.InHeader{NodeId: rootID, Unique: unique, Caller: fuse.Caller{Pid: uint32(os.Getpid())}}
	}
	for request, call := range map[uint64]func(in fuse.InHeader) fuse.Status{
		2: func(in fuse.InHeader) fuse.Status { return f.Unlink(nil, &in, "c") },
		4: func(in fuse.InHeader) fuse.Status { return f.Rmdir(nil, &in, "empty") },
		6: func(in fuse.InHeader) fuse.Status {
			return f.Rename(nil, &fuse.RenameIn{InHeader: in, Newdir: rootID}, "b", "b2")
		},
		8: func(in fuse.InHeader) fuse.Status {
			return f.Rename(nil, &fuse.RenameIn{InHeader: in, Newdir: rootID}, "dir", "dir3")
		},
		10: func(in fuse.InHeader) fuse.Status {
			return f.Link(nil, &fuse.LinkIn{InHeader: in, Oldnodeid: a.id}, "a2", &fuse.EntryOut{})
		},
	} {
		if s := call(header(request)); !s.Ok() {
			t.Errorf("request %d: %v", request, s)
		}
		r := &recovery{}
		r.State = &State{}
		if err := r.calls(read()); err != nil {
			t.Fatal(err)
		}
		found := false
		for _, c := range r.State.Calls {
			if c.Request == request {
				found = true
				if !c.Answered || c.Status != 0 {
					t.Errorf("request %d: its locks are released, and its answer is not recorded", request)
				}
			}
		}
		if !found {
			t.Errorf("request %d is not recorded", request)
		}
	}
}
