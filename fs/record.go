package fs

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/journal"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/advisory"
)

// When its process dies, a view leaves in records what a paused view exports (docs/adr/0070). A
// record is written before the kernel is told what it says. It is deleted before the descriptor
// that it names is closed, because that number may then be given to another file. If the process
// dies between the record and the answer to the kernel, there is a node or a handle that nobody
// uses.

// The kinds of records.
const (
	recordView = lockmgr.FirstKind + iota
	recordNode
	recordLookups // of a node: how many the kernel was told
	recordFD      // of a node: its descriptor
	recordHandle
	recordDir
	recordVisit
	recordCall
	recordAnswer   // of a call: its request, and what packAnswer makes
	recordAppend   // its request and the file's size
	recordAppended // the same request, and its answer
	recordTries    // of a request: how often it was sent again
)

type viewRecord struct {
	_            struct{} `cbor:",toarray"`
	Init, Answer []byte
	Device       int
	Dev          string // the number of the mount's device

	// The numbers that the process began with: all that it has given out may be over.
	NextNode, NextHandle, NextDir uint64
}

type nameRecord struct {
	_    struct{} `cbor:",toarray"`
	Dir  uint64   // the id of the node; 0: none
	Name string
}

type nodeRecord struct {
	_                    struct{} `cbor:",toarray"`
	Dev, Ino, Generation uint64
	Dir, Certain         bool
	In, Alias            nameRecord
	Shown                []nameRecord
	Moved                time.Time
	Retired, Former      bool
	File                 uint64 // equal for all nodes of one file
}

type handleRecord struct {
	_      struct{} `cbor:",toarray"`
	Node   uint64
	FD     int
	Hold   uint64 // of Hold.Record; 0: none
	Mode   lockmgr.Mode
	Maps   bool
	Caches bool
	Sync   int
	Failed uint32 // an errno; 0: none
	UID    uint32
	Pod    string
	Opened uint64 // the request that has opened it
	Flags  uint32 // of the answer

	Table   uint64 // of AdvisoryTable.Record; 0: none
	Lockers []lockerRecord
	Locks   bool
	Lost    bool
}

type lockerRecord struct {
	_     struct{} `cbor:",toarray"`
	Mount string
	Kind  advisory.Kind
	ID    uint64
}

type dirRecord struct {
	_      struct{} `cbor:",toarray"`
	Node   uint64
	FD     int
	UID    uint32
	Pod    string
	Opened uint64
}

type visitRecord struct {
	_       struct{} `cbor:",toarray"`
	Request uint64
	Stage   uint8
	Node    uint64
	Looked  bool
	Over    bool
	Found   uint64
	As      nameRecord
	Meant   []nameRecord
	Asked   []nameRecord
	Nodes   []uint64 // of Asked
	From    uint64
	Path    string
	Steps   map[uint64]string
	Hold    uint64
	Mode    lockmgr.Mode
}

func (d dirName) record() nameRecord {
	if d.dir == nil {
		return nameRecord{}
	}
	return nameRecord{Dir: d.dir.id, Name: d.name}
}

func recordNames(names []dirName) (all []nameRecord) {
	for _, d := range names {
		all = append(all, d.record())
	}
	return all
}

// note records a node, if it is one that the kernel knows. mu is held.
func (t *nodes) note(n *node) {
	if !t.record.Keeps() || n == nil || t.byID[n.id] != n {
		return
	}
	r := nodeRecord{
		Dev: n.inode.dev, Ino: n.inode.ino, Generation: n.inode.generation, Dir: n.dir, Certain: n.certain,
		In: dirName{n.parent, n.name}.record(), Alias: n.alias.record(), Moved: n.moved, Retired: n.retired, Former: n.former, File: n.held.id,
	}
	for _, s := range n.shown {
		r.Shown = append(r.Shown, s.record())
	}
	t.record.Put(recordNode, n.id, r)
}

// noteLookups records how many lookups the kernel was told. mu is held.
func (t *nodes) noteLookups(n *node) { t.record.Number(recordLookups, n.id, n.lookups) }

// noteFD records a node's descriptor; -1: it has none. n.descriptor is held, or n is new.
func (t *nodes) noteFD(n *node) {
	if n.fd < 0 {
		t.record.Delete(recordFD, n.id)
		return
	}
	t.record.Number(recordFD, n.id, uint64(n.fd))
}

