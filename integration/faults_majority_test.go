package integration

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stop kills two of the three members: there is no majority.
func (c *cluster) stop() (back func()) {
	c.t.Helper()
	leader, followers := c.leader()
	leader.kill()
	followers[0].kill()
	return func() {
		c.t.Helper()
		leader.start()
		followers[0].start()
		c.healthy()
	}
}

// The majority of etcd, or the API server, is away. Until the deadline of their mount's session
// programs write on; past it writes wait, and go on when it is back: without a
// leader no lease dies. One that stays away for longer than --suspend-wait costs
// the locks, and new ones are granted when it is back.
func TestMajorityLost(t *testing.T) { over(t, testMajorityLost, local, inLeases) }

func testMajorityLost(t *testing.T, on setup) {
	c := on.newService(t)
	t.Run("within the time to live", func(t *testing.T) {
		tr := newTrial(t, c, "--wait", "-1")
		tr.load(tr.mount("a"))
		tr.load(tr.mount("b"))
		tr.goesOn("before the fault")
		c.stop()()
		tr.goesOn("with it back")
		tr.finish()
		tr.spared()
	})
	t.Run("until writes wait", func(t *testing.T) {
		tr := newTrial(t, c, "--wait", "-1", "--ttl", "6s", "--suspend-wait", "60s")
		mounts := []*mount{tr.mount("a"), tr.mount("b")}
		for _, m := range mounts {
			tr.load(m)
		}
		tr.goesOn("before the fault")
		back := c.stop()
		for _, m := range mounts {
			eventually(t, m.name+" is suspended", m.isSuspended)
		}
		since := monotonic()
		for _, m := range mounts {
			eventually(t, "a write waits on "+m.name, func() bool { return tr.waitsToWrite(m) })
		}
		between(time.Second, 2*time.Second)
		for _, w := range tr.writers {
			for _, o := range w.history() {
				if o.Kind == wrote && o.Call > since && o.Return != 0 {
					t.Errorf("a write of a suspended session returned: %+v", o)
				}
			}
		}
		back()
		tr.goesOn("with it back")
		tr.finish()
		tr.spared()
	})
	t.Run("beyond", func(t *testing.T) {
		tr := newTrial(t, c, "--wait", "-1", "--ttl", shortTTL.String(), "--suspend-wait", "1s")
		mounts := []*mount{tr.mount("a"), tr.mount("b")}
		holders := make(map[*mount]*agent)
		fds := make(map[*mount]int)
		for _, m := range mounts {
			tr.load(m)
			holders[m] = newAgent(t)
			fds[m] = holders[m].open(m.path("held-on-"+m.name), wronly|create|appends)
			holders[m].must(call{Op: "write", FD: fds[m], Data: "x"})
		}
		tr.goesOn("before the fault")
		back := c.stop()
		began := time.Now()
		for m, holder := range holders {
			r := result{}
			eventually(t, "a write fails", func() bool {
				r = holder.do(call{Op: "write", FD: fds[m], Data: "x"})
				return r.Errno != 0
			})
			if r.Errno != unix.EIO {
				t.Errorf("write: %v, want EIO", r.Err())
			}
			t.Logf("on %s a write got EIO %v after that", m.name, time.Since(began).Round(100*time.Millisecond))
			other := newAgent(t)
			other.fails(call{Op: "open", Path: m.path("other"), Flags: wronly | create | nonblock}, unix.ENOLCK)
		}
		back()
		tr.goesOn("with it back")
		tr.finish()
	})
}

// waitsToWrite reports whether a program on a mount is in a write.
func (tr *trial) waitsToWrite(m *mount) bool {
	for _, w := range tr.writers {
		ops := w.history()
		if n := len(ops); w.mount == m.name && n > 0 && ops[n-1].Kind == wrote && ops[n-1].Return == 0 {
			return true
		}
	}
	return false
}
