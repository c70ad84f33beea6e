package main

import "fmt"

// The private model: the table of one file's flock and fcntl locks (lockmgr.Advisory). A mount whose
// row is the only one may make it private: then it grants and unlocks by itself, and the row says
// nothing. A row of another mount, for a request that waits or tries, asks it to publish what it
// has. Requests to the service are late, and their answers are lost. Do two owners ever have
// conflicting locks? Does every wait end? Is what was written under a lock read under the next?

const (
	privateMounts   = 2
	privatePrograms = 3
	privateHears    = 2 // ticks
)

type privateProgram struct {
	mount int8
	ops   int8
	reads bool // takes a shared lock
	tries bool // does not wait
}

type privateWorld struct {
	programs [privatePrograms]privateProgram
	faults   int8 // how many answers are lost
	ends     int8 // how many sessions end
	ticks    bool
	mut      string
}

// States of a row.
const (
	privateNone = iota
	privatePublic
	privatePrivate
)

// States of a program.
const (
	programRests = iota
	programWants
	programHas
)

// privateRow is what a mount holds, and its request in line.
type privateRow struct {
	state   int8
	holders int8 // a bit for each program
	rev     int8 // of the last put
	ticket  int8 // of the request; 0: none
	age     int8 // ticks since it was put
}

// privatePut is a change of a mount's rows.
type privatePut struct {
	on      bool
	state   int8
	holders int8
	queue   bool // the request stands in line afterwards
	since   int8 // nothing was put since; -1: never mind
	fence   int8
	session int8
	grants  bool
}

type privateMount struct {
	suspended bool // it does not believe in its session any more
	session   int8 // counts them
	fence     int8 // that its requests have

	row     privateRow // its own, as it knows it
	other   privateRow // the other's, as it knew that at a revision
	rev     int8
	mine    int8 // what its programs have
	waiting privatePut
	unsure  bool // its put was not answered
	late    privatePut
	heard   int8 // ticks since it has read the table

	cache  int8 // the version of the file that its kernel has
	dirty  bool
	caught bool // the cache was made fresh since the table is private

	flushes bool // each unlock does: the table is published, or may be
}

type privateProgramState struct {
	state int8
	done  int8
	met   bool // another had what it tries for
}

type privateState struct {
	rows   [privateMounts]privateRow
	fence  [privateMounts]int8
	alive  [privateMounts]int8 // the session that lives
	rev    int8
	mounts [privateMounts]privateMount
	progs  [privatePrograms]privateProgramState
	volume int8 // the version there
	newest int8 // the version written last
	faults int8
	ends   int8
	wrong  int8
}

const (
	rightPrivate = iota
	wrongOvertaken
	wrongRefused
	wrongOld
)

func (w *privateWorld) start() (s privateState) { return s }

func (w *privateWorld) conflict(p, q int8) bool {
	return p != q && !(w.programs[p].reads && w.programs[q].reads)
}

// blocked reports whether any of holders is in p's way.
func (w *privateWorld) blocked(p, holders int8) bool {
	for q := range int8(privatePrograms) {
		if holders&(1<<q) != 0 && w.conflict(p, q) {
			return true
		}
	}
	return false
}

func (w *privateWorld) broken(s privateState) string {
	for p := range int8(privatePrograms) {
		for q := range p {
			if s.progs[p].state == programHas && s.progs[q].state == programHas && w.conflict(p, q) &&
				!s.mounts[w.programs[p].mount].suspended && !s.mounts[w.programs[q].mount].suspended {
				return "two owners have conflicting locks"
			}
		}
	}
	switch s.wrong {
	case wrongOvertaken:
		return "a lock is granted ahead of a request that was heard of, or is old"
	case wrongRefused:
		return "a try is refused, and nobody had the lock or came before"
	case wrongOld:
		return "what was written under the last lock is not seen"
	}
	return ""
}

func (w *privateWorld) waits(s privateState) bool {
	for p := range s.progs {
		if s.progs[p].state != programRests {
			return true
		}
	}
	for i := range s.rows {
		if s.rows[i].state != privateNone || s.rows[i].ticket != 0 {
			return true
		}
	}
	return false
}

