package main

import "fmt"

// The dirleases model: a directory that is delegated to a mount, with Leases of Kubernetes. The
// delegation is an entry in the Lease of the directories, and each file's line is another Lease:
// no write compares both. The mounts of the leases model ask for a file. Mount 0 may have the
// directory above delegated: it then opens the file, or renames a directory between the two,
// without an entry. Can two have the file open, or one have it open while the directory moves? Are
// tokens of later owners larger?

type dirLeasesWorld struct {
	ops         [leaseThreads]int8
	renames     int8 // of mount 0
	delegations int8
	deaths      int8 // of mount 0
	mut         string
}

// dirLeasesMirror is what a mount's watch has shown.
type dirLeasesMirror struct {
	asOf int8
	line [leaseEntries]int8
	d    int8 // the delegation; 0: none
	gone int8 // the revision at which the last one went
	dir  int8 // the entry of the directory that mount 0 renames
	dead bool // the session of mount 0 has ended
}

type dirLeasesCall struct {
	at       int8
	op       int8
	rev      int8 // of the entry
	knewDead bool // when the entry was sent, the session of mount 0 was known to have ended
	on       bool // the write that puts the entry is on its way
	base     int8
	below    bool // open without an entry
}

// dirLeasesMove is what mount 0 does with the directory.
type dirLeasesMove struct {
	at    int8
	op    int8
	rev   int8 // of the entry
	on    bool // the write that puts the entry is on its way
	below bool // it is locked without an entry
}

// What a mount does, beside what a thread of the leases model does.
const (
	dirLeaseCleared = leaseHas + 1 // no delegation stood when the entry was put
)

// The phases of the delegation.
const (
	dirLeaseNone = iota
	dirLeaseAsked
	dirLeaseLooks
	dirLeaseStands
	dirLeaseEnds
)

type dirLeasesState struct {
	rev, ver, gone int8
	line           [leaseEntries]int8
	dir            int8 // the entry of the directory that is renamed: its revision; 0: none
	d              int8 // the id of the delegation that is in the Lease
	recalled       int8 // which one was
	phase          int8
	begun          int8 // how many delegations
	dRev           int8
	known, turn    int8 // of the tokens below the delegation
	last           int16
	shrunk         bool // a later owner had a smaller token
	late, dead     bool // mount 0
	deaths         int8
	move           dirLeasesMove
	calls          [leaseThreads]dirLeasesCall
	mirrors        [leaseThreads]dirLeasesMirror
}

func (w *dirLeasesWorld) start() (s dirLeasesState) { return s }

func (s *dirLeasesState) id(t int) int8 { return int8(t) + leaseThreads*s.calls[t].op }

func (w *dirLeasesWorld) broken(s dirLeasesState) string {
	n := 0
	for t, c := range s.calls {
		if c.at == leaseHas && !(t == 0 && s.late) {
			n++
		}
	}
	switch {
	case n > 1:
		return "two writers"
	case n > 0 && s.move.at == leaseHas && !s.late:
		return "a file is open in a directory that moves"
	case s.shrunk:
		return "smaller token"
	}
	return ""
}

func (w *dirLeasesWorld) waits(s dirLeasesState) bool {
	for t, c := range s.calls {
		if c.at != leaseIdle && c.at != leaseHas && !(t == 0 && s.late) {
			return true
		}
	}
	return (s.move.at == leaseSent || s.move.at == leasePut) && !s.late
}

// over reports whether a mount asks for nothing any more.
func (w *dirLeasesWorld) over(s *dirLeasesState, t int) bool {
	return t != 0 && s.calls[t].op == w.ops[t] && s.calls[t].at == leaseIdle
}

type dirLeasesDo func(what string, maybe bool, f func(n *dirLeasesState, c *dirLeasesCall))