// unnote ends the records of a node that the kernel has forgotten.
func (t *nodes) unnote(n *node) {
	for _, kind := range []journal.Kind{recordNode, recordLookups, recordFD} {
		t.record.Delete(kind, n.id)
	}
}

// note records an open file. The caller uses it.
func (h *handle) note() {
	h.noting.Lock()
	defer h.noting.Unlock()
	h.writeRecord()
}

// writeRecord needs h.noting.
func (h *handle) writeRecord() {
	if !h.record.Keeps() {
		return
	}
	r := handleRecord{
		Node: h.node.id, FD: h.fd, Mode: h.mode, Maps: h.maps, Caches: h.caches, Sync: h.sync,
		UID: h.reserved.payer.uid, Pod: h.reserved.payer.pod, Opened: h.opened, Flags: h.flags, Locks: h.locks.Load(), Lost: h.lost.Load(),
	}
	h.lockers.mu.Lock()
	if h.lockers.table != nil {
		r.Table = h.lockers.table.Record()
	}
	h.node.lockersMu.Lock()
	for _, o := range h.lockers.owners {
		r.Lockers = append(r.Lockers, lockerRecord{Mount: o.Mount, Kind: o.Kind, ID: o.ID})
	}
	h.node.lockersMu.Unlock()
	h.lockers.mu.Unlock()
	if h.hold != nil {
		r.Hold = h.hold.Record()
	}
	if err := h.unflushed.owed(); err != nil {
		failed := unix.EIO
		errors.As(err, &failed)
		r.Failed = uint32(failed)
	}
	h.record.Put(recordHandle, h.fh, r)
}

// note records an open directory. Its program's place in it is the kernel's.
func (d *dirHandle) note() {
	d.record.Put(recordDir, d.fh, dirRecord{Node: d.node.id, FD: d.fd, UID: d.reserved.payer.uid, Pod: d.reserved.payer.pod, Opened: d.opened})
}

// note records what a thread was answered; nil: nothing that matters. mu is held.
func (vs *visits) note(tid uint32) {
	if !vs.record.Keeps() {
		return
	}
	s := vs.threads[tid]
	if s == nil {
		vs.record.Delete(recordVisit, uint64(tid))
		return
	}
	r := visitRecord{
		Request: s.request, Stage: uint8(s.stage), Node: s.node, Looked: s.looked, Over: s.over, Found: s.found, As: s.as.record(),
		Meant: recordNames(s.meant), Path: s.path, Steps: s.steps, Mode: s.mode,
	}
	for _, a := range s.asked {
		r.Asked, r.Nodes = append(r.Asked, a.record()), append(r.Nodes, a.node)
	}
	if s.from != nil {
		r.From = s.from.id
	}
	if s.hold != nil {
		r.Hold = s.hold.Record()
	}
	vs.record.Put(recordVisit, uint64(tid), r)
}

// recordAll records all that there is, and the view itself.
func (f *FS) recordAll() error {
	if !f.record.Keeps() {
		return nil
	}
	if !f.kernel.canResend() {
		return errors.New("the kernel cannot send requests again: that takes Linux 6.9")
	}
	answer, err := f.kernel.initAnswer()
	if err != nil {
		return err
	}
	view := viewRecord{
		Init: raw(f.kernel.init), Answer: answer, Device: f.kernel.device, Dev: f.kernel.dev, NextHandle: f.handles.last(), NextDir: f.dirs.last(),
	}
	f.nodes.mu.Lock()
	view.NextNode = f.nodes.nextID
	for _, n := range f.nodes.byID {
		f.nodes.note(n)
		f.nodes.noteLookups(n)
		f.nodes.noteFD(n)
	}
	f.nodes.mu.Unlock()
	f.handles.each((*handle).note)
	f.dirs.each((*dirHandle).note)
	f.visits.mu.Lock()
	for tid := range f.visits.threads {
		f.visits.note(tid)
	}
	f.visits.mu.Unlock()
	f.calls.keep()
	f.record.Put(recordView, 0, view)
	return f.record.Complete()
}

// Forsake ends a view whose process has died: its programs get errors. get returns a duplicate of a
// descriptor that the process had. Another view that is at the mountpoint by now stays.
func Forsake(mountpoint string, r *journal.Records, get func(number int) (int, error), log *slog.Logger) error {
	view, err := journal.One[viewRecord](r, recordView)
	if err != nil {
		return err
	}
	device, err := get(view.Device)
	if err != nil {
		return err
	}
	c := &connection{mountpoint: mountpoint, log: log, device: device, dev: view.Dev, abort: -1, ended: make(chan struct{})}
	defer c.close()
	gone := c.gone()
	switch {
	case !connected(device):
		return nil // who mounts anew clears what is left
	case view.Dev != "" && !gone:
		return c.detach()
	}
	if c.control(); !c.cutOff() {
		return errors.New("its connection ends with its descriptors")
	}
	return nil
}

