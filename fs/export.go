package fs

import (
	"errors"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/advisory"
)

// State is what a paused view hands on, besides its descriptors and its holds. Numbers called
// FD, Node or Hold are indexes: of the descriptors, of Nodes, and of the holds. Ages count from
// when the state was made.
type State struct {
	Init   []byte // the kernel's INIT
	Answer []byte // the answer to it
	Device int    // FD of the connection
	Dev    string // the number of the mount's device; "" if unknown

	Groups   [][]int // the nodes of each file that the kernel knows, the newest last
	Nodes    []NodeState
	NextNode uint64

	Handles    []HandleState
	NextHandle uint64
	Dirs       []DirState
	NextDir    uint64

	Visits  []VisitState
	Waiting []WaitingState

	// Died: the former process has died, and the rest is what its records say.
	Died bool
	// Resent: a process that has died before left requests that the kernel sends again. Some may not
	// have been read.
	Resent bool
	Calls  []CallState       // that a process which has died has begun, and that have not come again
	Tries  map[uint64]uint64 // by request: how often it was sent again before
}

// Name is a name in a directory.
type Name struct {
	Dir  int // Node; -1: none
	Name string
}

// ShownName is a name that the kernel was told.
type ShownName struct {
	Name
	Age time.Duration
}

// Inode is an inode of the volume.
type Inode struct{ Dev, Ino, Generation uint64 }

func (i inode) state() Inode { return Inode{i.dev, i.ino, i.generation} }

// NodeState is a node that the kernel knows, or one that others name. The latter has no Lookups.
type NodeState struct {
	ID           uint64
	Inode        Inode
	FD           int // -1: it was let go
	Dir, Certain bool
	Lookups      uint64
	In           Name
	Alias        Name
	Shown        []ShownName
	Moved        time.Duration // an age; negative: never
	Retired      bool
	Former       bool
	Told         bool
	ToldSize     int64
	ToldMtime    unix.Timespec
	ToldChanged  time.Duration // an age; negative: never
	AwaitedFor   time.Duration
}

// HandleState is an open file.
type HandleState struct {
	Fh      uint64
	Node    int
	FD      int
	Hold    int // -1: none
	Mode    lockmgr.Mode
	Maps    bool
	Caches  bool
	Sync    int
	Table   int // of advisory locks; -1: none. Index in Export's, as are all
	Lockers []advisory.Owner
	Locks   bool // it was asked for advisory locks
	Lost    bool // the mount has lost those it had on the file
	Behind  bool // one was granted on the file since the descriptor was opened, see renew
	Dirty   bool
	Failed  unix.Errno // what the next fsync returns; 0: nothing
	UID     uint32     // who opened it
	Pod     string
	Opened  uint64 // the request that has opened it
	Flags   uint32 // of the answer to that
}

// DirState is an open directory.
type DirState struct {
	Fh   uint64
	Node int
	FD   int
	Rest []byte
	Next uint64
	UID  uint32 // who opened it
	Pod  string

	Opened uint64 // the request that has opened it
}

// Way is a way by which a file was looked up.
type Way struct {
	From int // Node; -1: none
	Path string
}

// VisitState is a thread that was answered ESTALE.
type VisitState struct {
	TID     uint32
	Request uint64 // that was answered ESTALE
	Stage   uint8
	Node    uint64
	Age     time.Duration // when the view was paused
	Looked  bool
	Over    bool
	Found   uint64
	As      Name
	Meant   []Name
	Asked   []AskedState
	Way     Way
	Steps   map[uint64]string
	Hold    int // -1: none
	Mode    lockmgr.Mode
}

// AskedState is a name that was looked up, and the id of its node; 0: none.
type AskedState struct {
	Name
	Node uint64
}

// WaitingState is a request that waits for a lock. What follows Interrupted is an OPEN's only.
type WaitingState struct {
	Request     []byte
	Resume      lockmgr.Resume
	Interrupted bool

	Stage uint8
	Way   Way
	As    Name
	Sends bool
	At    Name
	Path  string
}

// exporter makes the State of a paused view.
type exporter struct {
	f      *FS
	now    time.Time
	st     *State
	fds    []int
	holds  []*lockmgr.Hold
	tables []*lockmgr.AdvisoryTable
	nodes  map[*node]int
	queue  []*node
}

