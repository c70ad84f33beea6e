package main

var mountNames = [...]string{"mount 0", "mount 1", "mount 2", "mount 3"}

// change is one step of one mount. do changes the mount's part of a copy of the state.
type change func(what string, maybe bool, do func(n *sessionState, m *sessionMount))

func (c *sessionWorld) steps(s sessionState, to func(sessionState, step)) {
	if n, ok := c.tick(s); ok {
		to(n, step{who: "time", what: "a tick"})
	}
	for i := range c.mounts {
		m := &s.m[i]
		as := func(who string) change {
			return func(what string, maybe bool, do func(*sessionState, *sessionMount)) {
				n := s
				do(&n, &n.m[i])
				if n.m[i].phase == done {
					n.m[i].settle()
				}
				to(n, step{who, what, maybe})
			}
		}
		c.service(&s, m, as("service to "+mountNames[i]))
		c.volume(m, as("write of "+mountNames[i]))
		if m.proc != running {
			c.dying(m, as(mountNames[i]))
		} else {
			c.lock(m, as(mountNames[i]))
		}
		if !c.well[i] {
			c.trouble(&s, i, as)
		}
		if m.phase == holding {
			c.hold(m, as(mountNames[i]))
		}
	}
}

// trouble has the faults of a mount whose session is not always well.
func (c *sessionWorld) trouble(s *sessionState, i int, as func(who string) change) {
	m := &s.m[i]
	if c.succeed {
		c.successor(s, i, as("successor of "+mountNames[i]))
	}
	if c.breaks {
		c.operator(s, i, as("operator to "+mountNames[i]))
	}
	if m.lease {
		c.expiry(m, as("service to "+mountNames[i]))
	}
	if m.proc != running {
		return
	}
	c.renew(m, as(mountNames[i]))
	if m.phase != idle && m.phase != done {
		as(mountNames[i])("is killed", true, func(_ *sessionState, m *sessionMount) {
			m.proc, m.check, m.late, m.brk = killed, -1, -1, noBreak
			if m.phase != asking && m.phase != releasing {
				m.phase = done
			}
			m.settle()
		})
	}
}

// settle clears what no longer matters of a mount that is done, so that states that differ
// only by it are one.
func (m *sessionMount) settle() {
	if m.proc == running && m.noted != lost {
		return
	}
	m.deadline, m.noted, m.sus = 0, lost, 0
	m.drop()
}

// tick lets time pass, unless a write has to move first.
func (c *sessionWorld) tick(s sessionState) (sessionState, bool) {
	for i := range c.mounts {
		m := &s.m[i]
		if m.check == c.d || m.write == c.w {
			return s, false
		}
		advance := func(age *int8, limit int8) {
			if *age >= 0 && *age < limit {
				*age++
			}
		}
		advance(&m.check, c.d)
		advance(&m.write, c.w)
		advance(&m.forced, c.ttl)
		advance(&m.late, c.w+c.d+1)
		if m.renewal != none {
			advance(&m.age, c.ttl)
		}
		if m.noted == suspended {
			advance(&m.sus, c.give)
		}
		if !c.well[i] {
			m.expiry = max(m.expiry-1, 0)
			m.deadline = max(m.deadline-1, 0)
		}
	}
	return s, true
}

// service has the steps of etcd, at any time.
func (c *sessionWorld) service(s *sessionState, m *sessionMount, do change) {
	if m.renewal == sent && !m.lease {
		do("the lease is gone, it answers", false, func(_ *sessionState, m *sessionMount) { m.renewal = refused })
	}
	if m.renewal == sent && m.expiry > 0 {
		do("renews the lease", false, func(_ *sessionState, m *sessionMount) { m.renewal, m.expiry = renewed, c.ttl })
	}
	if m.renewal == verifying {
		do("reads what the mount holds", false, func(_ *sessionState, m *sessionMount) {
			m.renewal = standing
			if m.phase == holding && !m.entry {
				m.renewal = missing
			}
		})
	}
	switch {
	case m.phase == asking && m.lease:
		do("puts the entry", false, func(n *sessionState, m *sessionMount) {
			n.tokens++
			m.token, m.entry, m.phase = n.tokens, true, queued
		})
	case m.phase == queued && m.entry && !c.blocked(s, m):
		do("says that nothing is ahead", false, func(_ *sessionState, m *sessionMount) { m.phase = granted })
	case m.phase == releasing:
		do("deletes the entry", false, func(_ *sessionState, m *sessionMount) {
			m.phase, m.entry, m.token, m.reader = idle, false, 0, false
			if m.proc != running {
				m.phase = done
			}
		})
	}
}

func (c *sessionWorld) expiry(m *sessionMount, do change) {
	if m.expiry == 0 {
		do("ends the lease", false, func(_ *sessionState, m *sessionMount) { m.end() })
	}
	if m.expiry < c.ttl {
		do("a new leader starts the TTL again", true, func(_ *sessionState, m *sessionMount) { m.expiry = c.ttl })
	}
}

func (c *sessionWorld) blocked(s *sessionState, m *sessionMount) bool {
	for i := range c.mounts {
		if o := &s.m[i]; o.entry && o.token < m.token && o.conflicts(m) {
			return true
		}
	}
	return false
}

// volume has the steps of a write that was issued.
func (c *sessionWorld) volume(m *sessionMount, do change) {
	switch {
	case m.write < 0:
	case !m.cache:
		do("the system call returns", false, func(_ *sessionState, m *sessionMount) { m.cache = true })
	default:
		do("lands", false, func(_ *sessionState, m *sessionMount) { m.write, m.cache = -1, false })
	}
}