func (w *dirLeasesWorld) steps(s dirLeasesState, to func(dirLeasesState, step)) {
	for t := range s.calls {
		if w.over(&s, t) {
			continue
		}
		do := func(what string, maybe bool, f func(n *dirLeasesState, c *dirLeasesCall)) {
			n := s
			f(&n, &n.calls[t])
			if w.over(&n, t) { // nothing depends on what it has seen
				n.mirrors[t], n.calls[t] = dirLeasesMirror{}, dirLeasesCall{op: n.calls[t].op}
			}
			to(n, step{fmt.Sprintf("mount %d", t), what, maybe})
		}
		w.news(&s, t, do)
		if s.calls[t].on {
			do("server carries out its write", false, func(n *dirLeasesState, c *dirLeasesCall) { n.arrive(t) })
		}
		if t == 0 && s.move.on {
			do("server puts the entry of the directory", false, func(n *dirLeasesState, _ *dirLeasesCall) { n.arriveDir() })
		}
		if t == 0 && s.late {
			continue
		}
		w.file(&s, t, do)
		if t == 0 {
			w.rename(&s, do)
			w.delegation(&s, do)
		}
	}
}

// news has the watch of a mount show more, and mount 0 die.
func (w *dirLeasesWorld) news(s *dirLeasesState, t int, do dirLeasesDo) {
	if m := s.mirrors[t]; m.asOf != s.rev && !(t == 0 && s.late) {
		do("watch shows everything", false, func(n *dirLeasesState, _ *dirLeasesCall) {
			n.mirrors[t] = dirLeasesMirror{asOf: n.rev, line: n.line, d: n.d, gone: n.gone, dir: n.dir, dead: n.dead}
		})
		if m.d != s.d || m.gone != s.gone || m.dir != s.dir {
			do("an answer shows the directories", true, func(n *dirLeasesState, _ *dirLeasesCall) {
				n.mirrors[t].d, n.mirrors[t].gone, n.mirrors[t].dir = n.d, n.gone, n.dir
			})
		}
	}
	if t != 0 {
		return
	}
	if !s.late && s.deaths < w.deaths {
		do("is cut off, and past its deadline", true, func(n *dirLeasesState, _ *dirLeasesCall) { n.late, n.deaths = true, n.deaths+1 })
	}
	if s.late && !s.dead {
		do("its session is ended by another", false, func(n *dirLeasesState, _ *dirLeasesCall) {
			n.rev++
			n.dead = true
		})
	}
}

// arrive carries out a write if the Lease still has the version that it replaces.
func (s *dirLeasesState) arrive(t int) {
	c := &s.calls[t]
	c.on = false
	switch {
	case s.ver != c.base && c.below:
		return // it is sent again
	case s.ver != c.base:
		c.at = leaseAsks // 409
		return
	}
	s.rev++
	s.ver, s.line = s.rev, joined(s.line, boolBit(s.mirrors[t].dead), s.id(t))
	c.rev = s.rev
	if c.below { // its token stays
		c.below = false
		s.known, s.turn = s.rev, 0
		return
	}
	c.at = leasePut
}