// Export returns the state of a paused view with its descriptors, holds and tables of advisory locks.
// The descriptors stay the view's. An error says what cannot be handed on.
func (f *FS) Export() (*State, []int, []*lockmgr.Hold, []*lockmgr.AdvisoryTable, error) {
	e := &exporter{f: f, now: time.Now(), st: &State{}, nodes: make(map[*node]int)}
	if err := e.all(); err != nil {
		return nil, nil, nil, nil, err
	}
	return e.st, e.fds, e.holds, e.tables, nil
}

func (e *exporter) all() error {
	f := e.f
	answer, err := f.kernel.initAnswer()
	if err != nil {
		return err
	}
	e.st.Init, e.st.Answer, e.st.Device, e.st.Dev = raw(f.kernel.init), answer, e.fd(f.kernel.device), f.kernel.dev
	f.nodes.mu.RLock()
	defer f.nodes.mu.RUnlock()
	e.st.NextNode = f.nodes.nextID
	e.node(f.nodes.byID[rootID]) // the first
	for _, n := range f.nodes.byID {
		e.node(n)
	}
	if err := e.handles(); err != nil {
		return err
	}
	e.dirs()
	e.visits()
	e.waiting()
	e.calls()
	for len(e.queue) > 0 { // a node can bring others
		n := e.queue[0]
		e.queue = e.queue[1:]
		if n.gone.Load() || n.past != nil {
			return errors.New("the volume's client was replaced, and the kernel still knows files of the former one")
		}
		e.st.Nodes[e.nodes[n]] = e.nodeState(n)
	}
	e.groups()
	return nil
}

func (e *exporter) fd(fd int) int {
	if fd < 0 {
		return -1
	}
	e.fds = append(e.fds, fd)
	return len(e.fds) - 1
}

func (e *exporter) hold(h *lockmgr.Hold) int {
	if h == nil {
		return -1
	}
	e.holds = append(e.holds, h)
	return len(e.holds) - 1
}

func (e *exporter) table(t *lockmgr.AdvisoryTable) int {
	if t == nil {
		return -1
	}
	i := slices.Index(e.tables, t)
	if i < 0 {
		i = len(e.tables)
		e.tables = append(e.tables, t)
	}
	return i
}

func (e *exporter) node(n *node) int {
	if n == nil {
		return -1
	}
	i, ok := e.nodes[n]
	if !ok {
		i = len(e.st.Nodes)
		e.nodes[n] = i
		e.st.Nodes = append(e.st.Nodes, NodeState{})
		e.queue = append(e.queue, n)
	}
	return i
}

func (e *exporter) name(d dirName) Name { return Name{e.node(d.dir), d.name} }

func (e *exporter) names(all []dirName) (names []Name) {
	for _, d := range all {
		names = append(names, e.name(d))
	}
	return names
}

func (e *exporter) way(w way) Way { return Way{e.node(w.from), w.path} }

// age is negative for the zero time.
func (e *exporter) age(t time.Time) time.Duration {
	if t.IsZero() {
		return -1
	}
	return max(0, e.now.Sub(t))
}

func (e *exporter) nodeState(n *node) NodeState {
	s := NodeState{
		ID: n.id, Inode: n.inode.state(), FD: -1, Dir: n.dir, Certain: n.certain,
		In: e.name(dirName{n.parent, n.name}), Alias: e.name(n.alias), Moved: e.age(n.moved), Retired: n.retired, Former: n.former,
	}
	for _, d := range n.shown {
		s.Shown = append(s.Shown, ShownName{e.name(d.dirName), e.age(d.at)})
	}
	n.mu.Lock()
	s.Told, s.ToldSize, s.ToldMtime, s.ToldChanged = n.told.known, n.told.size, n.told.mtime, e.age(n.told.changed)
	n.mu.Unlock()
	s.AwaitedFor = max(0, time.Duration(n.awaited.Load()-e.now.UnixNano()))
	if e.f.nodes.byID[n.id] == n {
		s.Lookups = n.lookups
	}
	if s.Lookups > 0 && n.id != rootID { // the next process opens the root itself
		n.descriptor.RLock()
		s.FD = e.fd(n.fd)
		n.descriptor.RUnlock()
	}
	return s
}

// groups notes which nodes are of one file.
func (e *exporter) groups() {
	seen := make(map[*held]bool)
	for n := range e.nodes {
		if seen[n.held] || e.st.Nodes[e.nodes[n]].Lookups == 0 || len(n.held.nodes) < 2 {
			continue
		}
		seen[n.held] = true
		var group []int
		for _, o := range n.held.nodes {
			if i, ok := e.nodes[o]; ok {
				group = append(group, i)
			}
		}
		e.st.Groups = append(e.st.Groups, group)
	}
}

