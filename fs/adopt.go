package fs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// Adopted is a view that was taken over, and is not served yet.
type Adopted struct {
	f    *FS
	next *standby
	died bool // the former process has
	sent bool // the kernel sends requests again
}

// Adopt makes a view from a state, its descriptors, which Adopt takes over, and its holds, which
// belong to cfg.Locks. It changes nothing and answers nothing before Begin. Errors: the view cannot
// be taken over by this process.
func Adopt(mountpoint string, cfg Config, st *State, fds []int, holds []*lockmgr.Hold) (_ *Adopted, err error) {
	i := &importer{st: st, fds: fds, holds: holds, now: time.Now()}
	defer func() {
		if err != nil {
			i.closeAll()
		}
	}()
	if cfg.Pool == nil {
		cfg.Pool = NewPool()
	}
	source, err := openBacking(cfg.Source)
	if err != nil {
		return nil, err
	}
	i.f = newFS(source, mountpoint, cfg)
	a := &Adopted{f: i.f, died: st.Died, sent: st.Died || st.Resent}
	if err = i.f.equip(cfg); err == nil {
		err = i.all()
	}
	if err == nil {
		a.next, err = i.f.kernel.adopt(st.Init, st.Answer)
	}
	if err != nil {
		i.f.nodes.pool.leave(i.f.nodes)
		unix.Close(source.root)
		return nil, err
	}
	i.f.keepReservations()
	return a, nil
}

// keepReservations makes the reservations for open files and directories again.
func (f *FS) keepReservations() {
	pool := f.nodes.pool
	f.handles.each(func(h *handle) { h.reserved.keep(pool.open) })
	f.dirs.each(func(d *dirHandle) {
		d.reserved.keep(pool.open)
		if d.buf != nil {
			pool.memory.keep(d.reserved.payer, dirBuffer)
		}
	})
}

// Discard drops a view that is not served yet, and closes its descriptors.
func (a *Adopted) Discard() {
	a.next.discard()
	a.f.LetGo()
}

// Record records the view: from now on a next process can go on from here.
func (a *Adopted) Record() error { return a.f.recordAll() }

// Begin serves the view. The former process reads and answers nothing any more. If that fails, the
// view ends: see Wait.
func (a *Adopted) Begin() *FS {
	a.f.control()
	a.f.visits.expireParked()
	a.f.kernel.resends = a.died
	if a.sent {
		a.f.calls.resent.Store(true)
		go func() {
			awake(comesWithin)
			a.f.calls.forsake()
		}()
	}
	_ = a.f.goOn(a.next)
	return a.f
}

// importer makes a view of a State.
type importer struct {
	f     *FS
	st    *State
	fds   []int
	holds []*lockmgr.Hold
	now   time.Time
	nodes []*node

	taken, held []bool // which of fds and holds have an owner
	wrong       bool   // there was an index without a node
}

var errState = errors.New("the state contradicts itself")

