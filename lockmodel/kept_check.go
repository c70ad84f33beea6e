package main

func (w *keptWorld) broken(s keptState) string {
	if s.wrong != 0 {
		return keptWrongs[s.wrong]
	}
	for p, program := range w.programs {
		if s.p[p].has == 0 || !s.m[program.mount].valid {
			continue
		}
		for k := range keptKeys {
			if e := s.m[program.mount].entry[k]; s.p[p].has&(1<<k) != 0 && (e.rev == 0 || e.rev != s.m[program.mount].slot[k].rev) {
				return "a program believes that it holds an entry which is gone"
			}
		}
		for q := range p {
			if common := s.p[p].has & s.p[q].has; common != 0 && s.m[w.programs[q].mount].valid && !(w.sharing(&s, p, common) && w.sharing(&s, q, common)) {
				return "two owners have one file open for write"
			}
		}
	}
	return ""
}

// sharing reports whether a program shares its locks of keys.
func (w *keptWorld) sharing(s *keptState, p int, keys uint8) bool {
	for k := range keptKeys {
		if keys&(1<<k) != 0 && s.m[w.programs[p].mount].entry[k].kind != sharedEntry {
			return false
		}
	}
	return true
}

// waits reports whether a request waits, or the service has something of a mount that has
// no use for it: waiting for both must end.
func (w *keptWorld) waits(s keptState) bool {
	var used [keptMounts]uint8
	for p, program := range w.programs {
		c := &s.p[p]
		if c.waiting() {
			return true
		}
		used[program.mount] |= c.has
		for k, r := range c.recall {
			if r != 0 && c.has&(1<<k) == 0 {
				return true
			}
		}
	}
	for m := range s.m {
		for k, e := range s.m[m].entry {
			if e.rev != 0 && used[m]&(1<<k) == 0 {
				return true
			}
		}
	}
	return false
}

// watch notes for each try whether somebody else wants its keys.
func (w *keptWorld) watch(s *keptState) {
	for p := range w.programs {
		c := &s.p[p]
		if !c.waiting() || w.ask(s, p).kind != tries {
			c.saw = false
			continue
		}
		for q := range w.programs {
			keys := w.wants(s, q) | s.p[q].drop
			if s.p[q].late != 0 {
				keys |= w.programs[q].asks[s.p[q].late-1].keys
			}
			c.saw = c.saw || q != p && keys&w.ask(s, p).keys != 0
		}
		for m := range s.m { // entries of a session that ends were somebody's
			for k, e := range s.m[m].entry {
				c.saw = c.saw || !s.m[m].valid && e.rev != 0 && w.ask(s, p).keys&(1<<k) != 0
			}
		}
	}
}

// normalize numbers the revisions anew, and forgets what can make no difference. So states
// that differ only by that are one.
func (s *keptState) normalize(w *keptWorld) {
	var asked [keptMounts]uint8
	for p, program := range w.programs {
		if c := &s.p[p]; c.waiting() || c.late != 0 || c.drop != 0 {
			asked[program.mount] |= 1<<keptKeys - 1
		}
	}
	var revs revisions
	for m := range s.m {
		keeps := false
		for k := range keptKeys {
			l, e := &s.m[m].slot[k], &s.m[m].entry[k]
			if l.lock == 0 && asked[m] == 0 {
				l.heard, l.events, l.read = 0, 0, 0
			}
			if l.lock == 0 || l.lock == lockReleasing {
				l.recalled, l.n = false, 0
			}
			keeps = keeps || l.keeps && l.lock != 0
			revs.add(&l.rev, &l.deletes, &l.tells, &l.telling, &l.heard, &l.events, &l.read, &e.rev, &e.told, &e.twin)
		}
		if !keeps && s.m[m].poll == 0 || !w.clock {
			s.m[m].fresh = keptFresh + 1
		}
	}
	for p := range w.programs {
		c := &s.p[p]
		if !c.waiting() {
			c.age = 0
		}
		for k := range c.recall {
			revs.add(&c.recall[k])
		}
	}
	for k := range s.last {
		revs.add(&s.last[k][0])
	}
	s.rev = revs.renumber()
}