func (w *privateWorld) steps(s privateState, to func(privateState, step)) {
	do := func(who, what string, maybe bool, f func(n *privateState)) {
		n := s
		f(&n)
		w.meets(&n)
		to(n, step{who, what, maybe})
	}
	if w.ticks {
		do("time", "passes", false, func(n *privateState) {
			for i := range n.mounts {
				n.rows[i].age = min(n.rows[i].age+1, privateHears)
				n.mounts[i].heard = min(n.mounts[i].heard+1, privateHears)
			}
		})
	}
	for p := range int8(privatePrograms) {
		w.program(&s, p, do)
	}
	for i := range int8(privateMounts) {
		w.mount(&s, i, do)
		w.service(&s, i, do)
	}
}

type privateDo func(who, what string, maybe bool, f func(n *privateState))

func (w *privateWorld) program(s *privateState, p int8, do privateDo) {
	who, prog := fmt.Sprintf("program %d", p), w.programs[p]
	switch st := s.progs[p]; {
	case st.state == programRests && st.done < prog.ops && !s.mounts[prog.mount].suspended:
		do(who, "asks", true, func(n *privateState) { n.progs[p] = privateProgramState{programWants, st.done + 1, false} })
	case st.state == programHas:
		what := "writes and unlocks"
		if prog.reads || s.mounts[prog.mount].suspended {
			what = "unlocks"
		}
		do(who, what, false, func(n *privateState) {
			m := &n.mounts[prog.mount]
			if !prog.reads && !m.suspended {
				n.newest++
				m.cache, m.dirty = n.newest, true
			}
			n.progs[p].state = programRests
			m.mine &^= 1 << p
			if m.row.state != privatePrivate || m.flushes && w.mut != "flushesfirst" {
				w.flush(n, prog.mount)
			}
		})
	}
}

// meets notes which requests could rightly have been refused.
func (w *privateWorld) meets(s *privateState) {
	for p := range int8(privatePrograms) {
		for q := range int8(privatePrograms) {
			inLine := s.progs[q].state == programWants && s.rows[w.programs[q].mount].ticket != 0 && !w.programs[q].tries
			if s.progs[p].state == programWants && (s.progs[q].state == programHas || inLine) && w.conflict(p, q) {
				s.progs[p].met = true
			}
		}
	}
}

func (w *privateWorld) flush(s *privateState, i int8) {
	if m := &s.mounts[i]; m.dirty {
		s.volume, m.dirty = m.cache, false
	}
}

// grant gives p its lock: it sees the file.
func (w *privateWorld) grant(s *privateState, p int8) {
	i := w.programs[p].mount
	m := &s.mounts[i]
	m.mine |= 1 << p
	s.progs[p].state = programHas
	if m.row.state != privatePrivate || !m.caught && w.mut != "skips" {
		if !m.dirty {
			m.cache = s.volume
		}
	}
	m.caught = m.row.state == privatePrivate
	if m.cache != s.newest && !m.suspended {
		s.wrong = wrongOld
	}
}