func (i *importer) closeAll() {
	for _, fd := range i.fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// fd takes a descriptor, which has one owner; -1: there is none.
func (i *importer) fd(at int) (int, error) {
	if at == -1 {
		return -1, nil
	}
	if at < 0 || at >= len(i.fds) || i.taken[at] {
		return -1, errState
	}
	i.taken[at] = true
	return i.fds[at], nil
}

func (i *importer) hold(at int) (*lockmgr.Hold, error) {
	if at == -1 {
		return nil, nil
	}
	if at < 0 || at >= len(i.holds) || i.held[at] {
		return nil, errState
	}
	i.held[at] = true
	return i.holds[at], nil
}

// table returns a table of advisory locks, as Advisory.Open does.
func (i *importer) table(at int) (t *lockmgr.AdvisoryTable, lost bool) {
	if i.f.advisory == nil {
		return nil, false
	}
	return i.f.advisory.Adopted(at)
}

func (i *importer) node(at int) *node {
	if at < 0 || at >= len(i.nodes) {
		i.wrong = i.wrong || at != -1
		return nil
	}
	return i.nodes[at]
}

func (i *importer) name(n Name) dirName { return dirName{i.node(n.Dir), n.Name} }
func (i *importer) way(w Way) way       { return way{i.node(w.From), w.Path} }

func (i *importer) time(age time.Duration) time.Time {
	if age < 0 {
		return time.Time{}
	}
	return i.now.Add(-age)
}

func (i *importer) all() (err error) {
	i.taken, i.held = make([]bool, len(i.fds)), make([]bool, len(i.holds))
	for _, step := range []func() error{i.allNodes, i.allHandles, i.allDirs, i.allVisits, i.allCalls} {
		if err := step(); err != nil {
			return err
		}
	}
	device, err := i.fd(i.st.Device)
	if err != nil || device < 0 || i.wrong || slices.Contains(i.taken, false) || slices.Contains(i.held, false) {
		return errState
	}
	i.f.kernel.device, i.f.kernel.dev = device, i.st.Dev
	return nil
}

func (i *importer) allNodes() error {
	f, t := i.f, i.f.nodes
	root := t.byID[rootID]
	if len(i.st.Nodes) == 0 || i.st.Nodes[0].ID != rootID || i.st.Nodes[0].In.Dir != -1 {
		return errState
	}
	if r := i.st.Nodes[0].Inode; root.inode != (inode{r.Dev, r.Ino, r.Generation}) {
		return fmt.Errorf("%s is not the directory that the view shows", f.source)
	}
	t.pool.leave(t)
	defer t.pool.join(t)
	ids := make(map[uint64]bool, len(i.st.Nodes))
	for at := range i.st.Nodes {
		s := &i.st.Nodes[at]
		if ids[s.ID] || s.ID == 0 || s.ID >= i.st.NextNode {
			return errState
		}
		ids[s.ID] = true
		n := root // its descriptor is our own
		if at > 0 {
			n = &node{id: s.ID, inode: inode{s.Inode.Dev, s.Inode.Ino, s.Inode.Generation}, fd: -1, dir: s.Dir, certain: s.Certain, held: &held{id: s.ID}, closer: &t.closer}
		}
		i.nodes = append(i.nodes, n)
		if (s.Lookups == 0 || at == 0) && s.FD != -1 {
			return errState
		}
		if s.Lookups == 0 {
			continue // others name it
		}
		if at > 0 {
			fd, err := i.fd(s.FD)
			if err != nil || fd < 0 && s.Dir {
				return errState
			}
			n.fd = fd
			n.uses.begin()
			t.byID[n.id] = n
		}
		n.lookups, n.retired, n.former = s.Lookups, s.Retired, s.Former
		if !n.retired && !n.former {
			if other := t.byInode[n.inode]; other != nil && other != n {
				return errState
			}
			t.byInode[n.inode] = n
		}
	}
	for at := range i.st.Nodes {
		n, s := i.nodes[at], &i.st.Nodes[at]
		n.parent, n.name, n.alias = i.node(s.In.Dir), s.In.Name, i.name(s.Alias)
		for _, d := range s.Shown {
			n.shown = append(n.shown, shown{i.name(d.Name), i.time(d.Age)})
		}
		n.moved = i.time(s.Moved)
		n.told = told{s.Told, s.ToldSize, s.ToldMtime, i.time(s.ToldChanged)}
		if s.AwaitedFor > 0 {
			n.awaited.Store(i.now.Add(s.AwaitedFor).UnixNano())
		}
	}
	for _, group := range i.st.Groups {
		file := new(held)
		if len(group) > 0 && i.node(group[0]) != nil {
			file.id = i.node(group[0]).id
		}
		for _, at := range group {
			n := i.node(at)
			if n == nil || len(n.held.nodes) > 0 {
				return errState
			}
			n.held = file
			file.nodes = append(file.nodes, n)
		}
	}
	for at, n := range i.nodes {
		if i.st.Nodes[at].Lookups > 0 && len(n.held.nodes) == 0 {
			n.held.nodes = []*node{n}
		}
	}
	t.nextID = i.st.NextNode
	t.count.Store(int64(len(t.byID)))
	return nil
}

// opened returns the node and the descriptor of an open file or directory.
func (i *importer) opened(at, fd int) (*node, int, error) {
	n := i.node(at)
	own, err := i.fd(fd)
	if n == nil || own < 0 || err != nil {
		return nil, -1, errState
	}
	return n, own, nil
}

func (i *importer) allHandles() error {
	f := i.f
	f.handles.m = make(map[uint64]*handle)
	f.handles.next = i.st.NextHandle
	var bereft []*held
	for _, s := range i.st.Handles {
		n, fd, err := i.opened(s.Node, s.FD)
		if err != nil {
			return err
		}
		hold, err := i.hold(s.Hold)
		if err != nil || f.handles.m[s.Fh] != nil || s.Fh == 0 || s.Fh > i.st.NextHandle {
			return errState
		}
		h := &handle{fh: s.Fh, record: f.record, opened: s.Opened, flags: s.Flags, node: n, reserved: reservation{payer: payerOf(s.Pod, s.UID)}, fd: fd, hold: hold, mode: s.Mode, maps: s.Maps, caches: s.Caches, sync: s.Sync, gone: make(chan struct{})}
		h.uses.begin()
		n.handles.Add(1)
		if s.Maps {
			n.mappable.Add(1)
			n.paged.Store(true)  // the former process may have read
			n.stored.Store(true) // and what a mapping has stored may have been written back
		}
		if s.Caches {
			n.cachers.Add(1)
		}
		if s.Table != -1 {
			t, lost := i.table(s.Table)
			if t == nil {
				return errState
			}
			h.lockers.table, h.lockers.owners = t, s.Lockers
			n.advisory.Store(t)
			if lost {
				bereft = append(bereft, n.held)
			}
		}
		if s.Lost {
			bereft = append(bereft, n.held)
		}
		h.locks.Store(s.Locks)
		n.grants.Store(1)
		if !s.Behind {
			h.renewed.grants.Store(1)
		}
		h.unflushed.dirty.Store(s.Dirty)
		if s.Failed != 0 {
			err := error(s.Failed)
			h.unflushed.failed.Store(&err)
		}
		if hold != nil {
			n.addHold(hold)
			hold.OnLost(func() { f.bereave(h) })
		}
		f.handles.m[s.Fh] = h
	}
	for _, file := range bereft {
		file.bereft.Store(true)
	}
	for _, h := range f.handles.m {
		h.lost.Store(h.node.bereft.Load())
	}
	return nil
}

func (i *importer) allDirs() error {
	f := i.f
	f.dirs.m = make(map[uint64]*dirHandle)
	f.dirs.next = i.st.NextDir
	for _, s := range i.st.Dirs {
		n, fd, err := i.opened(s.Node, s.FD)
		if err != nil || len(s.Rest) > dirBuffer || f.dirs.m[s.Fh] != nil || s.Fh == 0 || s.Fh > i.st.NextDir {
			return errState
		}
		d := &dirHandle{fh: s.Fh, record: f.record, opened: s.Opened, node: n, reserved: reservation{payer: payerOf(s.Pod, s.UID)}, fd: fd, next: s.Next}
		if len(s.Rest) > 0 {
			d.buf = dirBuffers.Get().(*[dirBuffer]byte)
			d.rest = d.buf[:copy(d.buf[:], s.Rest)]
		}
		f.dirs.m[s.Fh] = d
	}
	return nil
}

func (i *importer) allVisits() error {
	vs := &i.f.visits
	vs.threads, vs.paused = make(map[uint32]*sent), i.now
	for _, s := range i.st.Visits {
		hold, err := i.hold(s.Hold)
		if err != nil || stage(s.Stage) > nameless || vs.threads[s.TID] != nil {
			return errState
		}
		v := &sent{
			request: s.Request, stage: stage(s.Stage), node: s.Node, when: i.now.Add(-s.Age), looked: s.Looked, over: s.Over, found: s.Found,
			as: i.name(s.As), way: i.way(s.Way), steps: s.Steps, hold: hold, mode: s.Mode,
		}
		for _, d := range s.Meant {
			v.meant = append(v.meant, i.name(d))
		}
		for _, a := range s.Asked {
			v.asked = append(v.asked, answer{i.name(a.Name), a.Node})
		}
		if v.steps == nil && v.from != nil {
			v.steps = make(map[uint64]string)
		}
		vs.threads[s.TID] = v
	}
	uniques := make(map[uint64]bool)
	for _, s := range i.st.Waiting {
		if len(s.Request) < int(unsafe.Sizeof(fuse.InHeader{})) || stage(s.Stage) > nameless {
			return errState
		}
		w := &waiting{request: slices.Clone(s.Request), resume: s.Resume, signalled: s.Interrupted}
		if in := w.header(); int(in.Length) != len(s.Request) || uniques[in.Unique] {
			return errState
		}
		uniques[w.header().Unique] = true
		v := visit{stage: stage(s.Stage), way: i.way(s.Way), as: i.name(s.As)}
		w.sends, w.at, w.path = s.Sends, i.name(s.At), s.Path
		if in := w.header(); w.opens() {
			v.tid, v.node = in.Pid, in.NodeId
			w.visit = v
		}
		i.f.kernel.handing.waiting = append(i.f.kernel.handing.waiting, w)
	}
	return nil
}

// allCalls takes over the calls that were under way when a process died. There are some if that is
// the former process, or if the former process had not yet read all requests that the kernel sends
// again.
func (i *importer) allCalls() error {
	if !i.st.Died && !i.st.Resent {
		return nil
	}
	c := &i.f.calls
	c.begun, c.files, c.dirs, c.tries = make(map[uint64]*former), make(map[uint64]*handle), make(map[uint64]*dirHandle), make(map[uint64]uint64)
	maps.Copy(c.tries, i.st.Tries)
	for _, s := range i.st.Calls {
		hold, err := i.hold(s.Hold)
		if err != nil || doing(s.What) > telling {
			return errState
		}
		c.begun[s.Request] = &former{
			CallState: s, hold: hold,
			from: lockedName{dirName: i.name(s.From), key: s.Keys[0]}, to: lockedName{dirName: i.name(s.To), key: s.Keys[1]},
		}
	}
	i.f.handles.each(func(h *handle) { c.files[h.opened] = h })
	i.f.dirs.each(func(d *dirHandle) { c.dirs[d.opened] = d })
	return nil
}

// expireParked releases the locks that the former process has parked, when their time is over.
func (vs *visits) expireParked() {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	for _, s := range vs.threads {
		if s.hold != nil {
			time.AfterFunc(parkFor, func() { vs.expire(s) })
		}
	}
}
