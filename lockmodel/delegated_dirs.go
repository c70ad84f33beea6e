package main

// directory has the steps of a mount that takes D, has it, and gives it up.
func (w *delegWorld) directory(s *delegState, m, k int, do delegDo) {
	d, name := &s.d[m][k], [...]string{"d", "d/e"}[k]
	if d.event && s.valid[m] {
		do("hears of a recall of "+name, false, func(n *delegState) {
			d := &n.d[m][k]
			d.event = false
			switch {
			case d.phase == dirHas:
				d.phase = dirShrinks
			case (d.phase == dirAsks || d.phase == dirTaken) && w.mut != "forgetsD":
				d.recalled = true
			}
		})
	}
	if d.lateRev != 0 {
		do("service carries out a Txn given up long ago", true, func(n *delegState) {
			d := &n.d[m][k]
			w.shrink(n, m, k, d.late, d.lateLast, d.lateRev)
			d.late, d.lateLast, d.lateRev = 0, false, 0
		})
	}
	switch d.phase {
	case nothing:
		if d.taken < w.takes[m][k] && s.valid[m] && d.lateRev == 0 {
			do("asks for D of "+name, true, func(n *delegState) {
				n.d[m][k] = delegDir{phase: dirAsks, taken: d.taken + 1, event: d.event}
			})
		}
	case dirAsks:
		do("service carries out the Txn for D of "+name, false, func(n *delegState) { w.take(n, m, k) })
	case dirTaken:
		do("learns that it has D of "+name, false, func(n *delegState) {
			d := &n.d[m][k]
			if d.phase = dirHas; d.recalled {
				d.phase = dirShrinks
			}
		})
	case dirHas:
		do("has not used D of "+name+" for long: drops it", true, func(n *delegState) { n.d[m][k].phase = dirShrinks })
	case dirShrinks:
		do("sends a Txn to downgrade D of "+name, false, func(n *delegState) { w.send(n, m, k) })
	case dirSent:
		do("service carries out the downgrade of "+name, false, func(n *delegState) {
			d := &n.d[m][k]
			w.shrink(n, m, k, d.sent, d.last, d.token)
			d.phase = dirTold
		})
		if s.faults < w.faults && d.lateRev == 0 {
			do("hears nothing; its Txn is still on its way; it is sent again", true, func(n *delegState) {
				n.faults++
				d := &n.d[m][k]
				d.late, d.lateLast, d.lateRev = d.sent, d.last, d.token
			})
		}
	case dirTold:
		do("gets the answer", false, func(n *delegState) { w.told(n, m, k) })
	}
}

// take is the Txn: If no other mount has a D, or renames a directory, above or below Then Put D, Get the files below.
func (w *delegWorld) take(s *delegState, m, k int) {
	d := &s.d[m][k]
	for o := range s.d {
		for l := range s.d[o] {
			if (o != m || l != k) && s.d[o][l].rev != 0 && (w.mut != "nested" || l == k) {
				d.phase = nothing
				return
			}
		}
	}
	for p, program := range w.programs {
		if program.mount != m && program.file == renames && s.p[p].rev != 0 && w.mut != "renamed" {
			d.phase = nothing
			return
		}
	}
	if !s.lease[m] {
		d.phase = nothing
		return
	}
	d.rev = s.rev + 1
	d.token, d.phase = d.rev, dirTaken
	for p, program := range w.programs {
		if program.mount != m && s.p[p].rev != 0 && over(k, program.file) && (w.mut != "renamed" || program.file != renames) {
			d.except |= 1 << program.file
		}
	}
}

// send sends the next Txn of a downgrade: entries for what is open below D, as many as fit.
// The last one deletes D.
func (w *delegWorld) send(s *delegState, m, k int) {
	d := &s.d[m][k]
	d.sent, d.last = 0, true
	count := 0
	for p, program := range w.programs {
		if c := &s.p[p]; program.mount != m || c.phase != holding || int(c.under) != k+1 || d.put&(1<<p) != 0 {
			continue
		}
		if count++; count > w.limit {
			d.last = false
			break
		}
		d.sent |= 1 << p
	}
	switch {
	case w.mut == "deletesfirst" && d.rev != 0:
		d.sent, d.last = 0, true
	case w.mut == "lastalone" && d.sent != 0:
		d.last = false
	}
	d.put |= d.sent
	d.phase = dirSent
}

// shrink is the Txn: If D has its revision Then Put the entries, which rank at D's, and
// perhaps Delete D.
func (w *delegWorld) shrink(s *delegState, m, k int, programs uint8, last bool, token int8) {
	d := &s.d[m][k]
	if !s.lease[m] || d.rev != token && w.mut != "blind" && w.mut != "deletesfirst" {
		return
	}
	for p := range w.programs {
		if programs&(1<<p) != 0 {
			if s.p[p].rev == 0 {
				s.p[p].rev = s.rev + 1
			}
			s.p[p].place = token
		}
	}
	if last && d.rev == token {
		d.rev = 0
	}
}

// told goes on with a downgrade, or ends it: what was open below D has an entry now, and
// the entries of what was closed meanwhile are deleted.
func (w *delegWorld) told(s *delegState, m, k int) {
	d := &s.d[m][k]
	over := d.last
	if w.mut == "deletesfirst" {
		over = d.rev == 0 && d.sent == 0 && d.put == w.below(s, m, k)
	}
	for p, program := range w.programs {
		c := &s.p[p]
		if program.mount != m || int(c.under) != k+1 || d.put&(1<<p) == 0 {
			continue
		}
		switch {
		case c.phase == leavingD && (over || w.mut == "early"):
			if c.phase = deletingEntry; w.mut == "leaveclosed" {
				w.over(s, p)
			}
		case over:
			c.under = 0
		}
	}
	d.phase = dirShrinks
	if over {
		*d = delegDir{rev: d.rev, taken: d.taken, event: d.event, late: d.late, lateLast: d.lateLast, lateRev: d.lateRev}
	}
}

// below returns the programs that have a file open by D.
func (w *delegWorld) below(s *delegState, m, k int) (open uint8) {
	for p, program := range w.programs {
		if program.mount == m && int(s.p[p].under) == k+1 {
			open |= 1 << p
		}
	}
	return open
}

// session has the steps of a mount's session, as in the kept model.
func (w *delegWorld) session(s *delegState, m int, do delegDo) {
	switch {
	case s.valid[m] && s.ends < w.ends:
		do("its deadline passes, or it dies", true, func(n *delegState) {
			n.ends++
			n.valid[m] = false
			for p, program := range w.programs {
				if c := &n.p[p]; program.mount == m {
					*c = delegCall{phase: done, rev: c.rev, place: c.place}
				}
			}
			for k := range n.d[m] {
				n.d[m][k].phase = nothing
			}
		})
	case !s.valid[m] && s.lease[m]:
		do("service ends its lease", false, func(n *delegState) {
			n.lease[m], n.d[m] = false, [delegDirs]delegDir{}
			for p, program := range w.programs {
				if program.mount == m {
					n.p[p].rev, n.p[p].place = 0, 0
				}
			}
		})
	}
}
