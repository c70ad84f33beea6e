package main

// mount has the steps of a mount beside its requests, and of the service for it.
func (w *keptWorld) mount(s *keptState, m int, do keptDo) {
	at := &s.m[m]
	for k := range keptKeys {
		w.slot(s, m, k, do)
	}
	keeps := false
	for k := range at.slot {
		keeps = keeps || at.slot[k].keeps && (at.slot[k].lock == lockHeld || at.slot[k].lock == lockIdle)
	}
	switch {
	case !w.clock || !at.valid:
	case at.poll == 0 && keeps && at.fresh > 0:
		do("sends a read of the recalls", false, func(n *keptState) { n.m[m].poll, n.m[m].pollAge = pollSent, 0 })
	case at.poll == pollSent:
		do("service reads the recalls", false, func(n *keptState) {
			n.m[m].poll = pollRead
			for p, program := range w.programs {
				for k := range keptKeys {
					if l := &n.m[m].slot[k]; program.mount != m {
						l.read = max(l.read, n.p[p].recall[k])
					}
				}
			}
		})
	case at.poll == pollRead:
		do("gets the recalls", false, func(n *keptState) {
			at := &n.m[m]
			if at.fresh = at.pollAge; w.mut == "answeredread" {
				at.fresh = 0
			}
			at.poll, at.pollAge = 0, 0
			for k := range keptKeys {
				w.hear(&at.slot[k], at.slot[k].read)
				at.slot[k].read = 0
			}
		})
	}
	w.session(s, m, do)
}

// slot has the steps that concern one key.
func (w *keptWorld) slot(s *keptState, m, k int, do keptDo) {
	l, name := &s.m[m].slot[k], keptNames(1<<k)
	if l.events != 0 {
		do("hears of a recall of "+name, false, func(n *keptState) {
			l := &n.m[m].slot[k]
			w.hear(l, l.events)
			l.events = 0
		})
		if s.faults < w.faults {
			do("its watch loses a recall of "+name, true, func(n *keptState) { n.faults++; n.m[m].slot[k].events = 0 })
		}
	}
	if l.lock == lockIdle && w.mut != "forever" {
		do("has not used "+name+" for long: gives it back", false, func(n *keptState) { n.m[m].slot[k].release() })
	}
	if l.deletes != 0 {
		do("service deletes the entry of "+name, false, func(n *keptState) {
			l := &n.m[m].slot[k]
			if e := &n.m[m].entry[k]; e.rev == l.deletes {
				*e = keptEntry{}
			}
			l.deletes = 0
		})
	}
	if l.lock == lockReleasing && l.rev != 0 && l.deletes == 0 {
		do("learns that the entry of "+name+" is gone", false, func(n *keptState) {
			l := &n.m[m].slot[k]
			l.lock, l.rev, l.keeps = 0, 0, false
		})
	}
	w.tells(s, m, k, do)
}

// tells has the steps by which others see the new owner of a lock that was taken over.
func (w *keptWorld) tells(s *keptState, m, k int, do keptDo) {
	l, e := &s.m[m].slot[k], s.m[m].entry[k]
	if !w.try() {
		return
	}
	tell := func(n *keptState) {
		l := &n.m[m].slot[k]
		l.tells, l.telling = l.rev, l.heard
	}
	if l.lock == lockHeld && l.keeps && l.tells == 0 && l.deletes == 0 {
		if l.recalled && e.told < l.heard && w.mut != "silent" {
			do("was recalled and in use: tells its holder", false, tell)
		} else if w.shows && !e.says && l.n == 0 {
			do("has been in use for long: tells its holder", true, tell)
		}
	}
	if l.tells != 0 {
		do("service puts the holder", false, func(n *keptState) {
			l, e := &n.m[m].slot[k], &n.m[m].entry[k]
			switch {
			case e.rev == l.tells:
				e.says, e.told = true, l.telling
			case e.rev == 0 && n.m[m].lease && w.mut == "blindtell":
				*e = keptEntry{rev: n.rev + 1, kind: keptEntries}
			}
			l.tells, l.telling = 0, 0
		})
	}
}

// hear is what a mount does about a recall of revision r.
func (w *keptWorld) hear(l *keptSlot, r int8) {
	l.heard = max(l.heard, r)
	if (l.lock == lockHeld || l.lock == lockIdle) && l.keeps && l.rev < r {
		l.recalled = true
		if l.lock == lockIdle && w.mut != "later" {
			l.release()
		}
	}
}

// session has the steps of a mount's session. By the deadline, or the death of the mount,
// all is lost that it has. Only then the service ends the lease (the model lease).
func (w *keptWorld) session(s *keptState, m int, do keptDo) {
	at := &s.m[m]
	switch {
	case at.valid && s.ends < w.ends:
		do("its deadline passes, or it dies", true, func(n *keptState) {
			n.ends++
			at := &n.m[m]
			at.valid, at.poll, at.pollAge = false, 0, 0
			for k := range keptKeys {
				if w.mut != "outlives" || at.slot[k].lock != lockIdle {
					at.slot[k] = keptSlot{}
				}
			}
			for p, program := range w.programs {
				c := &n.p[p]
				if program.mount != m {
					continue
				}
				if c.phase == requesting && c.late == 0 {
					c.abandon()
				}
				c.has, c.got, c.drop, c.answer = 0, 0, 0, 0
				if c.waiting() {
					w.over(n, p)
				}
				c.settle(program.asks)
			}
		})
	case !at.valid && at.lease:
		do("service ends its lease", false, func(n *keptState) {
			at := &n.m[m]
			at.lease, at.entry = false, [keptKeys]keptEntry{}
			for p, program := range w.programs {
				if program.mount == m {
					n.p[p].recall = [keptKeys]int8{}
					n.p[p].late = 0
				}
			}
		})
	case !at.valid && !at.lease && s.ends > 0:
		for _, program := range w.programs {
			if program.mount == m {
				do("opens a new session", true, func(n *keptState) {
					n.m[m].lease, n.m[m].valid = true, true
				})
				break
			}
		}
	}
}

// try reports whether a program tries.
func (w *keptWorld) try() bool {
	for _, p := range w.programs {
		for _, a := range p.asks {
			if a.kind == tries {
				return true
			}
		}
	}
	return false
}
