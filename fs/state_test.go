package fs

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
	"github.com/lockfs/lockfs/renew"
)

// stateView is a view without a kernel that has one of each thing that is handed on.
type stateView struct {
	t      *testing.T
	source string
	locks  *lockmgr.Manager
	fs     *FS
}

func newStateView(t *testing.T) *stateView {
	t.Helper()
	source := linked(t)
	for _, name := range []string{"h", "gone", "retired", "former", "let go", "d/below"} {
		if err := os.WriteFile(filepath.Join(source, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m, err := lockmgr.New(t.Context(), lockmgr.Config{
		Backend: lockmgrtest.NewMemory(), Renew: renew.Config{TTL: 15 * time.Second}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close(t.Context()) })
	v := &stateView{t: t, source: source, locks: m}
	v.fs = v.view()
	v.fill()
	return v
}

func (v *stateView) view() *FS {
	v.t.Helper()
	b, err := openBacking(v.source)
	if err != nil {
		v.t.Fatal(err)
	}
	f := newFS(b, "/nowhere", Config{Source: v.source, Locks: v.locks, Pool: NewPool(), Logger: slog.New(slog.DiscardHandler)})
	v.t.Cleanup(f.nodes.close)
	return f
}

func (v *stateView) open(name string, flags int) int {
	v.t.Helper()
	fd, err := unix.Open(filepath.Join(v.source, name), flags|unix.O_CLOEXEC, 0)
	if err != nil {
		v.t.Fatal(err)
	}
	return fd
}

func (v *stateView) hold(path string, mode lockmgr.Mode) *lockmgr.Hold {
	v.t.Helper()
	key, err := lockmgr.FileKey(path)
	if err != nil {
		v.t.Fatal(err)
	}
	h, err := v.locks.Acquire(v.t.Context(), lockmgr.Request{Owner: "o", Keys: []lockmgr.Key{key}, Mode: mode})
	if err != nil {
		v.t.Fatal(err)
	}
	return h
}

func (v *stateView) fill() {
	f, t := v.fs, v.t
	ago := func(s float64) time.Time { return time.Now().Add(-time.Duration(s * float64(time.Second))) }
	f.kernel.init, f.kernel.answer, f.kernel.device = &fuse.InitIn{Major: 7}, []byte("answer"), v.open("d", unix.O_RDONLY)
	f.kernel.dev = "0:39"
	root := f.nodes.get(rootID)
	d := f.learn(t, root, "d")
	e := f.learn(t, root, "e")
	link := f.learn(t, d, "f")
	f.learn(t, e, "f") // the same, by another name
	h := f.learn(t, root, "h")
	gone := f.learn(t, root, "gone")
	retired, former := f.learn(t, root, "retired"), f.learn(t, root, "former")
	letGo := f.learn(t, root, "let go")
	below := f.learn(t, d, "below")
	fd, st, err := f.backing.lookAt(root.fd, "former", asUsual)
	if err != nil {
		t.Fatal(err)
	}
	f.nodes.mu.Lock()
	f.nodes.retire(retired)
	former.former = true
	delete(f.nodes.byInode, former.inode)
	f.nodes.learnLocked(dirName{root, "now"}, fd, &st, former.held)
	link.moved, link.alias, link.lookups = ago(15), dirName{e, "f"}, 7
	gone.parent, gone.name = nil, ""
	for i := range link.shown {
		link.shown[i].at = ago(25)
	}
	f.nodes.mu.Unlock()
	unix.Close(letGo.fd)
	letGo.fd = -1
	h.told = told{true, 5, unix.Timespec{Sec: 3, Nsec: 4}, ago(35)}
	h.awaited.Store(time.Now().Add(105 * time.Second).UnixNano())
	f.nodes.forget(d.id, d.lookups) // others name it still
	f.nodes.mu.Lock()
	for _, n := range f.nodes.byID {
		for i := range n.shown {
			n.shown[i].at = ago(25)
		}
	}
	f.nodes.mu.Unlock()

	handle := func(n *node, name string, flags int, hold *lockmgr.Hold, pod string) *handle {
		r := reservation{payer: payerOf(pod, 7)}
		o := f.newHandle(n, v.open(name, flags), uint32(flags), hold, &r)
		o.reserved.payer = payerOf(pod, 7)
		if hold != nil {
			n.addHold(hold)
		}
		if _, ok := f.handles.add(o); !ok {
			t.Fatal("no handle")
		}
		return o
	}
	handle(link, "d/f", unix.O_RDONLY, nil, "")
	w := handle(h, "h", unix.O_RDWR|unix.O_SYNC, v.hold("h", lockmgr.Exclusive), "pod")
	w.caches, w.mode = true, lockmgr.Exclusive
	h.cachers.Add(1)
	w.unflushed.dirty.Store(true)
	w.locks.Store(true)
	h.grants.Add(1) // since then an advisory lock was granted
	broken := handle(gone, "gone", unix.O_WRONLY, v.hold("gone", lockmgr.Exclusive), "pod")
	broken.mode = lockmgr.Exclusive
	failed := error(unix.ENOSPC)
	broken.unflushed.failed.Store(&failed)
	shared := handle(below, "d/below", unix.O_RDONLY, v.hold("d/below", lockmgr.Shared), "")
	shared.mode = lockmgr.Shared

	for i, rest := range []string{"", "entries not sent yet"} {
		dir := &dirHandle{node: e, fd: v.open("e", unix.O_RDONLY), next: uint64(40 + i), reserved: reservation{payer: payerOf("", 8)}}
		if rest != "" {
			dir.buf = dirBuffers.Get().(*[dirBuffer]byte)
			dir.rest = dir.buf[:copy(dir.buf[:], rest)]
		}
		f.dirs.add(dir)
	}

	now := time.Now()
	f.visits.paused = now
	f.visits.threads = map[uint32]*sent{
		11: {stage: fresh, node: h.id, when: now.Add(-time.Second), hold: v.hold("parked", lockmgr.Exclusive), meant: []dirName{{d, "f"}, {e, "f"}}},
		12: {
			stage: retried, node: link.id, when: now.Add(-2 * time.Second), looked: true, over: true, found: link.id, as: dirName{e, "f"},
			asked: []answer{{dirName{d, "f"}, link.id}}, way: way{root, "e/f"}, steps: map[uint64]string{e.id: "e"}, mode: lockmgr.Shared,
		},
	}
	waits := func(opcode uint32, unique uint64, more ...string) *waiting {
		in := &fuse.LkIn{InHeader: fuse.InHeader{Opcode: opcode, Unique: unique, NodeId: h.id, Caller: fuse.Caller{Pid: 13}}}
		return &waiting{request: message(in, more...), resume: lockmgr.Resume{ID: lockmgr.NewAcquisitionID(), Since: time.Unix(5, 0)}}
	}
	open, unlink := waits(14, 2), waits(10, 4, "name")
	open.visit = visit{tid: 13, node: h.id, stage: nameless, way: way{root, "h"}, as: dirName{root, "h"}}
	open.at, open.path = dirName{root, "h"}, "h"
	lock := waits(33, 6)
	lock.signalled = true
	f.kernel.handing.waiting = []*waiting{open, unlink, lock}
}

// state is what is handed on.
type state struct {
	*State
	fds   []int
	holds []*lockmgr.Hold
}

func exported(t *testing.T, f *FS) state {
	t.Helper()
	st, fds, holds, tables, err := f.Export()
	if err != nil || len(tables) > 0 {
		t.Fatal(tables, err)
	}
	return state{st, fds, holds}
}

// sent is the state as another process gets it.
func (s state) sent(t *testing.T) (got state) {
	t.Helper()
	var wire bytes.Buffer
	if err := gob.NewEncoder(&wire).Encode(s.State); err != nil {
		t.Fatal(err)
	}
	got.State, got.holds = new(State), slices.Clone(s.holds)
	if err := gob.NewDecoder(&wire).Decode(got.State); err != nil {
		t.Fatal(err)
	}
	for _, fd := range s.fds {
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		got.fds = append(got.fds, own)
	}
	return got
}

// imported makes a view of a state.
func (v *stateView) imported(s state) (*FS, error) {
	v.t.Helper()
	i := &importer{f: v.view(), st: s.State, fds: s.fds, holds: s.holds, now: time.Now()}
	err := i.all()
	if err != nil {
		i.closeAll()
		i.f.nodes.mu.Lock()
		clear(i.f.nodes.byID) // whose descriptors are closed
		i.f.nodes.mu.Unlock()
	}
	return i.f, err
}

// lines are what a state says, whatever the order of its parts. Of ages they have whole seconds.
func (s state) lines(t *testing.T) (lines []string) {
	t.Helper()
	id := func(at int) int {
		if at < 0 {
			return -1
		}
		return int(s.Nodes[at].ID)
	}
	file := func(at int) int {
		var st unix.Stat_t
		if at < 0 {
			return -1
		}
		if err := unix.Fstat(s.fds[at], &st); err != nil {
			t.Fatal(err)
		}
		return int(st.Ino)
	}
	hold := func(at int) int {
		if at < 0 {
			return -1
		}
		return 1
	}
	age := func(d *time.Duration) {
		if *d > 0 {
			*d = d.Truncate(10 * time.Second) // it grows while a slow machine runs the test
		}
	}
	name := func(n *Name) { n.Dir = id(n.Dir) }
	add := func(what string, part any) { lines = append(lines, fmt.Sprintf("%s %+v", what, part)) }
	for _, n := range s.Nodes {
		n.FD = file(n.FD)
		name(&n.In)
		name(&n.Alias)
		n.Shown = slices.Clone(n.Shown)
		for i := range n.Shown {
			name(&n.Shown[i].Name)
			age(&n.Shown[i].Age)
		}
		age(&n.Moved)
		age(&n.ToldChanged)
		age(&n.AwaitedFor)
		add("node", n)
	}
	for _, g := range s.Groups {
		var ids []int
		for _, at := range g {
			ids = append(ids, id(at))
		}
		slices.Sort(ids)
		add("file", ids)
	}
	for _, h := range s.Handles {
		h.Node, h.FD, h.Hold = id(h.Node), file(h.FD), hold(h.Hold)
		add("handle", h)
	}
	for _, d := range s.Dirs {
		d.Node, d.FD = id(d.Node), file(d.FD)
		add("directory", d)
	}
	for _, v := range s.Visits {
		v.Hold, v.Way.From = hold(v.Hold), id(v.Way.From)
		name(&v.As)
		v.Meant, v.Asked = slices.Clone(v.Meant), slices.Clone(v.Asked)
		for i := range v.Meant {
			name(&v.Meant[i])
		}
		for i := range v.Asked {
			name(&v.Asked[i].Name)
		}
		add("visit", v)
	}
	for _, w := range s.Waiting {
		w.Way.From = id(w.Way.From)
		name(&w.As)
		name(&w.At)
		add("waiting", w)
	}
	add("connection", []any{s.Init, s.Answer, file(s.Device), s.Dev, s.NextNode, s.NextHandle, s.NextDir})
	slices.Sort(lines)
	return lines
}

// Each thing that a view hands on arrives: nodes of all kinds, open files and directories, threads
// that were sent to look, and requests that wait.
func TestStateArrives(t *testing.T) {
	v := newStateView(t)
	s := exported(t, v.fs)
	want := s.lines(t)
	f, err := v.imported(s.sent(t))
	if err != nil {
		t.Fatal(err)
	}
	f.kernel.init, f.kernel.answer = v.fs.kernel.init, v.fs.kernel.answer // the new server's, once it begins
	if got := exported(t, f).lines(t); !slices.Equal(got, want) {
		for _, line := range want {
			if !slices.Contains(got, line) {
				t.Errorf("was    %s", line)
			}
		}
		for _, line := range got {
			if !slices.Contains(want, line) {
				t.Errorf("is now %s", line)
			}
		}
	}
	counts := func(f *FS) map[uint64][4]int64 {
		all := make(map[uint64][4]int64)
		for id, n := range f.nodes.byID {
			all[id] = [4]int64{n.handles.Load(), n.mappable.Load(), n.cachers.Load(), int64(len(n.allHolds()))}
		}
		return all
	}
	if got, want := counts(f), counts(v.fs); !maps.Equal(got, want) {
		t.Errorf("handles, mappings, users of the cache and holds by node: %v, want %v", got, want)
	}
	if f.nodes.len() != v.fs.nodes.len() || f.nodes.pool.used.Load() != v.fs.nodes.pool.used.Load() {
		t.Errorf("%d nodes, of which %d are counted", f.nodes.len(), f.nodes.pool.used.Load())
	}
	for id, n := range v.fs.nodes.byID {
		was, wasErr := v.fs.nodes.path(n)
		is, err := f.nodes.path(f.nodes.get(id))
		if is != was || err != wasErr {
			t.Errorf("node %d is at %q, %v; it was at %q, %v", id, is, err, was, wasErr)
		}
		if now, was := f.nodes.newest(f.nodes.get(id)).id, v.fs.nodes.newest(n).id; now != was {
			t.Errorf("the file of node %d is found by node %d, and was by %d", id, now, was)
		}
	}
}

// A state that contradicts itself is refused, whatever is wrong.
func TestHostileStateIsRefused(t *testing.T) {
	v := newStateView(t)
	good := exported(t, v.fs)
	refuses := func(what string, spoil func(s *state)) {
		t.Helper()
		s := good.sent(t)
		all := slices.Clone(s.fds)
		spoil(&s)
		f, err := v.imported(s)
		if err == nil {
			t.Errorf("%s: adopted", what)
			clear(f.nodes.byID)
		}
		for _, fd := range all { // those that spoil has left out
			unix.Close(fd)
		}
	}
	for what, spoil := range map[string]func(s *state){
		"no nodes":               func(s *state) { s.Nodes = nil },
		"no root":                func(s *state) { s.Nodes[0].ID = 99 },
		"another root":           func(s *state) { s.Nodes[0].Inode.Ino++ },
		"two nodes of one id":    func(s *state) { s.Nodes[2].ID = s.Nodes[1].ID },
		"a node without id":      func(s *state) { s.Nodes[1].ID = 0 },
		"a node id to come":      func(s *state) { s.NextNode = s.Nodes[1].ID },
		"two nodes of one inode": func(s *state) { s.twins() },
		"a directory let go":     func(s *state) { s.directory().FD = -1 },
		"a node in two files":    func(s *state) { s.Groups = append(s.Groups, s.Groups[0]) },
		"a node twice in a file": func(s *state) { s.Groups[0] = append(s.Groups[0], s.Groups[0][0]) },
		"two files of one fh":    func(s *state) { s.Handles[1].Fh = s.Handles[0].Fh },
		"a file without fh":      func(s *state) { s.Handles[0].Fh = 0 },
		"a fh to come":           func(s *state) { s.NextHandle = 0 },
		"a file without a node":  func(s *state) { s.Handles[0].Node = -1 },
		"a file that is closed":  func(s *state) { s.Handles[0].FD = -1 },
		"a table of no locks":    func(s *state) { s.Handles[0].Table = 0 },
		"two directories":        func(s *state) { s.Dirs[1].Fh = s.Dirs[0].Fh },
		"a directory to come":    func(s *state) { s.NextDir = 0 },
		"a listing too long":     func(s *state) { s.Dirs[0].Rest = make([]byte, dirBuffer+1) },
		"two visits of a thread": func(s *state) { s.Visits[1].TID = s.Visits[0].TID },
		"an unknown stage":       func(s *state) { s.Visits[0].Stage = 9 },
		"half a request":         func(s *state) { s.Waiting[0].Request = s.Waiting[0].Request[:50] },
		"a request's beginning":  func(s *state) { s.Waiting[0].Request = s.Waiting[0].Request[:5] },
		"a request twice":        func(s *state) { s.Waiting[1] = s.Waiting[0] },
		"a wait's stage":         func(s *state) { s.Waiting[0].Stage = 9 },
		"no connection":          func(s *state) { s.Device = -1 },
		"a descriptor too few":   func(s *state) { s.fds = s.fds[:len(s.fds)-1] },
		"a descriptor too many":  func(s *state) { s.fds = append(s.fds, v.open("h", unix.O_RDONLY)) },
		"a descriptor of two":    func(s *state) { s.Handles[0].FD = s.Handles[1].FD },
		"a hold too few":         func(s *state) { s.holds = s.holds[:len(s.holds)-1] },
		"a hold too many":        func(s *state) { s.holds = append(s.holds, nil) },
		"a hold of two":          func(s *state) { s.Visits[0].Hold, s.Visits[1].Hold = 0, 0 },
	} {
		refuses(what, spoil)
	}
	// Each index, wherever it is.
	for at := range indexes(reflect.ValueOf(good.State), "State") {
		for _, wrong := range []int64{-2, 1 << 20} {
			refuses(fmt.Sprint(at, " is ", wrong), func(s *state) {
				indexes(reflect.ValueOf(s.State), "State")[at].SetInt(wrong)
			})
		}
	}
}

// twins makes two nodes by which one file would be found.
func (s *state) twins() {
	var first *NodeState
	for i := range s.Nodes[1:] {
		n := &s.Nodes[1+i]
		switch {
		case n.Lookups == 0 || n.Retired || n.Former:
		case first == nil:
			first = n
		default:
			n.Inode = first.Inode
			return
		}
	}
}

func (s *state) directory() *NodeState {
	i := slices.IndexFunc(s.Nodes, func(n NodeState) bool { return n.Dir && n.Lookups > 0 && n.ID != rootID })
	return &s.Nodes[i]
}

// indexes finds what is an index of a node, a descriptor, a hold or a table.
func indexes(v reflect.Value, at string) map[string]reflect.Value {
	found := make(map[string]reflect.Value)
	switch v.Kind() {
	case reflect.Pointer:
		return indexes(v.Elem(), at)
	case reflect.Struct:
		for i := range v.NumField() {
			f, name := v.Field(i), v.Type().Field(i).Name
			if f.Kind() == reflect.Int && slices.Contains([]string{"FD", "Node", "Hold", "Dir", "From", "Device", "Table"}, name) {
				found[at+"."+name] = f
				continue
			}
			maps.Copy(found, indexes(f, at+"."+name))
		}
	case reflect.Slice:
		for i := range v.Len() {
			item := fmt.Sprintf("%s[%d]", at, i)
			if at == "State.Groups" {
				found[item+"[0]"] = v.Index(i).Index(0)
				continue
			}
			maps.Copy(found, indexes(v.Index(i), item))
		}
	}
	return found
}

// What a dead process has begun is handed on too, until it has come again: the kernel may have it to send
// still.
func TestWhatIsSentAgainIsHandedOn(t *testing.T) {
	v := newStateView(t)
	root := v.fs.nodes.get(rootID)
	hold, name := v.hold("made", lockmgr.Exclusive), dirName{root, "made"}
	key, err := lockmgr.FileKey("made")
	if err != nil {
		t.Fatal(err)
	}
	var opened *handle
	v.fs.handles.each(func(h *handle) { opened = h })
	opened.opened = 9
	c := &v.fs.calls
	c.begun = map[uint64]*former{
		7: {CallState: CallState{Request: 7, What: uint8(making), Kind: unix.S_IFREG}, hold: hold, to: lockedName{dirName: name, key: key}},
		8: {CallState: CallState{Request: 8, What: uint8(appending), Answered: true, Written: 5}},
	}
	c.files, c.tries = map[uint64]*handle{9: opened}, map[uint64]uint64{7: 1}
	f, err := v.imported(exported(t, v.fs).sent(t))
	if err != nil {
		t.Fatal(err)
	}
	if b := f.calls.again(&fuse.InHeader{Unique: 7 | sentAgain}); b == nil || b.hold != hold || b.to.dir != f.nodes.get(rootID) || b.to.name != "made" || b.to.key != key {
		t.Errorf("a call that was begun: %+v", b)
	}
	if b := f.calls.again(&fuse.InHeader{Unique: 8 | sentAgain}); b == nil || !b.Answered || b.Written != 5 {
		t.Errorf("a call that was answered: %+v", b)
	}
	if h := f.calls.file(&fuse.InHeader{Unique: 9 | sentAgain}); h == nil || h.opened != 9 {
		t.Errorf("an open that was made: %+v", h)
	}
	if f.calls.tries[7] != 1 {
		t.Errorf("tries: %v", f.calls.tries)
	}
}