// mount is what the worker of mount i does next.
func (w *privateWorld) mount(s *privateState, i int8, do privateDo) {
	who, m := fmt.Sprintf("mount %d", i), s.mounts[i]
	of := func(f func(n *privateState, m *privateMount)) func(n *privateState) {
		return func(n *privateState) { f(n, &n.mounts[i]) }
	}
	if !m.suspended && s.ends < w.ends {
		do(who, "does not hear from the service until the deadline", true, of(func(n *privateState, m *privateMount) {
			n.ends++
			m.suspended = true
			w.flush(n, i)
		}))
	}
	if m.suspended {
		if s.alive[i] != m.session {
			do(who, "hears of the loss", false, of(func(n *privateState, m *privateMount) { w.lose(n, i) }))
		}
		return
	}
	if m.waiting.on {
		if w.mut == "meanwhile" && m.row.state == privatePrivate {
			w.grantHere(s, i, do, who)
		}
		return
	}
	if m.unsure {
		do(who, "makes its put void, and reads", false, of(func(n *privateState, m *privateMount) {
			m.unsure = false
			if w.mut != "nofence" {
				n.fence[i]++
				m.fence = n.fence[i]
			}
			w.learn(n, i)
		}))
		return
	}
	if m.rev != s.rev || m.heard > 0 {
		do(who, "reads the table", false, of(func(n *privateState, m *privateMount) { w.learn(n, i) }))
	}
	send := func(what string, put privatePut) {
		put.on, put.fence, put.session = true, m.fence, m.session
		do(who, what, false, of(func(n *privateState, m *privateMount) {
			if m.row.state == privatePrivate {
				m.flushes = true
				if w.mut != "unflushed" {
					w.flush(n, i)
				}
			}
			m.waiting = put
		}))
	}
	wanted := m.other.ticket != 0 || m.other.state != privateNone
	if m.row.state == privatePrivate {
		switch {
		case wanted:
			state := int8(privatePublic)
			holders := m.mine
			if m.mine == 0 {
				state = privateNone
			}
			if w.mut == "unlisted" {
				state, holders = privateNone, 0
			}
			if w.mut != "forever" || m.mine != 0 {
				send("publishes its list", privatePut{state: state, holders: holders, since: -1})
			}
			if w.mut == "takes" {
				w.grantHere(s, i, do, who)
			}
		case w.wants(s, i) && (!w.ticks || m.heard < privateHears || w.mut == "stale"):
			w.grantHere(s, i, do, who)
		case !w.wants(s, i) && m.mine == 0:
			if w.mut != "keepsidle" {
				send("gives the idle table back", privatePut{since: -1})
			}
		}
		return
	}
	for p := range int8(privatePrograms) {
		if w.programs[p].mount != i || s.progs[p].state != programWants {
			continue
		}
		held := w.blocked(p, m.other.holders)
		if m.other.state == privatePrivate && w.mut != "heed" {
			held = true
		}
		behind := m.other.ticket != 0 && (m.row.ticket == 0 || m.other.ticket < m.row.ticket)
		switch {
		case w.blocked(p, m.mine):
			if w.programs[p].tries {
				do(who, "refuses a try", false, of(func(n *privateState, m *privateMount) { w.refuse(n, p) }))
			}
		case !held && !behind:
			put := privatePut{state: privatePublic, holders: m.mine | 1<<p, since: m.rev, grants: true}
			if !wanted || w.mut == "foreign" && m.other.ticket == 0 {
				put.state, put.holders = privatePrivate, m.mine|1<<p
			}
			if w.mut == "uncompared" {
				put.since = -1
			}
			send("takes the lock", put)
		case w.programs[p].tries && (m.other.state != privatePrivate || w.mut == "notry"):
			do(who, "refuses a try", false, of(func(n *privateState, m *privateMount) { w.refuse(n, p) }))
		case m.row.ticket == 0:
			send("stands in line", privatePut{state: m.row.state, holders: m.mine, queue: true, since: m.rev})
		}
	}
	want := int8(privateNone)
	if m.mine != 0 {
		want = privatePublic
	}
	if m.row.state != want || m.row.holders != m.mine || m.row.ticket != 0 && !w.wants(s, i) {
		send("says what it has", privatePut{state: want, holders: m.mine, queue: m.row.ticket != 0 && w.wants(s, i), since: -1})
	}
}

func (w *privateWorld) refuse(s *privateState, p int8) {
	if !s.progs[p].met {
		s.wrong = wrongRefused
	}
	s.progs[p].state = programRests
}

func (w *privateWorld) wants(s *privateState, i int8) bool {
	for p := range s.progs {
		if w.programs[p].mount == i && s.progs[p].state == programWants {
			return true
		}
	}
	return false
}

// grantHere grants under a private table.
func (w *privateWorld) grantHere(s *privateState, i int8, do privateDo, who string) {
	m := s.mounts[i]
	for p := range int8(privatePrograms) {
		if w.programs[p].mount != i || s.progs[p].state != programWants {
			continue
		}
		switch {
		case !w.blocked(p, m.mine):
			do(who, fmt.Sprintf("grants to program %d by itself", p), false, func(n *privateState) {
				if o := n.rows[1-i]; m.other.ticket != 0 || w.ticks && o.ticket != 0 && o.age == privateHears {
					n.wrong = wrongOvertaken
				}
				w.grant(n, p)
			})
		case w.programs[p].tries:
			do(who, "refuses a try", false, func(n *privateState) { w.refuse(n, p) })
		}
	}
}

// learn takes in the rows as they are.
func (w *privateWorld) learn(s *privateState, i int8) {
	m := &s.mounts[i]
	if s.alive[i] != m.session {
		return // it is told of the loss
	}
	if m.row.state != s.rows[i].state {
		m.caught = false
	}
	m.row, m.other, m.rev, m.heard = s.rows[i], s.rows[1-i], s.rev, 0
	m.row.age, m.other.age = 0, 0
}

