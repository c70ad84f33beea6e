package main

// successor is a new daemon on the node of mount i. It ends the session of a dead daemon if
// it can prove the death.
func (c *sessionWorld) successor(s *sessionState, i int, do change) {
	m := &s.m[i]
	if !m.lease {
		return
	}
	switch m.next {
	case 0:
		if m.proc == gone || c.mut == "noflock" && c.neighbour(s, i) || c.mut == "noboot" && c.stranger(s, i) {
			do("takes the flock of the session's file", false, func(_ *sessionState, m *sessionMount) { m.next = 1 })
		}
	case 1:
		do("syncs the volume", false, func(n *sessionState, m *sessionMount) {
			m.next = 2
			if c.mut != "nosync" && c.mut != "noboot" && m.cache {
				m.write, m.cache = -1, false
			}
		})
	case 2:
		do("revokes the session", false, func(_ *sessionState, m *sessionMount) { m.end(); m.next = 0 })
	}
}

// neighbour and stranger say whether another daemon runs on the node of mount i, or on
// another node. On another node the flock is always free, because the file is not there.
func (c *sessionWorld) neighbour(s *sessionState, i int) bool { return c.other(s, i, true) }
func (c *sessionWorld) stranger(s *sessionState, i int) bool  { return c.other(s, i, false) }

func (c *sessionWorld) other(s *sessionState, i int, same bool) bool {
	for j := range c.mounts {
		if j != i && s.m[j].proc == running && (c.node[j] == c.node[i]) == same {
			return true
		}
	}
	return false
}

// operator does one thing, once: it breaks a lock, by force or not, deletes a session
// record, or deletes an entry, which nobody should do by hand. An entry is deleted only
// where that can be safe: the holder is suspended, has no write under way, and was not told
// that all is well.
func (c *sessionWorld) operator(s *sessionState, i int, do change) {
	m := &s.m[i]
	if s.broken || !m.entry {
		return
	}
	once := func(what string, f func(m *sessionMount)) {
		do(what, true, func(n *sessionState, m *sessionMount) { n.broken = true; f(m) })
	}
	if m.phase == holding && m.proc == running {
		if c.mut == "breakdeletes" {
			once("deletes the entry to break the lock", func(m *sessionMount) { m.entry = false })
		} else {
			once("records a break", func(m *sessionMount) { m.brk = recorded })
		}
		once("deletes the session record", func(m *sessionMount) { c.lose(m) })
	}
	once("breaks by force: revokes the session", func(m *sessionMount) { m.end(); m.forced = 0 })
	if m.phase == holding && m.deadline == 0 && m.check < 0 && m.write < 0 && m.renewal != standing {
		once("deletes the entry of a suspended holder", func(m *sessionMount) { m.entry = false })
	}
}
