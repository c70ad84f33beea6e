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
				d.phase = dirEnds
			case (d.phase == dirAsks || d.phase == dirTaken) && w.mut != "forgetsD":
				d.recalled = true
			}
		})
	}
	switch d.phase {
	case nothing:
		if d.taken < w.takes[m][k] && s.valid[m] {
			do("asks for D of "+name, true, func(n *delegState) {
				n.d[m][k] = delegDir{phase: dirAsks, taken: d.taken + 1, event: d.event}
			})
		}
	case dirAsks:
		do("service carries out the Txn for D of "+name, false, func(n *delegState) { w.take(n, m, k) })
	case dirTaken:
		do("learns that it has D of "+name, false, func(n *delegState) {
			d := &n.d[m][k]
			d.saw(d.token)
			if d.phase = dirHas; d.recalled {
				d.phase = dirEnds
			}
		})
	case dirHas:
		do("has not used D of "+name+" for long: drops it", true, func(n *delegState) { n.d[m][k].phase = dirEnds })
	case dirEnds:
		if !w.isOpen(s, m, k) || w.mut == "deletesfirst" {
			do("sends the Txn that deletes D of "+name, false, func(n *delegState) { n.d[m][k].phase = dirDeletes })
		}
	case dirDeletes:
		do("service deletes D of "+name, false, func(n *delegState) {
			d := &n.d[m][k]
			*d = delegDir{taken: d.taken}
		})
	}
}

// saw notes a revision at which D is known to have stood.
func (d *delegDir) saw(rev int8) {
	if rev > d.known {
		d.known, d.n = rev, 0
	}
}

// isOpen reports whether a file is open by D, or an entry for one is on its way.
func (w *delegWorld) isOpen(s *delegState, m, k int) bool {
	for p, program := range w.programs {
		if program.mount == m && int(s.p[p].under) == k+1 {
			return true
		}
	}
	return false
}

// take is the Txn: If nobody else has an entry above, at or below the directory, and the mount no
// directory's, Then Put D.
func (w *delegWorld) take(s *delegState, m, k int) {
	d := &s.d[m][k]
	refused := !s.lease[m]
	for o := range s.d {
		for l := range s.d[o] {
			refused = refused || (o != m || l != k) && s.d[o][l].rev != 0 && (w.mut != "nested" || l == k)
		}
	}
	for p, program := range w.programs {
		stands := s.p[p].rev != 0
		switch {
		case program.file == renames:
			refused = refused || stands && w.mut != "renamed"
		case program.mount != m && over(k, program.file):
			refused = refused || stands && w.mut != "foreign"
		}
	}
	if refused {
		d.phase = nothing
		return
	}
	d.rev = s.rev + 1
	d.token, d.phase = d.rev, dirTaken
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
					*c = delegCall{phase: done, rev: c.rev}
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
					n.p[p].rev = 0
				}
			}
		})
	}
}