// lose begins anew.
func (w *privateWorld) lose(s *privateState, i int8) {
	old := s.mounts[i]
	s.mounts[i] = privateMount{session: s.alive[i], fence: s.fence[i], cache: old.cache, late: old.late}
	if w.mut == "outlives" {
		s.mounts[i].row, s.mounts[i].caught = old.row, old.caught
	}
	for p := range s.progs {
		if w.programs[p].mount == i && s.progs[p].state == programHas {
			s.progs[p].state = programRests
		}
	}
	w.learn(s, i)
	if w.mut == "outlives" {
		s.mounts[i].row = old.row
	}
}

func (w *privateWorld) service(s *privateState, i int8, do privateDo) {
	m := s.mounts[i]
	if m.suspended && s.alive[i] == m.session {
		do("service", fmt.Sprintf("ends the session of mount %d", i), false, func(n *privateState) {
			n.alive[i]++
			n.rows[i] = privateRow{}
			n.rev++
		})
	}
	if m.waiting.on {
		do("service", fmt.Sprintf("answers mount %d", i), false, func(n *privateState) {
			m := &n.mounts[i]
			put := m.waiting
			m.waiting = privatePut{}
			done := w.apply(n, i, put)
			if m.suspended {
				return
			}
			was := m.row.state
			w.learn(n, i)
			if !done || n.alive[i] != m.session {
				return
			}
			if was != privatePrivate {
				m.caught, m.flushes = false, false
			}
			if put.grants {
				for p := range int8(privatePrograms) {
					if put.holders&^m.mine&(1<<p) != 0 && n.progs[p].state == programWants {
						w.grant(n, p)
					}
				}
			}
		})
		if s.faults < w.faults && !m.late.on {
			do("network", fmt.Sprintf("loses an answer of mount %d", i), true, func(n *privateState) {
				n.faults++
				m := &n.mounts[i]
				w.apply(n, i, m.waiting)
				m.waiting, m.unsure = privatePut{}, true
			})
			do("network", fmt.Sprintf("delays a put of mount %d", i), true, func(n *privateState) {
				n.faults++
				m := &n.mounts[i]
				m.late, m.waiting, m.unsure = m.waiting, privatePut{}, true
			})
		}
	}
	if m.late.on {
		do("service", fmt.Sprintf("carries out a late put of mount %d", i), true, func(n *privateState) {
			w.apply(n, i, n.mounts[i].late)
			n.mounts[i].late = privatePut{}
		})
		do("network", fmt.Sprintf("drops a late put of mount %d", i), true, func(n *privateState) { n.mounts[i].late = privatePut{} })
	}
}

// apply changes the rows, if the put's comparisons hold.
func (w *privateWorld) apply(s *privateState, i int8, put privatePut) bool {
	row, other := &s.rows[i], s.rows[1-i]
	if put.session != s.alive[i] || put.fence != s.fence[i] {
		return false
	}
	if put.since >= 0 && max(row.rev, other.rev) > put.since {
		return false
	}
	s.rev++
	if !put.queue {
		row.ticket, row.age = 0, 0
	} else if row.ticket == 0 {
		row.ticket, row.age = s.rev, 0
	}
	row.state, row.holders = put.state, put.holders
	row.rev = s.rev
	if row.state == privatePrivate {
		row.holders = 0
	}
	if row.state == privateNone && row.ticket == 0 {
		*row = privateRow{}
	}
	return true
}

func privateWorlds(full bool, mut string) []func() result {
	mk := func(w privateWorld) func() result {
		w.mut = mut
		return exploring(&w)
	}
	here, reader, there := privateProgram{0, 1, false, false}, privateProgram{0, 1, true, false}, privateProgram{1, 1, false, false}
	try, alsoReads := privateProgram{1, 1, false, true}, privateProgram{1, 1, true, false}
	twice := privateProgram{0, 2, false, false}
	none := privateProgram{}
	worlds := []func() result{
		mk(privateWorld{programs: [3]privateProgram{here, here, there}, faults: 1}),
		mk(privateWorld{programs: [3]privateProgram{here, try, none}, faults: 1}),
		mk(privateWorld{programs: [3]privateProgram{reader, here, alsoReads}}),
		mk(privateWorld{programs: [3]privateProgram{twice, there, none}, ends: 1}),
		mk(privateWorld{programs: [3]privateProgram{twice, there, none}, ticks: true}),
	}
	if !full {
		return worlds
	}
	theretwice := privateProgram{1, 2, false, false}
	return append(worlds,
		mk(privateWorld{programs: [3]privateProgram{twice, theretwice, none}, faults: 1}),
		mk(privateWorld{programs: [3]privateProgram{twice, reader, alsoReads}}),
	)
}
