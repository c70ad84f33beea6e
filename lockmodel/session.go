package main

// The session model: is a write ever on its way to the volume while another mount holds the
// lock? There is one lock. Sessions are renewed, suspended, resumed, lost, broken, and
// ended by successors. A clock counts ticks. Each step of a mount may come arbitrarily
// late, which covers freezing, thawing and partitions. Only two times are bounded: from a
// check to the issue of its write (d), and from there to the volume (w).

// maxMounts bounds the mounts of a session model.
const maxMounts = 3

// sessionWorld is a configuration.
type sessionWorld struct {
	mounts  int
	node    [maxMounts]int8 // on which machine each mount is
	ops     int8            // locks each mount takes
	readers bool            // it may be shared
	ttl     int8
	w, d    int8
	margin  int8
	give    int8            // how long a suspension lasts before it becomes a loss
	well    [maxMounts]bool // its session never has trouble
	breaks  bool            // an operator breaks a lock, or deletes a record or an entry
	succeed bool            // a killed mount's successor revokes its session
	mut     string
}

// What a mount does about its lock.
const (
	idle    int8 = iota
	asking       // the request is on its way
	queued       // the entry is in the service
	granted      // the answer is on its way
	holding
	releasing
	done // its session or process has ended
)

// The process.
const (
	running int8 = iota
	killed       // its threads end their system calls
	gone         // its flock is free
)

// What the mount knows of its session (renew.State).
const (
	held int8 = iota
	suspended
	lost
)

// The progress of the one renewal that is under way.
const (
	none int8 = iota
	sent
	renewed   // the service has extended the lease; the answer is on its way
	refused   // the lease is gone; the answer is on its way
	verifying // Verify's read is on its way
	standing  // the entry exists; the answer is on its way
	missing   // the entry does not exist; the answer is on its way
)

// A request to break a lock.
const (
	noBreak int8 = iota
	recorded
	answered // the holder has marked the lock lost
	deleting // its writes have landed; the delete is on its way
)

// sessionMount is one mount: its state in the service, and its own.
type sessionMount struct {
	lease  bool // the service has it
	entry  bool // the service has its entry
	reader bool
	expiry int8 // ticks until the service may end the lease
	token  int8 // order of the entries
	ops    int8

	phase    int8
	proc     int8
	noted    int8
	sus      int8 // ticks since the suspension was noticed, up to give
	deadline int8 // ticks left in which writes may be issued
	renewal  int8
	age      int8 // ticks since it was sent
	before   bool // it was sent before the suspension
	void     bool // the lock was marked lost

	check int8 // ticks since a write was checked and not yet issued; -1: none is
	write int8 // ticks since a write was issued and has not landed; -1: none is
	cache bool // its system call has returned: the data is in the node's page cache

	brk    int8
	forced int8 // ticks since an operator revoked the session; -1: never
	next   int8 // the progress of its successor: 0 none, 1 has the flock, 2 has synced
	late   int8 // ticks since the loss, up to w + d + 1, until it revokes the lost session; -1: it will not
}

type sessionState struct {
	m      [maxMounts]sessionMount
	tokens int8
	broken bool // an operator has done that
}

func (c *sessionWorld) term() int8 { return c.ttl - c.margin }

func (c *sessionWorld) start() sessionState {
	var s sessionState
	for i := range s.m {
		s.m[i] = sessionMount{check: -1, write: -1, forced: -1, late: -1, phase: done}
		if i < c.mounts {
			s.m[i].phase, s.m[i].lease, s.m[i].expiry, s.m[i].deadline = idle, true, c.ttl, c.term()
		}
	}
	return s
}

// valid is lockmgr's Hold.Check: may a write be issued now?
func (c *sessionWorld) valid(m *sessionMount) bool {
	return m.proc == running && m.phase == holding && !m.void && (m.deadline > 0 || c.mut == "nodeadline" && m.noted != lost)
}

func (m *sessionMount) conflicts(o *sessionMount) bool { return !m.reader || !o.reader }

func (c *sessionWorld) broken(s sessionState) string {
	for i := range c.mounts {
		m := &s.m[i]
		active := c.valid(m) || m.check >= 0 || m.write >= 0
		if active && m.forced >= c.ttl {
			return "a writer runs longer than TTL after its session was revoked by force"
		}
		for j := range c.mounts {
			o := &s.m[j]
			if i == j || m.forced >= 0 || o.forced >= 0 || !m.conflicts(o) {
				continue
			}
			if c.valid(m) && c.valid(o) {
				return "two mounts believe that they hold the lock"
			}
			if (m.check >= 0 || m.write >= 0) && c.valid(o) && o.token > m.token {
				return "a write is on its way when another holds the lock"
			}
		}
	}
	return ""
}

// waits reports whether a mount with a living session is in line.
func (c *sessionWorld) waits(s sessionState) bool {
	for i := range c.mounts {
		if m := &s.m[i]; m.phase == queued && m.lease && m.noted != lost {
			return true
		}
	}
	return false
}

// end removes a mount's lease, and so its entry, from the service.
func (m *sessionMount) end() { m.lease, m.entry, m.expiry, m.next = false, false, 0, 0 }

// lose is what a mount does when it loses its session. Its writes land by themselves. Then
// the lease, if it still exists, is revoked.
func (c *sessionWorld) lose(m *sessionMount) {
	m.noted, m.deadline, m.sus, m.late = lost, 0, 0, -1
	if c.mut != "revive" {
		m.drop()
	}
	if m.phase != holding {
		m.phase = done
	}
	if m.lease {
		m.late = 0
	}
}

// look changes the state by the clock (renew's tick).
func (m *sessionMount) look() {
	if m.noted == held && m.deadline == 0 {
		m.noted, m.sus = suspended, 0
		m.before = m.renewal != none
	}
}

// drop gives up the renewal that is under way.
func (m *sessionMount) drop() { m.renewal, m.age, m.before = none, 0, false }
