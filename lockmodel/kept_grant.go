package main

// close ends the lock of keys. An entry that may be kept stays, unless it was recalled.
func (w *keptWorld) close(s *keptState, p int, keys uint8) {
	m := &s.m[w.programs[p].mount]
	for k := range keptKeys {
		if l := &m.slot[k]; keys&(1<<k) != 0 {
			if l.lock = lockIdle; !l.keeps || l.recalled && w.mut != "takes" && w.mut != "later" {
				l.release()
			}
		}
	}
}

func (w *keptWorld) takeOver(s *keptState, p int, keys uint8) {
	c, m := &s.p[p], w.programs[p].mount
	for k := range keptKeys {
		l := &s.m[m].slot[k]
		if keys&(1<<k) == 0 {
			continue
		}
		l.lock = lockHeld
		if w.mut != "sametoken" {
			l.n++
		}
		switch {
		case l.heard > l.rev:
			s.wrong = 1
		case w.overdue(s, m, k):
			s.wrong = 2
		case w.ask(s, p).kind == reads:
			s.wrong = 6
		}
	}
	c.got |= keys
	if c.got == w.ask(s, p).keys {
		w.opened(s, p)
	}
}

// overdue reports whether a request of another mount has been in line for k for two ticks.
func (w *keptWorld) overdue(s *keptState, m, k int) bool {
	for q, other := range w.programs {
		c := &s.p[q]
		if other.mount != m && c.waiting() && c.age >= 2 && w.ask(s, q).keys&(1<<k) != 0 && s.m[other.mount].entry[k].rev != 0 {
			return true
		}
	}
	return false
}

func (w *keptWorld) answered(s *keptState, p int) {
	c, m := &s.p[p], &s.m[w.programs[p].mount]
	answer := c.answer
	c.answer = 0
	switch answer {
	case answerFence:
		m.known = m.fence
		c.send(s, w.programs[p].mount)
	case answerPlaced:
		c.phase = inLine
		if !w.ahead(s, p) {
			w.granted(s, p)
		}
	case answerRefused:
		w.refused(s, p)
	case answerRecall:
		c.phase = recalling
	case answerGone:
		w.over(s, p)
	}
}

// granted notes the entries of p's request, and what was heard of them meanwhile.
func (w *keptWorld) granted(s *keptState, p int) {
	c, m := &s.p[p], &s.m[w.programs[p].mount]
	keys := w.ask(s, p).keys &^ c.got
	for k := range keptKeys {
		if e := m.entry[k]; keys&(1<<k) != 0 {
			l := &m.slot[k]
			l.lock, l.rev, l.n, l.keeps = lockHeld, e.rev, 0, e.kind == keptEntries
			l.recalled = l.heard > l.rev && w.mut != "forgets"
		}
	}
	c.got |= keys
	w.opened(s, p)
}

// opened ends a request whose keys are all there.
func (w *keptWorld) opened(s *keptState, p int) {
	c, m := &s.p[p], &s.m[w.programs[p].mount]
	if w.behind(s, p) {
		s.wrong = 3
	}
	for k := range keptKeys {
		if c.got&(1<<k) == 0 {
			continue
		}
		l := m.slot[k]
		if newer(s.last[k], l.rev, l.n) || m.entry[k].kind == sharedEntry {
			s.last[k] = [2]int8{l.rev, l.n}
		} else {
			s.wrong = 4
		}
	}
	c.has |= c.got
	c.got = 0
	w.over(s, p)
}

// newer reports whether a token is larger than last: create revision · owners + number.
func newer(last [2]int8, rev, n int8) bool {
	return int(rev)*keptOwners+int(n) > int(last[0])*keptOwners+int(last[1])
}

func (w *keptWorld) refused(s *keptState, p int) {
	if !s.p[p].saw {
		s.wrong = 5
	}
	w.over(s, p)
}

// over ends the present request. What it has recalled in vain is deleted in the background.
func (w *keptWorld) over(s *keptState, p int) {
	c, m := &s.p[p], &s.m[w.programs[p].mount]
	if c.got != 0 {
		w.close(s, p, c.got)
	}
	c.phase, c.next, c.got, c.age, c.saw, c.sent = idle, c.next+1, 0, 0, false, 0
	line := m.line
	m.line = [keptPrograms]int8{}
	at := 0
	for _, q := range line {
		if q != 0 && int(q) != p+1 {
			m.line[at] = q
			at++
		}
	}
	c.settle(w.programs[p].asks)
}

// giveUp ends a request early. What it may have put is deleted in the background, and its
// mount takes no other request for these keys to the service meanwhile.
func (w *keptWorld) giveUp(s *keptState, p int) {
	c, m := &s.p[p], &s.m[w.programs[p].mount]
	if c.phase == requesting || c.phase == replied || c.phase == unanswered || c.phase == inLine {
		if c.phase == requesting && c.late == 0 {
			c.abandon()
		}
		keys := w.ask(s, p).keys &^ c.got
		c.drop |= keys
		for k := range keptKeys {
			if keys&(1<<k) != 0 {
				m.slot[k].lock, m.slot[k].keeps, m.slot[k].rev = lockReleasing, false, 0
			}
		}
	}
	c.answer = 0
	w.over(s, p)
}
