package main

import "fmt"

// The leases model: locks in Lease objects of Kubernetes (lockmgr/kubelease), where no
// request reads or writes two objects. One Lease is a file's, another has the directories'
// entries. Each write is conditional on the version that was read. It may be lost, or be
// carried out late. Each mount's watch may be late by any time. Can a file be open below a
// directory that moves?

const (
	leaseThreads = 3
	leaseEntries = 5 // capacity of a Lease
	fileLease    = 0
	dirLease     = 1
)

type leasesWorld struct {
	// ops is how often each thread asks. Each thread is a mount. The threads in dirs ask
	// for the directory.
	ops    [leaseThreads]int8
	dirs   [leaseThreads]bool
	deaths int8
	faults int8
	mut    string
}

// leaseObject is a Lease: its version, and the ids of its entries in order.
type leaseObject struct {
	ver  int8
	line [leaseEntries]int8
}

// leaseMirror is what a mount's watch has shown.
type leaseMirror struct {
	asOf [2]int8 // equal, as there is only one watch
	line [2][leaseEntries]int8
	dead uint8 // bit t: the session of thread t has ended
}

// leaseWrite is a request to put an entry, on its way.
type leaseWrite struct {
	on   bool
	base int8
	line [leaseEntries]int8
}

type leaseCall struct {
	at    int8
	op    int8 // how many acquisitions have begun
	token int8
}

// What a thread does.
const (
	leaseIdle = iota
	leaseAsks
	leaseSent
	leaseUnsure
	leasePut
	leaseHas
)

type leasesState struct {
	rev     int8
	objects [2]leaseObject
	mirrors [leaseThreads]leaseMirror
	call    [leaseThreads]leaseCall
	write   [leaseThreads]leaseWrite
	late    uint8 // bit t: past its deadline
	dead    uint8
	faults  int8
	deaths  int8
}

func (w *leasesWorld) start() (s leasesState) { return s }

func (w *leasesWorld) lease(t int) int {
	if w.dirs[t] {
		return dirLease
	}
	return fileLease
}

// id is the id of the entry of t's present acquisition; 0: none.
func (s *leasesState) id(t int) int8 { return int8(t) + leaseThreads*s.call[t].op }

func ownerOf(id int8) int { return int(id) % leaseThreads }

func (w *leasesWorld) broken(s leasesState) string {
	for t := range w.ops {
		for u := range t {
			believe := s.call[t].at == leaseHas && s.call[u].at == leaseHas && s.late&(1<<t|1<<u) == 0
			if believe && w.lease(t) == w.lease(u) {
				return "two have one lock"
			}
			if believe {
				return "a file is open below a directory that moves"
			}
		}
	}
	return ""
}

func (w *leasesWorld) waits(s leasesState) bool {
	for t := range w.ops {
		if at := s.call[t].at; at != leaseIdle && at != leaseHas && s.late&(1<<t) == 0 {
			return true
		}
	}
	return false
}

func (w *leasesWorld) steps(s leasesState, to func(leasesState, step)) {
	for t := range w.ops {
		who := fmt.Sprintf("mount %d", t)
		do := func(what string, maybe bool, f func(n *leasesState, c *leaseCall)) {
			n := s
			f(&n, &n.call[t])
			to(n, step{who, what, maybe})
		}
		w.environment(&s, t, do)
		c := s.call[t]
		switch {
		case c.at == leaseIdle && c.op < w.ops[t] && s.late&(1<<t) == 0:
			do([]string{"asks for the file", "asks for the directory"}[w.lease(t)], true, func(_ *leasesState, c *leaseCall) {
				c.at, c.op = leaseAsks, c.op+1
			})
		case c.at == leaseAsks && !s.write[t].on:
			do("reads the Lease, sends its write", false, func(n *leasesState, c *leaseCall) {
				o := n.objects[w.lease(t)]
				n.write[t] = leaseWrite{on: true, base: o.ver, line: joined(o.line, n.mirrors[t].dead, n.id(t))}
				c.at = leaseSent
			})
		case c.at == leaseUnsure:
			w.unsure(&s, t, do)
		case c.at == leasePut:
			w.look(&s, t, do)
		case c.at == leaseHas:
			do("lets go", false, func(n *leasesState, _ *leaseCall) { n.leave(w.lease(t), t) })
		}
	}
}

type leasesDo func(what string, maybe bool, f func(n *leasesState, c *leaseCall))

