package faults

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/history"
	"github.com/lockfs/lockfs/integration/lab"
)

// The majority of etcd, or the API server, is away. Until the deadline of their mount's session
// programs write on; past it writes wait, and go on when it is back: without a
// leader no lease dies. One that stays away for longer than --suspend-wait costs
// the locks, and new ones are granted when it is back.
func TestMajorityLost(t *testing.T) {
	lab.Over(t, testMajorityLost, lab.Local, lab.InLeases.Alone().ForLong())
}

func testMajorityLost(t *testing.T, on lab.Setup) {
	c := on.NewService(t)
	t.Run("within the time to live", func(t *testing.T) {
		tr := history.New(t, c, "--wait", "-1", "--suspend-wait", "10m")
		tr.Load(tr.Mount("a"))
		tr.Load(tr.Mount("b"))
		tr.GoesOn("before the fault")
		began := time.Now()
		c.Stop()()
		lasted := time.Since(began)
		tr.GoesOn("with it back")
		tr.Finish()
		tr.SparedBy(lasted)
	})
	t.Run("until writes wait", func(t *testing.T) {
		tr := history.New(t, c, "--wait", "-1", "--suspend-wait", "10m")
		mounts := []*lab.Mount{tr.Mount("a"), tr.Mount("b")}
		for _, m := range mounts {
			tr.Load(m)
		}
		tr.GoesOn("before the fault")
		back := c.Stop()
		for _, m := range mounts {
			lab.Eventually(t, m.Name+" is suspended", m.IsSuspended)
		}
		since := history.Monotonic()
		for _, m := range mounts {
			lab.Eventually(t, "a write waits on "+m.Name, func() bool { return waitsToWrite(tr, m) })
		}
		lab.Between(time.Second, 2*time.Second)
		for _, w := range tr.Writers {
			for _, o := range w.History() {
				if o.Kind == history.Wrote && o.Call > since && o.Return != 0 {
					t.Errorf("a write of a suspended session returned: %+v", o)
				}
			}
		}
		back()
		tr.GoesOn("with it back")
		tr.Finish()
		tr.Spared()
	})
	t.Run("beyond", func(t *testing.T) {
		tr := history.New(t, c, "--wait", "-1", "--ttl", lab.ShortTTL.String(), "--suspend-wait", "1s")
		mounts := []*lab.Mount{tr.Mount("a"), tr.Mount("b")}
		holders := make(map[*lab.Mount]*lab.Agent)
		fds := make(map[*lab.Mount]int)
		for _, m := range mounts {
			tr.Load(m)
			holders[m] = lab.NewAgent(t)
			fds[m] = holders[m].Open(m.Path("held-on-"+m.Name), unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND)
			holders[m].Must(lab.Call{Op: "write", FD: fds[m], Data: "x"})
		}
		tr.GoesOn("before the fault")
		back := c.Stop()
		began := time.Now()
		for m, holder := range holders {
			r := lab.Result{}
			lab.Eventually(t, "a write fails", func() bool {
				r = holder.Do(lab.Call{Op: "write", FD: fds[m], Data: "x"})
				return r.Errno != 0
			})
			if r.Errno != unix.EIO {
				t.Errorf("write: %v, want EIO", r.Err())
			}
			t.Logf("on %s a write got EIO %v after that", m.Name, time.Since(began).Round(100*time.Millisecond))
			other := lab.NewAgent(t)
			other.Fails(lab.Call{Op: "open", Path: m.Path("other"), Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_NONBLOCK}, unix.ENOLCK)
		}
		back()
		tr.GoesOn("with it back")
		tr.Finish()
	})
}

// waitsToWrite reports whether a program on a mount is in a write.
func waitsToWrite(tr *history.Trial, m *lab.Mount) bool {
	for _, w := range tr.Writers {
		ops := w.History()
		if n := len(ops); w.Mount == m.Name && n > 0 && ops[n-1].Kind == history.Wrote && ops[n-1].Return == 0 {
			return true
		}
	}
	return false
}

// Programs ask for the token of a file that is open, which asks etcd. Without a majority they can be
// killed, and nobody else waits for them. When it is back, the token is told.
func TestTokenWithoutAMajority(t *testing.T) {
	t.Parallel()
	c := lab.NewCluster(t)
	v := lab.NewVolume(t)
	m := v.Mount("a", c.Flag(c.Addresses()))
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	fd := p.Open(m.Path("f"), unix.O_CREAT|unix.O_WRONLY)
	back := c.Stop()
	asks := q.Start(lab.Call{Op: "getxattr", Path: m.Path("f"), Path2: "user.lockfs.token"})
	began := time.Now()
	for _, call := range []lab.Call{{Op: "write", FD: fd, Data: "x"}, {Op: "mode", Path: m.Path("f")}, {Op: "list", Path: m.Dir}} {
		p.Must(call)
	}
	q.Kill()
	if r, answered := <-asks; answered && r.Errno != unix.ENOLCK && time.Since(began) < 4*time.Second {
		t.Errorf("answered without a majority: %v", r.Err())
	}
	back()
	lab.Eventually(t, "the token is told", func() bool {
		return p.Do(lab.Call{Op: "getxattr", Path: lab.ProcFD(fd), Path2: "user.lockfs.token"}).Errno == 0
	})
	p.Must(lab.Call{Op: "close", FD: fd})
}
