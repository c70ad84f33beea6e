package main

// The queue model: are waiters granted in the order of their entries, and does every wait
// end? Mounts queue for one path. Watches begin late or break. Answers are lost. Requests
// take effect long after they were given up, and a fence prevents that. Waits are
// interrupted.

const (
	queueMounts = 3
	queueOps    = 2
	maxEntries  = queueMounts * queueOps // an entry's id is mount·queueOps + op
)

type queueWorld struct {
	mounts, ops int
	readers     bool // mount 0 and, if there are three, mount 1 ask for shared locks
	faults      int8 // how many answers and watches are lost, and waits are interrupted
	mut         string
}

// What an acquisition does, apart from idle, holding, releasing and done.
const (
	requesting int8 = iota + 20 // its Txn is on its way
	replied                     // its answer is on its way
	unanswered                  // the answer was lost; next the fence is raised
	watching                    // creates the watch
	looking                     // the watch exists; a read closes the gap
	watched
)

type queueMount struct {
	phase  int8
	op     int8
	fence  int8 // the session record's revision in the service, and as known
	known  int8
	sent   int8 // the fence that the Txn on its way compares
	placed bool
	ahead  uint16 // entries known to be ahead
	read   uint16 // the same, in the service's answer
	events uint16 // deletes that the watch has not delivered yet
	tried  bool   // an entry may exist

	late    int8   // id+1 of a Txn that was given up but not lost
	lateFen int8   // its fence
	drop    uint16 // entries to be deleted in the background
	raise   bool   // after the fence was raised
}

type queueState struct {
	order  [maxEntries]int8 // id+1 of what stands, by create revision
	m      [queueMounts]queueMount
	faults int8
}

func (w *queueWorld) start() queueState {
	var s queueState
	for i := range s.m {
		s.m[i].phase = done
		if i < w.mounts {
			s.m[i].phase = idle
		}
	}
	return s
}

func id(mount int, op int8) int8 { return int8(mount)*queueOps + op }

func (w *queueWorld) shared(id int8) bool {
	return w.readers && int(id/queueOps) < w.mounts-1
}

// ahead returns the entries for which entry e has to wait.
func (w *queueWorld) ahead(s *queueState, e int8) (before uint16) {
	for _, o := range s.order {
		switch {
		case o == 0 || o == e+1:
			return before
		case w.shared(o-1) && w.shared(e):
		case w.mut == "predecessor":
			before = 1 << (o - 1)
		case w.mut == "barge" && s.m[(o-1)/queueOps].phase != holding:
		default:
			before |= 1 << (o - 1)
		}
	}
	return before
}

func (s *queueState) stands(e int8) bool {
	for _, o := range s.order {
		if o == e+1 {
			return true
		}
	}
	return false
}

// put adds an entry; a repeated put leaves the create revision as it is.
func (s *queueState) put(e int8) {
	for i, o := range s.order {
		if o == e+1 {
			return
		}
		if o == 0 {
			s.order[i] = e + 1
			return
		}
	}
}

// remove deletes an entry and tells the watches.
func (s *queueState) remove(e int8) {
	j := 0
	for _, o := range s.order {
		if o != e+1 {
			s.order[j] = o
			j++
		}
	}
	if j == len(s.order) {
		return
	}
	s.order[j] = 0
	for i := range s.m {
		if m := &s.m[i]; m.phase == looking || m.phase == watched {
			m.events |= 1 << e & (m.ahead | m.read)
		}
	}
}

func (w *queueWorld) broken(s queueState) string {
	for i := range w.mounts {
		if s.m[i].phase != holding {
			continue
		}
		e := id(i, s.m[i].op)
		if !s.stands(e) {
			return "a mount believes that it holds an entry which is gone"
		}
		for _, o := range s.order {
			if o == e+1 {
				break
			}
			if o != 0 && !(w.shared(o-1) && w.shared(e)) {
				return "granted ahead of an entry with a smaller create revision"
			}
		}
	}
	return ""
}

func (w *queueWorld) waits(s queueState) bool {
	for i := range w.mounts {
		if p := s.m[i].phase; p != idle && p != done && p != holding && p != releasing {
			return true
		}
	}
	return false
}

func (w *queueWorld) steps(s queueState, to func(queueState, step)) {
	for i := range w.mounts {
		do := func(what string, maybe bool, f func(n *queueState, m *queueMount)) {
			n := s
			f(&n, &n.m[i])
			to(n, step{mountNames[i], what, maybe})
		}
		fault := func(what string, f func(n *queueState, m *queueMount)) {
			if s.faults < w.faults {
				do(what, true, func(n *queueState, m *queueMount) { n.faults++; f(n, m) })
			}
		}
		w.foreground(&s, i, do, fault)
		w.background(&s, i, do)
	}
}

type (
	queueDo    func(what string, maybe bool, f func(n *queueState, m *queueMount))
	queueFault func(what string, f func(n *queueState, m *queueMount))
)