// Remains is what is left of a view whose process has died.
type Remains struct {
	State  *State
	FDs    []int    // the numbers that the process had for the descriptors of State
	Holds  []uint64 // of Hold.Record, in State's order
	Tables []uint64 // of AdvisoryTable.Record, so too
}

// recovery makes Remains of records.
type recovery struct {
	Remains
	index  map[uint64]int // of nodes, by id
	tables map[uint64]int // indexes in Tables
	now    time.Time
}

// Recovered returns what a dead process's records say. Errors: they are of another format.
func Recovered(r *journal.Records) (*Remains, error) {
	v := &recovery{index: make(map[uint64]int), tables: make(map[uint64]int), now: time.Now()}
	v.State = &State{Died: true}
	view, err := journal.One[viewRecord](r, recordView)
	if err != nil {
		return nil, err
	}
	v.State.Init, v.State.Answer, v.State.Device, v.State.Dev = view.Init, view.Answer, v.fd(view.Device), view.Dev
	v.State.NextNode, v.State.NextHandle, v.State.NextDir = view.NextNode+beyond, view.NextHandle+beyond, view.NextDir+beyond
	for _, step := range []func(*journal.Records) error{v.nodes, v.handles, v.dirs, v.visits, v.calls} {
		if err := step(r); err != nil {
			return nil, err
		}
	}
	return &v.Remains, nil
}

func (v *recovery) fd(number int) int {
	v.FDs = append(v.FDs, number)
	return len(v.FDs) - 1
}

func (v *recovery) hold(number uint64) int {
	if number == 0 {
		return -1
	}
	v.Holds = append(v.Holds, number)
	return len(v.Holds) - 1
}

func (v *recovery) table(number uint64) int {
	if number == 0 {
		return -1
	}
	i, ok := v.tables[number]
	if !ok {
		i = len(v.Tables)
		v.tables[number] = i
		v.Tables = append(v.Tables, number)
	}
	return i
}

func (v *recovery) name(r nameRecord) Name {
	if i, ok := v.index[r.Dir]; ok {
		return Name{i, r.Name}
	}
	return Name{-1, ""} // the kernel has forgotten the directory
}

func (v *recovery) names(all []nameRecord) (names []Name) {
	for _, r := range all {
		names = append(names, v.name(r))
	}
	return names
}

// beyond is added to the largest recorded number: the dead process may have given out larger ones, and
// the kernel may know them. A RELEASE that is sent again may name one that is over.
const beyond = 1 << 32

func (v *recovery) nodes(r *journal.Records) error {
	nodes, err := journal.All[nodeRecord](r, recordNode)
	if err != nil {
		return err
	}
	lookups, fds := r.Numbers(recordLookups), r.Numbers(recordFD)
	ids := slices.Sorted(maps.Keys(nodes))
	if len(ids) == 0 || ids[0] != rootID {
		return errState
	}
	for _, id := range ids {
		if lookups[id] > 0 {
			v.index[id] = len(v.index)
		}
	}
	groups := make(map[uint64][]int)
	for _, id := range ids {
		i, ok := v.index[id]
		if !ok {
			continue
		}
		n := nodes[id]
		s := NodeState{
			ID: id, Inode: Inode{n.Dev, n.Ino, n.Generation}, FD: -1, Dir: n.Dir, Certain: n.Certain, Lookups: lookups[id],
			In: v.name(n.In), Alias: v.name(n.Alias), Retired: n.Retired, Former: n.Former, Moved: -1, ToldChanged: -1,
		}
		if !n.Moved.IsZero() {
			s.Moved = max(0, v.now.Sub(n.Moved))
		}
		for _, d := range n.Shown {
			if known := v.name(d); known.Dir >= 0 {
				s.Shown = append(s.Shown, ShownName{Name: known}) // without an age: the kernel may have been told just now
			}
		}
		if fd, ok := fds[id]; ok && id != rootID {
			s.FD = v.fd(int(fd))
		}
		groups[n.File] = append(groups[n.File], i)
		v.State.Nodes = append(v.State.Nodes, s)
		v.State.NextNode = max(v.State.NextNode, id+beyond)
	}
	for _, group := range groups {
		if len(group) > 1 {
			v.State.Groups = append(v.State.Groups, group)
		}
	}
	return nil
}

