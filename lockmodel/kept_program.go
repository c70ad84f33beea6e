package main

import "slices"

// program has the steps of a program and of its requests.
func (w *keptWorld) program(s *keptState, p int, do keptDo) {
	c, m := &s.p[p], w.programs[p].mount
	fault := func(what string, f func(n *keptState)) {
		if s.faults < w.faults {
			do(what, true, func(n *keptState) { n.faults++; f(n) })
		}
	}
	w.background(s, p, do)
	switch c.phase {
	case idle:
		w.idle(s, p, do)
		return
	case done:
		return
	case lookingHere:
		w.look(s, p, do)
	case requesting:
		do("service carries out its Txn", false, func(n *keptState) {
			n.p[p].phase = replied
			n.p[p].answer = w.txn(n, p, int(n.p[p].next), n.p[p].sent)
		})
		if c.late == 0 {
			fault("hears nothing; the Txn is still on its way", func(n *keptState) {
				n.p[p].abandon()
				n.p[p].phase = unanswered
			})
		}
	case replied:
		do("gets the answer", false, func(n *keptState) { w.answered(n, p) })
		fault("never gets the answer", func(n *keptState) { n.p[p].phase = unanswered })
	case unanswered:
		do("raises the fence, sends its Txn again", false, func(n *keptState) {
			if w.mut != "nofence" {
				n.m[m].fence++
				n.m[m].known = n.m[m].fence
			}
			n.p[p].send(n, m)
		})
	case inLine:
		if !w.ahead(s, p) {
			do("learns that nothing is ahead", false, func(n *keptState) { w.granted(n, p) })
		}
	case recalling:
		w.recalled(s, p, do)
	}
	fault("gives up", func(n *keptState) { w.giveUp(n, p) })
}

func (w *keptWorld) idle(s *keptState, p int, do keptDo) {
	c, asks := &s.p[p], w.programs[p].asks
	m := w.programs[p].mount
	if int(c.next) < len(asks) && s.m[m].valid && (c.has == 0 || asks[c.next].nested) {
		do([]string{"opens", "opens to read", "tries"}[asks[c.next].kind]+" "+keptNames(asks[c.next].keys), true, func(n *keptState) {
			n.p[p].phase = lookingHere
			line := &n.m[m].line
			line[slices.Index(line[:], 0)] = int8(p) + 1
		})
	}
	if c.has != 0 {
		do("closes", false, func(n *keptState) {
			w.close(n, p, n.p[p].has)
			n.p[p].has = 0
			n.p[p].settle(asks)
		})
	}
}

func keptNames(keys uint8) string { return [...]string{1: "a", 2: "b", 3: "a and b"}[keys] }

func (c *keptCall) settle(asks []keptAsk) {
	if c.phase == idle && c.has == 0 && int(c.next) == len(asks) {
		c.phase = done
	}
}

func (l *keptSlot) release() { l.lock, l.deletes = lockReleasing, l.rev }

// look checks what the mount itself knows.
func (w *keptWorld) look(s *keptState, p int, do keptDo) {
	m, ask := w.programs[p].mount, w.ask(s, p)
	keys := ask.keys &^ s.p[p].got
	if w.behind(s, p) && w.mut != "barge" {
		if ask.kind == tries {
			do("is refused: another is ahead here", false, func(n *keptState) { w.refused(n, p) })
		}
		return
	}
	var free, stale, spent uint8
	for k := range keptKeys {
		l, bit := &s.m[m].slot[k], uint8(1)<<k
		switch {
		case keys&bit == 0, l.lock == 0:
		case l.lock == lockHeld && ask.kind == tries:
			do("is refused: another has it here", false, func(n *keptState) { w.refused(n, p) })
			return
		case l.lock == lockReleasing && w.mut == "reuses" && l.keeps && ask.kind != reads:
			free |= bit
		case l.lock != lockIdle:
			return
		case l.recalled && w.mut != "takes", l.n+1 == keptOwners && w.mut != "usedup", ask.kind == reads && w.mut != "alone":
			spent |= bit
		case w.clock && s.m[m].fresh > keptFresh && w.mut != "stale":
			stale |= bit
		default:
			free |= bit
		}
	}
	idle := free | stale | spent
	switch {
	case idle == 0:
		do("sends its Txn", false, func(n *keptState) { n.p[p].send(n, m) })
	case spent != 0, idle != keys && w.mut != "several":
		do("gives back what is idle here", false, func(n *keptState) {
			for k := range keptKeys {
				if l := &n.m[m].slot[k]; idle&(1<<k) != 0 && l.lock == lockIdle {
					l.release()
				}
			}
		})
	case stale != 0: // it waits for the next read of the recalls
	default:
		do("takes "+keptNames(free)+" over", false, func(n *keptState) { w.takeOver(n, p, free) })
	}
}

// behind reports whether an earlier request on p's mount wants one of its keys.
func (w *keptWorld) behind(s *keptState, p int) bool {
	for _, q := range s.m[w.programs[p].mount].line {
		if q == 0 || int(q) == p+1 {
			return false
		}
		if w.ask(s, int(q)-1).keys&w.ask(s, p).keys != 0 {
			return true
		}
	}
	return false
}

func (c *keptCall) send(s *keptState, m int) { c.phase, c.sent = requesting, s.m[m].known }

func (c *keptCall) abandon() { c.late, c.lateFen = c.next+1, c.sent }

// background has the steps that go on beside p's requests.
func (w *keptWorld) background(s *keptState, p int, do keptDo) {
	c, m := &s.p[p], w.programs[p].mount
	if c.late != 0 {
		do("service carries out a Txn given up long ago", true, func(n *keptState) {
			at, fence := int(c.late)-1, c.lateFen
			n.p[p].late, n.p[p].lateFen = 0, 0
			w.txn(n, p, at, fence)
		})
	}
	if c.drop != 0 {
		do("makes its Txn void, deletes what it may have put", false, func(n *keptState) {
			if w.mut != "nofence" {
				n.m[m].fence++
				n.m[m].known = n.m[m].fence
			}
			for k := range keptKeys {
				if c.drop&(1<<k) != 0 {
					n.m[m].entry[k] = keptEntry{}
					n.m[m].slot[k].lock = 0
					n.p[p].recall[k] = 0
				}
			}
			n.p[p].drop = 0
		})
	}
	for k := range keptKeys {
		bit := uint8(1) << k
		if c.recall[k] != 0 && !c.waiting() && (c.has|c.drop)&bit == 0 && w.mut != "leaves" {
			do("deletes its recall", false, func(n *keptState) { n.p[p].recall[k] = 0 })
		}
	}
}
