package main

// program has the steps of an open.
func (w *delegWorld) program(s *delegState, p int, do delegDo) {
	c, m, x := &s.p[p], w.programs[p].mount, w.programs[p].file
	switch c.phase {
	case idle:
		if s.valid[m] {
			do("opens "+[...]string{"d/f", "d/e/g", "d/e, to rename it"}[x], true, func(n *delegState) { n.p[p].phase = lookingHere })
		}
	case lookingHere:
		w.look(s, p, do)
	case requesting:
		do("service carries out its Txn", false, func(n *delegState) { w.txn(n, p) })
	case waitingForD:
		w.waitForD(s, p, do)
	case inLine:
		w.inLine(s, p, do)
	case holding:
		do("closes", false, func(n *delegState) { w.close(n, p) })
	case deletingEntry:
		do("service deletes its entry", false, func(n *delegState) {
			n.p[p].rev = 0
			w.over(n, p)
		})
	}
	w.entry(s, p, do)
}

// entry has the steps of the entry of a file that is open by a D. The mount may ask for it at any
// time, and does when D ends.
func (w *delegWorld) entry(s *delegState, p int, do delegDo) {
	c, m := &s.p[p], w.programs[p].mount
	switch {
	case c.under == 0:
	case c.entry == 0 && c.phase == holding:
		ends := s.d[m][c.under-1].phase == dirEnds
		do("its mount asks for its entry", !ends, func(n *delegState) { n.p[p].entry = entryAsked })
	case c.entry == entryAsked && (w.mut != "owncounts" || s.d[m][c.under-1].rev == 0):
		do("service puts its entry", false, func(n *delegState) {
			c := &n.p[p]
			if c.entry = entryPut; n.lease[m] {
				c.rev = n.rev + 1
			}
		})
	case c.entry == entryPut:
		do("its mount learns that it has an entry", false, func(n *delegState) {
			c := &n.p[p]
			c.under, c.entry = 0, 0
			if c.phase != leavingD {
				return
			}
			if c.phase = deletingEntry; w.mut == "leaveclosed" {
				w.over(n, p)
			}
		})
	}
}

// over ends a file's open.
func (w *delegWorld) over(s *delegState, p int) {
	c := &s.p[p]
	was := *c
	*c = delegCall{phase: idle, opens: c.opens + 1, rev: c.rev}
	if w.mut == "early" {
		c.under, c.entry = was.under, was.entry
	}
	if c.opens == w.programs[p].opens {
		c.phase = done
	}
}

// look checks what the mount itself knows.
func (w *delegWorld) look(s *delegState, p int, do delegDo) {
	m, x := w.programs[p].mount, w.programs[p].file
	for q, other := range w.programs {
		if o := &s.p[q]; q != p && other.mount == m && rivals(other.file, x) && o.phase != idle && o.phase != done && o.phase != lookingHere && (w.mut != "unheeded" || other.file == x) {
			if asked := o.phase == requesting || o.phase == inLine; asked && x == renames && w.mut == "asked" {
				continue
			}
			if x == renames {
				do("is refused", false, func(n *delegState) { w.over(n, p) })
			}
			return
		}
	}
	for k := range delegDirs {
		d := &s.d[m][k]
		switch {
		case !over(k, x) || d.phase < dirHas:
		case d.phase == dirHas, w.mut == "opensmeanwhile":
			do("opens it by the mount's D, without a Txn", false, func(n *delegState) {
				d, c := &n.d[m][k], &n.p[p]
				d.n++
				c.under, c.phase = int8(k)+1, holding
				n.grant(x, d.known, d.n)
			})
			return
		default:
			return // it waits for the downgrade
		}
	}
	do("sends its Txn", false, func(n *delegState) { n.p[p].phase = requesting })
}

func (s *delegState) grant(x int, rev, n int8) {
	if last := s.newest[x]; rev < last[0] || rev == last[0] && n <= last[1] {
		s.wrong = "the token of an owner is not larger than the one before"
	}
	s.newest[x] = [2]int8{rev, n}
}