func (v *recovery) handles(r *journal.Records) error {
	all, err := journal.All[handleRecord](r, recordHandle)
	if err != nil {
		return err
	}
	for fh, h := range all {
		v.State.NextHandle = max(v.State.NextHandle, fh+beyond)
		node, ok := v.index[h.Node]
		if !ok {
			continue // it is closed: the kernel has forgotten its file
		}
		lockers := make([]advisory.Owner, len(h.Lockers))
		for i, o := range h.Lockers {
			lockers[i] = advisory.Owner{Mount: o.Mount, Kind: o.Kind, ID: o.ID}
		}
		v.State.Handles = append(v.State.Handles, HandleState{
			Fh: fh, Node: node, FD: v.fd(h.FD), Hold: v.hold(h.Hold), Mode: h.Mode, Maps: h.Maps, Caches: h.Caches, Sync: h.Sync,
			Table: v.table(h.Table), Lockers: lockers, Locks: h.Locks, Lost: h.Lost, Behind: h.Table != 0,
			Dirty:  true, // perhaps: writes are not recorded
			Failed: unix.Errno(h.Failed), UID: h.UID, Pod: h.Pod, Opened: h.Opened, Flags: h.Flags,
		})
	}
	return nil
}

func (v *recovery) dirs(r *journal.Records) error {
	all, err := journal.All[dirRecord](r, recordDir)
	if err != nil {
		return err
	}
	for fh, d := range all {
		v.State.NextDir = max(v.State.NextDir, fh+beyond)
		if node, ok := v.index[d.Node]; ok {
			// Next is an offset from which no program lists, so that the next request seeks.
			v.State.Dirs = append(v.State.Dirs, DirState{Fh: fh, Node: node, FD: v.fd(d.FD), Next: ^uint64(0), UID: d.UID, Pod: d.Pod, Opened: d.Opened})
		}
	}
	return nil
}

func (v *recovery) visits(r *journal.Records) error {
	all, err := journal.All[visitRecord](r, recordVisit)
	if err != nil {
		return err
	}
	for tid, s := range all {
		n := VisitState{
			TID: uint32(tid), Request: s.Request, Stage: s.Stage, Node: s.Node, Looked: s.Looked, Over: s.Over, Found: s.Found, As: v.name(s.As), Meant: v.names(s.Meant),
			Way: Way{-1, s.Path}, Steps: s.Steps, Hold: v.hold(s.Hold), Mode: s.Mode, // Age: the thread could not come again meanwhile
		}
		if i, ok := v.index[s.From]; ok {
			n.Way.From = i
		}
		for i, d := range s.Asked {
			n.Asked = append(n.Asked, AskedState{v.name(d), s.Nodes[i]})
		}
		v.State.Visits = append(v.State.Visits, n)
	}
	return nil
}

func (v *recovery) calls(r *journal.Records) error {
	all, err := journal.All[callRecord](r, recordCall)
	if err != nil {
		return err
	}
	name := func(n calledName) (Name, lockmgr.Key) {
		return v.name(nameRecord{Dir: n.Dir, Name: n.Name}), lockmgr.Key{Kind: n.Kind, Path: n.Path}
	}
	answered := func(s *CallState, answers map[uint64][2]uint64, id uint64) {
		if a, ok := answers[id]; ok && a[0] == s.Request {
			s.Answered = true
			s.Status, s.Written = unpackAnswer(a[1])
		}
	}
	answers := r.Pairs(recordAnswer)
	for id, c := range all {
		s := CallState{Request: c.Request, What: uint8(c.What), Hold: -1, Src: c.Src, Dst: c.Dst, Kind: c.Kind}
		answered(&s, answers, id)
		s.From, s.Keys[0] = name(c.From)
		s.To, s.Keys[1] = name(c.To)
		if !s.Answered {
			s.Hold = v.hold(c.Hold)
		}
		v.State.Calls = append(v.State.Calls, s)
	}
	answers = r.Pairs(recordAppended)
	for id, c := range r.Pairs(recordAppend) {
		s := CallState{Request: c[0], What: uint8(appending), Hold: -1, From: Name{-1, ""}, To: Name{-1, ""}, Size: int64(c[1])}
		answered(&s, answers, id)
		v.State.Calls = append(v.State.Calls, s)
	}
	v.State.Tries = r.Numbers(recordTries)
	return nil
}