func (e *exporter) handles() error {
	f := e.f
	f.handles.mu.RLock()
	defer f.handles.mu.RUnlock()
	e.st.NextHandle = f.handles.next
	for fh, h := range f.handles.m {
		h.lockers.mu.Lock()
		h.node.lockersMu.Lock()
		table, lockers := e.table(h.lockers.table), slices.Clone(h.lockers.owners)
		h.node.lockersMu.Unlock()
		h.lockers.mu.Unlock()
		s := HandleState{Fh: fh, Node: e.node(h.node), FD: e.fd(h.fd), Hold: e.hold(h.hold), Mode: h.mode, Maps: h.maps, Caches: h.caches, Sync: h.sync, Table: table, Lockers: lockers, Locks: h.locks.Load(),
			Lost: h.lost.Load() || h.node.bereft.Load(), Behind: h.renewed.grants.Load() != h.node.grants.Load(), Opened: h.opened, Flags: h.flags, UID: h.reserved.payer.uid, Pod: h.reserved.payer.pod}
		s.Dirty = h.unflushed.dirty.Load()
		if err := h.unflushed.owed(); err != nil {
			s.Failed = unix.EIO
			errors.As(err, &s.Failed)
		}
		e.st.Handles = append(e.st.Handles, s)
	}
	return nil
}

func (e *exporter) dirs() {
	f := e.f
	f.dirs.mu.RLock()
	defer f.dirs.mu.RUnlock()
	e.st.NextDir = f.dirs.next
	for fh, d := range f.dirs.m {
		d.mu.Lock()
		e.st.Dirs = append(e.st.Dirs, DirState{Fh: fh, Node: e.node(d.node), FD: e.fd(d.fd), Rest: slices.Clone(d.rest), Next: d.next, UID: d.reserved.payer.uid, Pod: d.reserved.payer.pod, Opened: d.opened})
		d.mu.Unlock()
	}
}

func (e *exporter) visits() {
	vs := &e.f.visits
	vs.mu.Lock()
	defer vs.mu.Unlock()
	for tid, s := range vs.threads {
		v := VisitState{
			TID: tid, Request: s.request, Stage: uint8(s.stage), Node: s.node, Age: vs.paused.Sub(s.when), Looked: s.looked, Over: s.over, Found: s.found,
			As: e.name(s.as), Meant: e.names(s.meant), Way: e.way(s.way), Steps: s.steps, Hold: e.hold(s.hold), Mode: s.mode,
		}
		for _, a := range s.asked {
			v.Asked = append(v.Asked, AskedState{e.name(a.dirName), a.node})
		}
		e.st.Visits = append(e.st.Visits, v)
	}
}

// calls exports what a process has begun that died before this one served the view: what the kernel
// sends again, and this process has not read, the next one reads.
func (e *exporter) calls() {
	c := &e.f.calls
	c.mu.Lock()
	defer c.mu.Unlock()
	e.st.Resent = c.tries != nil || len(c.here)+len(c.begun) > 0
	e.st.Tries = maps.Clone(c.tries)
	for _, b := range c.begun {
		s := b.CallState
		s.From, s.To, s.Keys = e.name(b.from.dirName), e.name(b.to.dirName), [2]lockmgr.Key{b.from.key, b.to.key}
		if s.Hold = -1; !s.Answered {
			s.Hold = e.hold(b.hold)
		}
		e.st.Calls = append(e.st.Calls, s)
	}
}

func (e *exporter) waiting() {
	h := &e.f.kernel.handing
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.waiting {
		e.st.Waiting = append(e.st.Waiting, WaitingState{
			Request: w.request, Resume: w.resume, Interrupted: w.interrupted(),
			Stage: uint8(w.visit.stage), Way: e.way(w.visit.way), As: e.name(w.visit.as), Sends: w.sends,
			At: e.name(w.at), Path: w.path,
		})
	}
}

// LetGo closes the descriptors of a view that another process serves. It must not be used any
// more.
func (f *FS) LetGo() {
	for _, h := range f.handles.drain() {
		unix.Close(h.fd)
		h.reserved.release()
	}
	f.release()
	f.callers.cache.Close()
	f.kernel.end(nil)
}