// txn is the service's part: If nothing is in the way Then Put, Else, unless another mount has a D
// there, Put in line. A D is recalled.
func (w *delegWorld) txn(s *delegState, p int) {
	c, m, x := &s.p[p], w.programs[p].mount, w.programs[p].file
	if !s.lease[m] {
		w.over(s, p)
		return
	}
	c.ahead = w.ahead(s, p)
	dirs := uint16(0)
	for o := range s.d {
		for k := range s.d[o] {
			if c.ahead&dBit(o, k) != 0 {
				dirs |= dBit(o, k)
				s.d[o][k].event = s.d[o][k].event || w.mut != "norecall"
			}
		}
	}
	switch {
	case x == renames && c.ahead != 0: // it does not wait
		w.over(s, p)
	case dirs != 0 && w.mut != "inline":
		c.phase, c.ahead, c.saw = waitingForD, dirs, s.rev
	default:
		c.rev = s.rev + 1
		c.phase = inLine
	}
}

// ahead returns what stands in p's way: entries of the file, and each D above it.
func (w *delegWorld) ahead(s *delegState, p int) (before uint16) {
	m, x := w.programs[p].mount, w.programs[p].file
	for q, other := range w.programs {
		if other.mount != m && rivals(other.file, x) && s.p[q].rev != 0 {
			before |= 1 << q
		}
	}
	for o := range s.d {
		for k := range s.d[o] {
			if own := o == m && w.mut != "owncounts"; !own && inWay(k, x) && s.d[o][k].rev != 0 && w.mut != "uncompared" {
				before |= dBit(o, k)
			}
		}
	}
	return before
}

// goneAhead has the steps in which p sees that something ahead is gone.
func (w *delegWorld) goneAhead(s *delegState, p int, do delegDo) {
	c := &s.p[p]
	for q := range w.programs {
		if o := &s.p[q]; c.ahead&(1<<q) != 0 && (o.rev == 0 || o.rev > max(c.rev, c.saw)) {
			do("sees that an entry ahead is gone", false, func(n *delegState) { n.p[p].ahead &^= 1 << q })
		}
	}
	for o := range s.d {
		for k := range s.d[o] {
			if d := &s.d[o][k]; c.ahead&dBit(o, k) != 0 && (d.rev == 0 || d.rev > max(c.rev, c.saw)) {
				do("sees that a D is gone", false, func(n *delegState) { n.p[p].ahead &^= dBit(o, k) })
			}
		}
	}
}

// waitForD asks again when the D is gone.
func (w *delegWorld) waitForD(s *delegState, p int, do delegDo) {
	w.goneAhead(s, p, do)
	if s.p[p].ahead == 0 {
		do("sends its Txn again", false, func(n *delegState) { n.p[p].phase, n.p[p].saw = requesting, 0 })
	}
}

// inLine waits for what is known to be ahead.
func (w *delegWorld) inLine(s *delegState, p int, do delegDo) {
	w.goneAhead(s, p, do)
	if s.p[p].ahead != 0 {
		return
	}
	do("learns that nothing is ahead", false, func(n *delegState) {
		c, program := &n.p[p], w.programs[p]
		c.phase = holding
		n.grant(program.file, c.rev, 0)
		for k := range n.d[program.mount] {
			if d := &n.d[program.mount][k]; d.phase != nothing && w.mut != "oldtoken" {
				d.saw(c.rev)
			}
		}
	})
}

// close ends an open: its entry is deleted, or, by a D, nothing is to be done, unless its entry was
// asked for.
func (w *delegWorld) close(s *delegState, p int) {
	c := &s.p[p]
	switch {
	case c.under == 0:
		c.phase = deletingEntry
	case c.entry == 0 || w.mut == "early":
		w.over(s, p)
	default:
		c.phase = leavingD
	}
}
