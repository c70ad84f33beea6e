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
	case inLine:
		w.inLine(s, p, do)
	case holding:
		do("closes", false, func(n *delegState) { w.close(n, p) })
	case deletingEntry:
		do("service deletes its entry", false, func(n *delegState) {
			n.p[p].rev, n.p[p].place = 0, 0
			w.over(n, p)
		})
	}
}

// over ends a file's open.
func (w *delegWorld) over(s *delegState, p int) {
	c := &s.p[p]
	*c = delegCall{phase: idle, opens: c.opens + 1, rev: c.rev, place: c.place}
	if c.opens == w.programs[p].opens {
		c.phase = done
	}
}

// look checks what the mount itself knows.
func (w *delegWorld) look(s *delegState, p int, do delegDo) {
	m, x := w.programs[p].mount, w.programs[p].file
	for q, other := range w.programs {
		if o := &s.p[q]; q != p && other.mount == m && rivals(other.file, x) && o.phase != idle && o.phase != done && o.phase != lookingHere && (w.mut != "unheeded" || other.file == x) {
			if x == renames {
				do("is refused", false, func(n *delegState) { w.over(n, p) })
			}
			return
		}
	}
	for k := range delegDirs {
		d := &s.d[m][k]
		switch {
		case !over(k, x) || d.excepts(x) && w.mut != "exceptions" || d.phase < dirHas:
		case d.phase == dirHas, w.mut == "opensmeanwhile":
			do("opens it by the mount's D, without a Txn", false, func(n *delegState) {
				d, c := &n.d[m][k], &n.p[p]
				d.n++
				c.under, c.phase = int8(k)+1, holding
				n.grant(x, d.token, d.n)
			})
			return
		default:
			return // it waits for the downgrade
		}
	}
	do("sends its Txn", false, func(n *delegState) { n.p[p].phase = requesting })
}

// excepts reports whether what a program wants needs an entry in spite of D.
func (d *delegDir) excepts(x int) bool {
	for y := range delegFiles {
		if d.except&(1<<y) != 0 && rivals(x, y) {
			return true
		}
	}
	return false
}

func (s *delegState) grant(x int, rev, n int8) {
	if last := s.newest[x]; rev < last[0] || rev == last[0] && n <= last[1] {
		s.wrong = "the token of an owner is not larger than the one before"
	}
	s.newest[x] = [2]int8{rev, n}
}

// txn is the service's part: If nothing is in the way Then Put, Else Put in line and recall
// the D above.
func (w *delegWorld) txn(s *delegState, p int) {
	c, m, x := &s.p[p], w.programs[p].mount, w.programs[p].file
	if !s.lease[m] {
		w.over(s, p)
		return
	}
	c.rev = s.rev + 1
	c.place, c.phase = c.rev, inLine
	c.ahead = w.ahead(s, p)
	for o := range s.d {
		for k := range s.d[o] {
			if o != m && c.ahead&dBit(o, k) != 0 && w.mut != "norecall" {
				s.d[o][k].event = true
			}
			// A D that the mount has asked for may be older than this entry, and have
			// a smaller token.
			if o == m && over(k, x) && w.mut != "oldtoken" {
				s.d[o][k].except |= 1 << x
			}
		}
	}
	if x == renames && c.ahead != 0 { // it does not wait
		c.rev, c.place = 0, 0
		w.over(s, p)
	}
}

// ahead returns the entries that rank before p's: of the file, and each D above it.
func (w *delegWorld) ahead(s *delegState, p int) (before uint16) {
	c, m, x := &s.p[p], w.programs[p].mount, w.programs[p].file
	for q, other := range w.programs {
		place := s.p[q].place
		if w.mut == "ownplace" {
			place = s.p[q].rev
		}
		if other.mount != m && rivals(other.file, x) && s.p[q].rev != 0 && place < c.rev {
			before |= 1 << q
		}
	}
	for o := range s.d {
		for k := range s.d[o] {
			if own := o == m && w.mut != "owncounts"; !own && inWay(k, x) && s.d[o][k].rev != 0 && s.d[o][k].rev < c.rev && w.mut != "uncompared" {
				before |= dBit(o, k)
			}
		}
	}
	return before
}

// inLine waits for what is known to be ahead.
func (w *delegWorld) inLine(s *delegState, p int, do delegDo) {
	c := &s.p[p]
	for q := range w.programs {
		if o := &s.p[q]; c.ahead&(1<<q) != 0 && (o.rev == 0 || o.place > c.rev) {
			do("sees that an entry ahead is gone", false, func(n *delegState) { n.p[p].ahead &^= 1 << q })
		}
	}
	for o := range s.d {
		for k := range s.d[o] {
			if d := &s.d[o][k]; c.ahead&dBit(o, k) != 0 && (d.rev == 0 || d.rev > c.rev) {
				do("sees that a D ahead is gone", false, func(n *delegState) {
					n.p[p].ahead &^= dBit(o, k)
					n.p[p].again = w.mut != "nolook"
				})
			}
		}
	}
	switch {
	case c.again:
		do("looks once more", false, func(n *delegState) { n.p[p].again, n.p[p].ahead = false, w.ahead(n, p) })
	case c.ahead == 0:
		do("learns that nothing is ahead", false, func(n *delegState) {
			n.p[p].phase = holding
			n.grant(w.programs[p].file, n.p[p].rev, 0)
		})
	}
}

// close ends an open: its entry is deleted, or, below a D, nothing is to be done.
func (w *delegWorld) close(s *delegState, p int) {
	c := &s.p[p]
	if c.under == 0 {
		c.phase = deletingEntry
		return
	}
	if s.d[w.programs[p].mount][c.under-1].put&(1<<p) == 0 {
		w.over(s, p)
		return
	}
	c.phase = leavingD
}
