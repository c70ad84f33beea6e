package integration

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Each fault meets programs at work on several mounts. None of them writes in
// another's time, whatever happens (the history is checked), and all of them go
// on when it is over. docs/FAULTS.md says what they see meanwhile.

// load has programs at work on a mount: two on the files that all have, and one
// on a file of its own.
func (tr *trial) load(m *mount) {
	tr.t.Helper()
	tr.work(m, 2)
	tr.stay(m)
}

// spared fails the test if a call on an open file failed: no lock was lost.
func (tr *trial) spared() {
	tr.t.Helper()
	for _, w := range tr.writers {
		for _, o := range w.history() {
			if o.Errno != 0 && (o.Kind == wrote || o.Kind == cut || o.Kind == closed) {
				tr.t.Errorf("a lock was lost: %s of %s got %v", o.Kind, o.Hold, o.Errno)
			}
		}
	}
}

// waitedOut fails the test if a call that waits, a creation or a rename, was told
// that the lock service does not answer before the outage can have been 5 s old.
func (tr *trial) waitedOut(began int64) {
	tr.t.Helper()
	for _, w := range tr.writers {
		for _, o := range w.history() {
			if after := time.Duration(o.Return - began); !o.Try && o.Errno == unix.ENOLCK && after > 0 && after < 5*time.Second {
				tr.t.Errorf("%s of %s got %v, %v after the fault", o.Kind, o.Hold, o.Errno, after)
			}
		}
	}
}

// saw returns when some program had a call return since that matches.
func (tr *trial) saw(since int64, what string, match func(op) bool) {
	tr.t.Helper()
	eventually(tr.t, what, func() bool {
		for _, w := range tr.writers {
			for _, o := range w.history() {
				if o.Return > since && match(o) {
					return true
				}
			}
		}
		return false
	})
}

func (m *mount) said(message string) bool { return strings.Contains(m.log.String(), `msg="`+message) }

func (m *mount) isSuspended() bool { return m.said("lock session suspended") }

// between waits for a while that chance decides: as long as a fault lasts.
func between(least, most time.Duration) { time.Sleep(least + rand.N(most-least)) }

func (c *cluster) outages() map[string]func(func(string)) {
	return map[string]func(func(string)){
		"leader killed": func(goesOn func(string)) {
			leader, _ := c.leader()
			leader.kill()
			goesOn("without the old leader")
			leader.start()
			c.healthy()
		},
		"leader moved": func(goesOn func(string)) {
			for range 3 {
				c.moveLeader()
				goesOn("with another leader")
			}
		},
		"leader paused": func(goesOn func(string)) {
			leader, _ := c.leader()
			leader.freeze()
			defer leader.thaw()
			goesOn("without the leader")
		},
		"follower paused": func(goesOn func(string)) {
			_, followers := c.leader()
			followers[0].freeze()
			defer followers[0].thaw()
			goesOn("without one follower")
		},
		"all restarted": func(goesOn func(string)) {
			for _, m := range c.members {
				m.kill()
			}
			between(100*time.Millisecond, 500*time.Millisecond)
			for _, m := range c.members {
				m.start()
			}
			c.healthy()
		},
		"compacted and defragmented": func(goesOn func(string)) {
			for range 3 {
				c.compact()
				c.defragment()
			}
		},
	}
}

// A short outage costs programs a pause, and no lock. (docs/SEMANTICS.md, rule 11.)
func TestShortOutages(t *testing.T) { over(t, testShortOutages, local, inLeases) }

func testShortOutages(t *testing.T, on setup) {
	c := on.newService(t)
	for name, outage := range c.outages() {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(t, c, "--wait", "-1")
			tr.load(tr.mount("a"))
			tr.load(tr.mount("b"))
			tr.goesOn("before the fault")
			began := monotonic()
			outage(tr.goesOn)
			tr.goesOn("after the fault")
			tr.finish()
			tr.spared()
			tr.waitedOut(began)
		})
	}
}