// environment has the steps outside a mount: its requests arrive, its watch delivers, its
// session ends.
func (w *leasesWorld) environment(s *leasesState, t int, do leasesDo) {
	if s.write[t].on {
		do("server carries out the write", false, func(n *leasesState, c *leaseCall) { w.arrive(n, t, leasePut) })
		if s.faults < w.faults && s.call[t].at == leaseSent {
			do("server carries out the write, the answer is lost", true, func(n *leasesState, c *leaseCall) {
				n.faults++
				w.arrive(n, t, leaseUnsure)
			})
			do("gets no answer", true, func(n *leasesState, c *leaseCall) {
				n.faults++
				c.at = leaseUnsure
			})
		}
	}
	for _, k := range []int{fileLease, dirLease} {
		if s.mirrors[t].asOf[k] == s.rev {
			continue
		}
		if w.mut != "onewatch" {
			do("watch shows everything", false, func(n *leasesState, _ *leaseCall) {
				n.show(t, fileLease)
				n.show(t, dirLease)
			})
			break
		}
		do("one watch of two shows everything", false, func(n *leasesState, _ *leaseCall) { n.show(t, k) })
	}
	if s.late&(1<<t) == 0 && s.deaths < w.deaths {
		do("is cut off, and past its deadline", true, func(n *leasesState, _ *leaseCall) {
			n.late |= 1 << t
			n.deaths++
		})
	}
	if s.late&^s.dead&(1<<t) != 0 {
		do("its session is ended by another", false, func(n *leasesState, _ *leaseCall) {
			n.rev++
			n.dead |= 1 << t
		})
	}
}

func (s *leasesState) show(t, k int) {
	m := &s.mirrors[t]
	m.asOf[k], m.line[k], m.dead = s.rev, s.objects[k].line, s.dead
}

// arrive carries out a write if the Lease still has the version that it replaces.
func (w *leasesWorld) arrive(s *leasesState, t int, then int8) {
	wr, c, o := s.write[t], &s.call[t], &s.objects[w.lease(t)]
	s.write[t] = leaseWrite{}
	if o.ver != wr.base && w.mut != "condition" {
		if c.at == leaseSent {
			c.at = leaseAsks // 409
		}
		return
	}
	s.rev++
	o.ver, o.line = s.rev, wr.line
	if c.at == leaseSent {
		c.at, c.token = then, s.rev
	}
}

// unsure reads the Lease after a lost answer. The entry is there, or the write is void, or
// the write may still come and is waited for. A caller that no longer waits overwrites the
// Lease instead.
func (w *leasesWorld) unsure(s *leasesState, t int, do leasesDo) {
	o := s.objects[w.lease(t)]
	switch {
	case index(o.line, s.id(t)) >= 0:
		do("finds its entry", false, func(n *leasesState, c *leaseCall) { c.at, c.token = leasePut, n.rev })
	case !s.write[t].on || o.ver != s.write[t].base:
		do("finds that its write is void", false, func(n *leasesState, c *leaseCall) {
			n.write[t] = leaseWrite{}
			c.at = leaseAsks
		})
	default:
		do("sends the same write again", false, func(_ *leasesState, c *leaseCall) { c.at = leaseSent })
	}
	do("waits no longer", true, func(n *leasesState, c *leaseCall) {
		if w.mut == "fence" && index(o.line, n.id(t)) < 0 {
			c.at, c.token = leaseIdle, 0
			return
		}
		n.leave(w.lease(t), t)
	})
}

// look decides by what the watch has shown, after it has shown the thread's own entry.
func (w *leasesWorld) look(s *leasesState, t int, do leasesDo) {
	k, m := w.lease(t), &s.mirrors[t]
	if m.asOf[k] < s.call[t].token && w.mut != "afterwards" {
		return
	}
	lives := func(id int8) bool { return m.dead&(1<<ownerOf(id)) == 0 || w.mut == "dead" }
	ahead, across := false, false
	for _, id := range m.line[k] {
		if id == s.id(t) {
			break
		}
		ahead = ahead || id != 0 && lives(id)
	}
	for _, id := range m.line[1-k] {
		across = across || id != 0 && lives(id)
	}
	switch {
	case w.dirs[t] && (ahead || across && w.mut != "giveway"):
		do("gives way: EBUSY", false, func(n *leasesState, _ *leaseCall) { n.leave(k, t) })
	case ahead || across && w.mut != "heed":
		// waits
	default:
		do("is granted", false, func(_ *leasesState, c *leaseCall) { c.at = leaseHas })
	}
}

// leave ends an acquisition: it writes the Lease without its entry.
func (s *leasesState) leave(k, t int) {
	o := &s.objects[k]
	if s.dead&(1<<t) == 0 { // otherwise others remove it
		s.rev++
		o.ver = s.rev
		if i := index(o.line, s.id(t)); i >= 0 {
			copy(o.line[i:], o.line[i+1:])
			o.line[leaseEntries-1] = 0
		}
	}
	s.call[t].at, s.call[t].token = leaseIdle, 0
}

func index(line [leaseEntries]int8, id int8) int {
	for i, o := range line {
		if o == id {
			return i
		}
	}
	return -1
}

// joined is the line with id at its end, without entries of sessions that are known to have
// ended.
func joined(line [leaseEntries]int8, dead uint8, id int8) (next [leaseEntries]int8) {
	n := 0
	for _, o := range line {
		if o != 0 && dead&(1<<ownerOf(o)) == 0 {
			next[n] = o
			n++
		}
	}
	next[n] = id
	return next
}