func boolBit(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// file has a mount ask for the file.
func (w *dirLeasesWorld) file(s *dirLeasesState, t int, do dirLeasesDo) {
	c, m := s.calls[t], &s.mirrors[t]
	foreign := m.d != 0 && t != 0
	if c.at == leaseIdle && t == 0 && s.move.at != leaseIdle && w.mut != "unheeded" {
		return
	}
	switch {
	case c.at == leaseIdle && c.op < w.ops[t] && t == 0 && s.phase == dirLeaseStands:
		do("opens the file by its delegation", true, func(n *dirLeasesState, c *dirLeasesCall) {
			n.turn++
			*c = dirLeasesCall{at: leaseHas, op: c.op + 1, below: true}
			n.grant(int16(n.known)*8 + int16(n.turn))
		})
		fallthrough // or by an entry, as what has several names
	case c.at == leaseIdle && c.op < w.ops[t] && !(t == 0 && s.phase == dirLeaseEnds):
		do("asks for the file", true, func(_ *dirLeasesState, c *dirLeasesCall) { *c = dirLeasesCall{at: leaseAsks, op: c.op + 1} })
	case c.at == leaseAsks && foreign && !m.dead && w.mut != "stale":
		if s.recalled != m.d && s.d == m.d && w.mut != "norecall" {
			do("recalls the delegation", false, func(n *dirLeasesState, _ *dirLeasesCall) { n.recalled = m.d })
		}
	case c.at == leaseAsks && !(t == 0 && s.phase == dirLeaseEnds):
		do("reads the file's Lease, sends its write", false, func(n *dirLeasesState, c *dirLeasesCall) {
			c.at, c.on, c.base, c.knewDead = leaseSent, true, n.ver, m.dead
		})
	case c.at == leasePut && (m.asOf >= c.rev || w.mut == "afterwards"):
		over := foreign && m.dead && (c.knewDead || w.mut == "corpse")
		switch {
		case foreign && !over && w.mut != "heed", m.gone > c.rev && w.mut != "missed":
			do("withdraws, and begins anew", false, func(n *dirLeasesState, c *dirLeasesCall) {
				n.leave(t)
				c.at = leaseAsks
			})
		default:
			do("is behind no delegation", false, func(_ *dirLeasesState, c *dirLeasesCall) { c.at = dirLeaseCleared })
		}
	case c.at == dirLeaseCleared:
		own := t == 0 && s.phase == dirLeaseStands
		for _, id := range m.line {
			if id == s.id(t) {
				break
			}
			if id != 0 && !own && !(ownerOf(id) == 0 && m.dead) {
				return
			}
		}
		if foreign && !m.dead && w.mut != "heed" {
			return
		}
		if m.dir != 0 && t != 0 && !m.dead && w.mut != "across" {
			return
		}
		do("is granted", false, func(n *dirLeasesState, c *dirLeasesCall) {
			c.at = leaseHas
			n.grant(int16(c.rev) * 8)
			if t == 0 && c.rev > n.known {
				n.known, n.turn = c.rev, 0
			}
		})
	case c.at == leaseHas && !c.on:
		do("lets go", false, func(n *dirLeasesState, c *dirLeasesCall) {
			if !c.below {
				n.leave(t)
			}
			*c = dirLeasesCall{op: c.op}
		})
	}
}

// rename has mount 0 try for the directory.
func (w *dirLeasesWorld) rename(s *dirLeasesState, do dirLeasesDo) {
	c, m, v := s.calls[0], &s.mirrors[0], s.move
	asked := c.at != leaseIdle && c.at != leaseHas
	refused := c.at != leaseIdle && !(asked && w.mut == "asked") && !(c.at == leaseHas && w.mut == "unheeded")
	switch {
	case v.at == leaseIdle && v.op < w.renames && s.phase != dirLeaseEnds && !refused:
		if s.phase == dirLeaseStands {
			do("renames the directory by its delegation", true, func(n *dirLeasesState, _ *dirLeasesCall) {
				n.turn++
				n.move = dirLeasesMove{at: leaseHas, op: v.op + 1, below: true}
				n.grant(int16(n.known)*8 + int16(n.turn))
			})
		}
		if c.at == leaseIdle { // or by an entry, as what goes elsewhere
			do("asks for the directory", true, func(n *dirLeasesState, _ *dirLeasesCall) {
				n.move = dirLeasesMove{at: leaseSent, op: v.op + 1, on: true}
			})
		}
	case v.at == leasePut && m.asOf >= v.rev:
		for _, id := range m.line {
			if id != 0 && ownerOf(id) != 0 && s.phase != dirLeaseStands {
				do("is refused the directory", false, func(n *dirLeasesState, _ *dirLeasesCall) { n.moved() })
				return
			}
		}
		do("is granted the directory", false, func(n *dirLeasesState, _ *dirLeasesCall) {
			n.move.at = leaseHas
			n.grant(int16(v.rev) * 8)
			if v.rev > n.known {
				n.known, n.turn = v.rev, 0
			}
		})
	case v.at == leaseHas && !v.on:
		do("has renamed the directory", false, func(n *dirLeasesState, _ *dirLeasesCall) { n.moved() })
	}
}

// arriveDir puts the entry of the directory.
func (s *dirLeasesState) arriveDir() {
	v := &s.move
	v.on = false
	if s.dead {
		return
	}
	s.rev++
	s.dir, v.rev = s.rev, s.rev
	if v.below { // its token stays
		v.below = false
		s.known, s.turn = s.rev, 0
		return
	}
	v.at = leasePut
}

// moved ends the lock of the directory.
func (s *dirLeasesState) moved() {
	if s.dir != 0 && !s.dead {
		s.rev++
		s.dir = 0
	}
	s.move = dirLeasesMove{op: s.move.op}
}

// delegation has mount 0 take the directory, and give it up.
func (w *dirLeasesWorld) delegation(s *dirLeasesState, do dirLeasesDo) {
	c, m := s.calls[0], &s.mirrors[0]
	switch s.phase {
	case dirLeaseNone:
		if s.begun < w.delegations {
			do("asks for the directory", true, func(n *dirLeasesState, _ *dirLeasesCall) { n.phase = dirLeaseAsked })
		}
	case dirLeaseAsked:
		do("server puts the delegation", false, func(n *dirLeasesState, _ *dirLeasesCall) {
			n.rev++
			n.begun++
			n.d, n.dRev, n.phase = n.begun, n.rev, dirLeaseLooks
		})
	case dirLeaseLooks:
		if m.asOf < s.dRev && w.mut != "looksatonce" {
			return
		}
		for _, id := range m.line {
			if id != 0 && ownerOf(id) != 0 && w.mut != "giveway" {
				do("gives way", false, func(n *dirLeasesState, _ *dirLeasesCall) { n.undelegate() })
				return
			}
		}
		do("has the directory delegated", false, func(n *dirLeasesState, _ *dirLeasesCall) {
			n.phase, n.known, n.turn = dirLeaseStands, max(n.dRev, n.known), 0
		})
	case dirLeaseStands:
		if s.recalled == s.d {
			do("hears of the recall", false, func(n *dirLeasesState, _ *dirLeasesCall) { n.phase = dirLeaseEnds })
		}
		do("has no use for the directory any more", true, func(n *dirLeasesState, _ *dirLeasesCall) { n.phase = dirLeaseEnds })
		w.entry(s, true, do)
	case dirLeaseEnds:
		if w.mut != "deletesfirst" {
			w.entry(s, false, do)
		}
		// What asks by an entry meanwhile believes in the delegation until it has the answer.
		v := s.move
		if c.at == leaseSent || c.at == leasePut || c.at == dirLeaseCleared || v.at == leaseSent || v.at == leasePut {
			return
		}
		if !c.below && !c.on && !v.below && !v.on || w.mut == "deletesfirst" {
			do("deletes the delegation", false, func(n *dirLeasesState, _ *dirLeasesCall) { n.undelegate() })
		}
	}
}

// entry has mount 0 ask for an entry for what it has below its delegation.
func (w *dirLeasesWorld) entry(s *dirLeasesState, maybe bool, do dirLeasesDo) {
	if c := s.calls[0]; c.below && !c.on {
		do("asks for an entry for the file that it has open", maybe, func(n *dirLeasesState, c *dirLeasesCall) { c.on, c.base = true, n.ver })
	}
	if v := s.move; v.below && !v.on {
		do("asks for an entry for the directory that it renames", maybe, func(n *dirLeasesState, _ *dirLeasesCall) { n.move.on = true })
	}
}

func (s *dirLeasesState) grant(token int16) {
	s.shrunk = s.shrunk || token <= s.last
	s.last = max(s.last, token)
}

func (s *dirLeasesState) undelegate() {
	s.rev++
	s.d, s.gone, s.phase = 0, s.rev, dirLeaseNone
}

// leave writes the file's Lease without t's entry.
func (s *dirLeasesState) leave(t int) {
	if t == 0 && s.dead {
		return
	}
	s.rev++
	s.ver = s.rev
	if i := index(s.line, s.id(t)); i >= 0 {
		copy(s.line[i:], s.line[i+1:])
		s.line[leaseEntries-1] = 0
	}
}