// renew models package renew: renewals, suspension, loss.
func (c *sessionWorld) renew(m *sessionMount, do change) {
	if m.noted == lost {
		if m.late > c.w+c.d || m.late >= 0 && c.mut == "revokeatonce" {
			do("revokes its lost session", false, func(_ *sessionState, m *sessionMount) { m.end(); m.late = -1 })
		}
		if c.mut != "revive" {
			return
		}
	}
	if m.deadline == 0 && m.noted == held {
		do("notices that the deadline has passed", false, func(_ *sessionState, m *sessionMount) { m.look() })
	}
	if m.noted == suspended && m.sus == c.give {
		do("gives the session up", false, func(_ *sessionState, m *sessionMount) { c.lose(m) })
	}
	if !m.lease && m.noted != lost {
		do("hears that the session is gone", false, func(_ *sessionState, m *sessionMount) { c.lose(m) })
	}
	switch m.renewal {
	case none:
		do("sends a renewal", false, func(_ *sessionState, m *sessionMount) {
			m.look()
			m.renewal, m.age, m.before = sent, 0, false
		})
		return
	case renewed:
		do("gets the answer of the renewal", false, c.counted)
	case refused:
		do("learns that the lease is gone", false, func(_ *sessionState, m *sessionMount) { c.lose(m) })
	case standing:
		do("learns that its entry stands", false, c.verified)
	case missing:
		do("learns that its entry is gone", false, func(n *sessionState, m *sessionMount) {
			m.void = true
			c.verified(n, m)
		})
	}
	if m.age > 0 {
		do("waits no longer for the answer", true, func(_ *sessionState, m *sessionMount) { m.drop() })
	}
}

// counted counts an answered renewal, as package renew does.
func (c *sessionWorld) counted(_ *sessionState, m *sessionMount) {
	if c.mut != "thaw" {
		m.look()
	}
	own := c.term() - m.age // what remains of the renewal's own deadline
	if c.mut == "answered" {
		own = c.term()
	}
	switch {
	case own <= 0:
		m.drop()
	case m.noted == held, m.noted == lost && c.mut == "revive":
		m.noted, m.deadline = held, max(m.deadline, own)
		m.drop()
	case m.before && c.mut != "sentbefore":
		m.drop()
	case c.mut == "noverify":
		m.resume(own)
	default:
		m.renewal = verifying
	}
}

// verified ends a suspension, if the renewal still counts.
func (c *sessionWorld) verified(_ *sessionState, m *sessionMount) {
	own := c.term() - m.age
	if c.mut == "freshterm" {
		own = c.term()
	}
	if own <= 0 {
		m.drop()
		return
	}
	m.resume(own)
}

func (m *sessionMount) resume(own int8) {
	m.noted, m.sus, m.deadline = held, 0, own
	m.drop()
}

// lock has the steps of a request for the lock.
func (c *sessionWorld) lock(m *sessionMount, do change) {
	switch m.phase {
	case idle:
		if m.ops == c.ops || m.deadline == 0 {
			return
		}
		do("asks for the lock", true, func(_ *sessionState, m *sessionMount) { m.phase, m.ops = asking, m.ops+1 })
		if c.readers {
			do("asks for the lock, shared", true, func(_ *sessionState, m *sessionMount) {
				m.phase, m.ops, m.reader = asking, m.ops+1, true
			})
		}
	case asking, queued:
		if m.phase == asking && !m.lease {
			do("is told that its session is gone", false, func(_ *sessionState, m *sessionMount) { m.phase = done; c.lose(m) })
		}
	case granted:
		do("learns that it holds the lock", false, func(_ *sessionState, m *sessionMount) { m.phase = holding })
	}
}

// dying has the steps of a killed process. Its flock is released with its last system call.
func (c *sessionWorld) dying(m *sessionMount, do change) {
	if m.proc == killed && (m.write < 0 || m.cache) {
		do("is gone", false, func(_ *sessionState, m *sessionMount) { m.proc = gone })
	}
	if m.phase == asking && !m.lease {
		do("its request fails", false, func(_ *sessionState, m *sessionMount) { m.phase = done })
	}
}

// hold has the steps of a holder.
func (c *sessionWorld) hold(m *sessionMount, do change) {
	inFlight := m.check >= 0 || m.write >= 0
	if c.valid(m) && !inFlight {
		do("checks that it may write", true, func(_ *sessionState, m *sessionMount) { m.check = 0 })
	}
	if m.check >= 0 {
		do("issues the write", false, func(_ *sessionState, m *sessionMount) { m.check, m.write = -1, 0 })
	}
	if c.valid(m) && m.brk < answered && m.check < 0 && (!inFlight || c.mut == "releasefirst") {
		do("releases", false, func(_ *sessionState, m *sessionMount) { m.phase, m.brk = releasing, noBreak })
	}
	if !m.entry && !m.void {
		do("hears that its entry is gone", false, func(_ *sessionState, m *sessionMount) { m.void = true })
	}
	if (m.void || m.noted == lost) && !inFlight && m.brk < answered {
		do("closes the file, which is lost", false, func(_ *sessionState, m *sessionMount) {
			m.phase, m.void, m.reader, m.token = idle, false, false, 0
			if m.noted == lost {
				m.phase = done
			}
		})
	}
	switch m.brk {
	case recorded:
		do("hears of the break, marks the lock lost", false, func(_ *sessionState, m *sessionMount) {
			m.brk, m.void = answered, c.mut != "breakunmarked"
		})
	case answered:
		if !inFlight || c.mut == "breakinflight" {
			do("its writes have landed: sends the delete", false, func(_ *sessionState, m *sessionMount) { m.brk = deleting })
		}
	case deleting:
		do("the service deletes the broken entry", false, func(_ *sessionState, m *sessionMount) {
			m.brk, m.entry = noBreak, false
		})
	}
}