func (w *queueWorld) foreground(s *queueState, i int, do queueDo, fault queueFault) {
	e := id(i, s.m[i].op)
	switch m := &s.m[i]; m.phase {
	case idle:
		do("asks for the lock", true, func(_ *queueState, m *queueMount) { m.send() })
		return
	case requesting:
		do("service carries out its Txn", false, func(n *queueState, m *queueMount) { w.txn(n, i, m.sent) })
		fault("hears nothing; the Txn is still on its way", func(_ *queueState, m *queueMount) {
			m.late, m.lateFen = e+1, m.sent
			m.giveUp()
		})
	case replied:
		do("gets the answer", false, func(_ *queueState, m *queueMount) { m.answered() })
		fault("never gets the answer", func(_ *queueState, m *queueMount) { m.giveUp() })
	case unanswered:
		if w.mut == "nofence" {
			do("sends its Txn again", false, func(_ *queueState, m *queueMount) { m.send() })
			break
		}
		do("raises the fence, sends its Txn again", false, func(_ *queueState, m *queueMount) {
			m.fence++
			m.known = m.fence
			m.send()
		})
	case watching:
		do("watches deletes from now on", false, func(_ *queueState, m *queueMount) {
			m.phase, m.events = looking, 0
			if w.mut == "nogap" {
				m.phase = watched
			}
		})
	case looking:
		do("reads once more", false, func(n *queueState, m *queueMount) {
			m.ahead = w.ahead(n, e)
			m.phase = watched
		})
	case watched:
		if m.events != 0 {
			do("sees deletes", false, func(_ *queueState, m *queueMount) {
				m.ahead &^= m.events
				m.events = 0
			})
		}
		if m.ahead == 0 {
			do("holds the lock", false, func(_ *queueState, m *queueMount) { m.phase, m.events = holding, 0 })
		}
		fault("loses its watch", func(_ *queueState, m *queueMount) { m.phase, m.events = watching, 0 })
	case holding:
		do("releases", false, func(_ *queueState, m *queueMount) { m.phase = releasing })
		return
	case releasing:
		do("service deletes its entry", false, func(n *queueState, m *queueMount) {
			n.remove(e)
			w.next(m)
		})
		return
	case done:
		return
	}
	fault("is interrupted", func(_ *queueState, m *queueMount) { w.interrupt(m, e) })
}

func (m *queueMount) send() { m.phase, m.sent = requesting, m.known }

func (m *queueMount) giveUp() { m.phase, m.tried, m.read, m.placed = unanswered, true, 0, false }

// txn is the service's part of an acquisition.
func (w *queueWorld) txn(s *queueState, i int, fence int8) {
	m := &s.m[i]
	e := id(i, m.op)
	m.placed = fence == m.fence || w.mut == "nofence"
	if m.placed {
		s.put(e)
	}
	m.read = w.ahead(s, e)
	m.phase = replied
}

func (m *queueMount) answered() {
	if !m.placed {
		m.known = m.fence
		m.read = 0
		m.send() // only because the fence had moved
		return
	}
	m.tried, m.ahead, m.phase = true, m.read, watching
	if m.read == 0 {
		m.phase = holding
	}
	m.read, m.placed = 0, false
}

// interrupt ends an acquisition. The entry that it may have put is deleted in the
// background.
func (w *queueWorld) interrupt(m *queueMount, e int8) {
	unsure := m.phase == requesting || m.phase == replied || m.phase == unanswered
	if m.phase == requesting && m.late == 0 {
		m.late, m.lateFen = e+1, m.sent
	}
	if w.mut != "nodiscard" && (unsure || m.tried) {
		m.drop |= 1 << e
		m.raise = m.raise || unsure && w.mut != "nofence"
	}
	w.next(m)
}

// next goes on to the mount's next lock.
func (w *queueWorld) next(m *queueMount) {
	op := m.op + 1
	*m = queueMount{op: op, fence: m.fence, known: m.known, late: m.late, lateFen: m.lateFen, drop: m.drop, raise: m.raise}
	if int(op) == w.ops {
		m.phase = done
	}
}

// background has the steps beside the acquisitions.
func (w *queueWorld) background(s *queueState, i int, do queueDo) {
	m := &s.m[i]
	if m.late != 0 {
		do("service carries out a Txn given up long ago", true, func(n *queueState, m *queueMount) {
			if m.lateFen == m.fence || w.mut == "nofence" {
				n.put(m.late - 1)
			}
			m.late, m.lateFen = 0, 0
		})
	}
	switch {
	case m.raise:
		do("raises the fence, to clean up", false, func(_ *queueState, m *queueMount) {
			m.fence++
			m.known, m.raise = m.fence, false
		})
	case m.drop != 0:
		do("deletes what it may have put", false, func(n *queueState, m *queueMount) {
			for e := range int8(maxEntries) {
				if m.drop&(1<<e) != 0 {
					n.remove(e)
				}
			}
			m.drop = 0
		})
	}
}
