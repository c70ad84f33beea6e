package handover

import (
	"context"
	"fmt"
	"iter"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
)

// flockKinds are the calls that wait for a lock, and what ends one.
var flockKinds = map[string]struct{ take, give lab.Call }{
	"flock": {lab.Call{Op: "flock", Flags: unix.LOCK_EX}, lab.Call{Op: "flock", Flags: unix.LOCK_UN}},
	"posix": {lab.Call{Op: "setlkw", Flags: unix.F_WRLCK, N: 5}, lab.Call{Op: "setlk", Flags: unix.F_UNLCK, N: 5}},
	"ofd":   {lab.Call{Op: "ofd setlkw", Flags: unix.F_WRLCK, N: 5}, lab.Call{Op: "ofd setlk", Flags: unix.F_UNLCK, N: 5}},
}

func newFlocks(t *testing.T, on lab.Setup, flags ...string) *lab.Volume {
	return on.NewVolume(t, append(flags, "--flock", "cluster", "--rule", "** nolock", "--sync", "close")...)
}

// of returns a call of a descriptor.
func of(fd int, c lab.Call) lab.Call {
	c.FD = fd
	return c
}

// waitsWithin starts a call that has to wait.
func waitsWithin(t *testing.T, p *lab.Agent, c lab.Call) <-chan lab.Result {
	t.Helper()
	number := unix.SYS_FCNTL
	if strings.HasPrefix(c.Op, "flock") {
		number = unix.SYS_FLOCK
	}
	pending := p.Start(c)
	lab.Eventually(t, "a program waits", func() bool { return p.Within(number) })
	return pending
}

// Who waits for a flock or an fcntl lock keeps the place, on the own mount and among all, when daemons
// are upgraded, and when upgrades are given up. (docs/SEMANTICS.md, rule 27.)
func TestUpgradeKeepsFlockWaiters(t *testing.T) {
	lab.Over(t, testUpgradeKeepsFlockWaiters, lab.Local)
}

func testUpgradeKeepsFlockWaiters(t *testing.T, on lab.Setup) {
	v := newFlocks(t, on)
	watched := map[string]*lab.Watched{"a": v.MountWatched("a"), "b": v.MountWatched("b")}
	mounts, waiting := map[string]*lab.Mount{"a": watched["a"].Mount, "b": watched["b"].Mount}, map[string]float64{}
	type line struct {
		name    string
		holder  *lab.Agent
		held    int
		give    lab.Call
		waiters []*lab.Agent
		fds     []int
		pending []<-chan lab.Result
	}
	var lines []*line
	for kind, calls := range flockKinds {
		for name, who := range map[string]string{"private": "aaa", "shared": "baba"} { // the holder is the first
			l := &line{name: kind + " " + name, give: calls.give}
			v.Write(l.name, "")
			for i, m := range who {
				p := lab.NewAgent(t)
				fd := p.Open(mounts[string(m)].Path(l.name), unix.O_RDWR)
				if i == 0 {
					p.Must(of(fd, calls.take))
					l.holder, l.held = p, fd
					continue
				}
				l.waiters, l.fds = append(l.waiters, p), append(l.fds, fd)
				l.pending = append(l.pending, waitsWithin(t, p, of(fd, calls.take)))
				waiting[string(m)]++
				watched[string(m)].Has(waiting[string(m)], "lockfs_advisory_requests_waiting") // ahead of the next
				if name == "shared" && i == 1 {
					lab.Eventually(t, "the first stands in line", func() bool { return inLine(v, p) })
				}
			}
			lines = append(lines, l)
		}
	}
	for i := range 3 {
		mounts["a"] = upgrade(t, mounts["a"])
		asked(t, mounts["a"]).Close()
		if i == 1 {
			mounts["b"] = upgrade(t, mounts["b"])
		}
		asked(t, mounts["b"]).Close()
		asked(t, mounts["a"]).Close()
	}
	for _, l := range lines {
		l.holder.Must(of(l.held, l.give))
		for i, pending := range l.pending {
			if r := lab.Await(t, l.name, pending); r.Errno != 0 {
				t.Errorf("%s: waiter %d: %v", l.name, i, r.Err())
			}
			for j, behind := range l.pending[i+1:] {
				select {
				case r := <-behind:
					t.Fatalf("%s: waiter %d before it is its turn: %v", l.name, i+1+j, r.Err())
				default:
				}
			}
			l.waiters[i].Must(of(l.fds[i], l.give))
		}
	}
	for _, l := range lines {
		for _, p := range append(l.waiters, l.holder) {
			p.Kill()
		}
	}
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}

// inLine reports whether a program stands in line in the lock service.
func inLine(v *lab.Volume, p *lab.Agent) bool {
	for _, e := range v.LS() {
		if e.State == "waiting" && e.PID == p.PID() {
			return true
		}
	}
	return false
}

// Who waits for a flock or an fcntl lock when its daemon dies waits on, and gets it. Who is killed
// meanwhile leaves nothing.
func TestFlockWaitersOutliveADeath(t *testing.T) {
	lab.Over(t, func(t *testing.T, on lab.Setup) {
		v := newFlocks(t, on, "--supervise", "--ttl", patientTTL)
		a, b := lab.Supervise(v.Mount("a")), v.Mount("b")
		for kind, calls := range flockKinds {
			v.Write(kind, "")
			holder := lab.NewAgent(t)
			held := holder.Open(b.Path(kind), unix.O_RDWR)
			holder.Must(of(held, calls.take))
			var waiters []*lab.Agent
			var fds []int
			var pending []<-chan lab.Result
			for range 3 { // the last is killed
				p := lab.NewAgent(t)
				waiters, fds = append(waiters, p), append(fds, p.Open(a.Path(kind), unix.O_RDWR))
				pending = append(pending, waitsWithin(t, p, of(fds[len(fds)-1], calls.take)))
			}
			lab.Eventually(t, "one stands in line", func() bool { return len(v.LS()) == 2 })
			a.KillWorker()
			waiters[2].Kill()
			holder.Must(of(held, calls.give))
			for range 2 { // in any order: places are lost
				var r lab.Result
				i := 0
				select {
				case r = <-pending[0]:
				case r = <-pending[1]:
					i = 1
				case <-time.After(lab.CallTimeout):
					t.Fatalf("%s: nobody gets it", kind)
				}
				if r.Errno != 0 {
					t.Errorf("%s: waiter %d: %v", kind, i, r.Err())
				}
				pending[i] = nil
				waiters[i].Must(of(fds[i], calls.give))
			}
			for _, p := range []*lab.Agent{holder, waiters[0], waiters[1]} {
				p.Kill()
			}
			lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
		}
	}, lab.Local, lab.InLeases.ForLong())
}

// The locks of a mount whose lease ends before its next daemon comes are lost: EIO, and others get
// them.
func TestFlockOfALeaseThatEndsIsLost(t *testing.T) {
	lab.Over(t, func(t *testing.T, on lab.Setup) {
		lab.InTries(t, func() bool {
			v := newFlocks(t, on, "--supervise", "--ttl", lab.ShortTTL.String())
			b := v.Mount("b", "--ttl", "5m") // which serves etcd, and loses nothing
			a := lab.Supervise(v.Mount("a"))
			v.Write("f", "0123456789")
			p, other := lab.NewAgent(t), lab.NewAgent(t)
			fd := p.Open(a.Path("f"), unix.O_RDWR)
			p.Must(of(fd, flockKinds["posix"].take))
			theirs := other.Open(b.Path("f"), unix.O_RDWR)
			pending := other.Start(of(theirs, flockKinds["posix"].take))
			if !a.Keeps(pending, func() bool { return other.Within(unix.SYS_FCNTL) }) {
				return false
			}
			a.BecomesSteady()
			a.Dies(func() { // and nobody notices for longer than the lease
				if err := unix.Kill(a.Cmd.Process.Pid, unix.SIGSTOP); err != nil {
					t.Fatal(err)
				}
				if err := unix.Kill(a.Serving(), unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
				if r := lab.Await(t, "the other mount", pending); r.Errno != 0 {
					t.Errorf("the other mount: %v", r.Err())
				}
				if err := unix.Kill(a.Cmd.Process.Pid, unix.SIGCONT); err != nil {
					t.Fatal(err)
				}
			})
			p.Fails(lab.Call{Op: "pwrite", FD: fd, Off: 1, Data: "x"}, unix.EIO)
			other.Must(lab.Call{Op: "pwrite", FD: theirs, Off: 2, Data: "y"})
			if got := v.Read("f"); got != "01y3456789" {
				t.Errorf("the file has %q", got)
			}
			a.KillWorker() // what is lost stays so, over a death and an upgrade
			upgrade(t, a.Mount)
			p.Fails(lab.Call{Op: "pwrite", FD: fd, Off: 1, Data: "x"}, unix.EIO)
			return true
		})
	}, lab.Local, lab.InLeases.ForLong())
}

// A program that waits for a flock or an fcntl lock and is killed in a pause ends, and so does its
// place.
func TestFlockWaiterIsKilledInThePause(t *testing.T) {
	lab.Over(t, testFlockWaiterIsKilledInThePause, lab.Local, lab.InLeases.ForLong())
}

func testFlockWaiterIsKilledInThePause(t *testing.T, on lab.Setup) {
	v := newFlocks(t, on)
	v.Write("f", "")
	a, b := v.Mount("a"), v.Mount("b")
	for _, calls := range flockKinds {
		holder, first, second := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
		held := holder.Open(b.Path("f"), unix.O_RDWR)
		holder.Must(of(held, calls.take))
		for _, p := range []*lab.Agent{first, second} {
			waitsWithin(t, p, of(p.Open(a.Path("f"), unix.O_RDWR), calls.take))
		}
		lab.Eventually(t, "one stands in line", func() bool { return len(v.LS()) == 2 })
		p := asked(t, a)
		_ = first.Cmd.Process.Kill()
		_ = second.Cmd.Process.Kill()
		p.Close()
		first.Kill()
		second.Kill()
		lab.Eventually(t, "only the holder is left", func() bool { return len(v.LS()) == 1 })
		a = upgrade(t, a)
		holder.Must(of(held, calls.give))
		holder.Kill()
	}
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}

// A program that waits for a flock is interrupted by a signal, at any instant of an upgrade.
func TestFlockWaiterIsInterruptedInAnUpgrade(t *testing.T) {
	lab.Over(t, testFlockWaiterIsInterruptedInAnUpgrade, lab.Local, lab.InLeases.ForLong())
}

func testFlockWaiterIsInterruptedInAnUpgrade(t *testing.T, on lab.Setup) {
	v := newFlocks(t, on)
	v.Write("f", "")
	a, b := v.Mount("a"), v.Mount("b")
	holder := lab.NewAgent(t)
	held := holder.Open(b.Path("f"), unix.O_RDWR)
	holder.Must(of(held, flockKinds["flock"].take))
	const n = 30
	ends := make(chan error, n)
	ctx, cancel := context.WithTimeout(t.Context(), lab.CallTimeout)
	defer cancel()
	for i := range n {
		// A program is interrupted by its timer, unless that ends ahead of the call.
		path, timer := a.Path("f"), fmt.Sprint(2.5+float64(i)/20)
		go func() {
			out, err := exec.CommandContext(ctx, "flock", "-w", timer, path, "true").CombinedOutput()
			if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 1 {
				err = fmt.Errorf("%v: %s; want exit status 1", err, out)
			} else {
				err = nil
			}
			ends <- err
		}()
	}
	lab.Eventually(t, "one stands in line, or was seen by nobody", func() bool { return len(v.LS()) == 2 || len(ends) == n })
	for left := n; left > 0; {
		a = upgrade(t, a)
		asked(t, a).Close()
		for more := true; more && left > 0; {
			select {
			case err := <-ends:
				if left--; err != nil {
					t.Error(err)
				}
			case <-ctx.Done():
				t.Fatalf("%d programs are not interrupted", left)
			default:
				more = false
			}
		}
	}
	lab.Eventually(t, "only the holder is left", func() bool { return len(v.LS()) == 1 })
	holder.Must(of(held, flockKinds["flock"].give))
	holder.Kill()
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}

// A circle of waits that is closed after an upgrade is found: EDEADLK for one, and the other goes on.
func TestFlockDeadlockOverAnUpgrade(t *testing.T) {
	lab.Over(t, testFlockDeadlockOverAnUpgrade, lab.Local, lab.InLeases.ForLong())
}

func testFlockDeadlockOverAnUpgrade(t *testing.T, on lab.Setup) {
	v := newFlocks(t, on)
	v.Write("f", "")
	v.Write("g", "")
	mounts := []*lab.Mount{v.Mount("a"), v.Mount("b")}
	for _, both := range [][2]int{{0, 1}, {0, 0}} { // on two mounts, and on one
		one, two := lab.NewAgent(t), lab.NewAgent(t)
		lock := func(p *lab.Agent, mount int, name string) lab.Call {
			return of(p.Open(mounts[mount].Path(name), unix.O_RDWR), flockKinds["posix"].take)
		}
		f1, g1 := lock(one, both[0], "f"), lock(one, both[0], "g")
		f2, g2 := lock(two, both[1], "f"), lock(two, both[1], "g")
		one.Must(f1)
		two.Must(g2)
		pending := waitsWithin(t, one, g1)
		mounts[0] = upgrade(t, mounts[0])
		told, has, goesOn := two, g2, pending
		var r lab.Result
		closes := two.Start(f2)
		select {
		case r = <-closes:
		case r = <-pending: // its table was this mount's own, and was published after the other's
			told, has, goesOn = one, f1, closes
		case <-time.After(lab.CallTimeout):
			t.Fatal("nobody is told of the circle")
		}
		if r.Errno != unix.EDEADLK {
			t.Errorf("one is told %v", r.Err())
		}
		told.Must(of(has.FD, flockKinds["posix"].give))
		if r := lab.Await(t, "the other", goesOn); r.Errno != 0 {
			t.Errorf("the other: %v", r.Err())
		}
		one.Kill()
		two.Kill()
	}
}

// Hundreds of programs wait for a flock while upgrades succeed and are given up, and half of them are
// killed.
func TestUpgradeWithAFlockCrowd(t *testing.T) {
	lab.Over(t, testUpgradeWithAFlockCrowd, lab.Local)
}

func testUpgradeWithAFlockCrowd(t *testing.T, on lab.Setup) {
	v := newFlocks(t, on)
	v.Write("f", "")
	a, b := v.Mount("a"), v.Mount("b")
	holder, crowd, dying := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	held := holder.Open(b.Path("f"), unix.O_RDWR)
	holder.Must(of(held, flockKinds["flock"].take))
	const n = 100
	wait := lab.Call{Op: "flock and close", Path: a.Path("f"), Flags: unix.LOCK_EX}
	crowd.Must(lab.Call{Op: "flood", N: n, Calls: []lab.Call{wait}})
	dying.Must(lab.Call{Op: "flood", N: n, Calls: []lab.Call{wait}})
	all := func() bool {
		return threadsWithin(t, crowd.PID(), unix.SYS_FLOCK)+threadsWithin(t, dying.PID(), unix.SYS_FLOCK) == 2*n
	}
	lab.Eventually(t, "all wait", all)
	asked(t, a).Close()
	a = upgrade(t, a)
	asked(t, a).Close()
	lab.Eventually(t, "all wait again", all)
	next := v.Start("a", "--take-over")
	_ = dying.Cmd.Process.Kill()
	lab.Eventually(t, "the old daemon ends", func() bool { return ended(a) || ended(next) })
	dying.Kill()
	holder.Must(of(held, flockKinds["flock"].give))
	r := crowd.Do(lab.Call{Op: "flooded"})
	if r.N != n || len(r.Failed) > 0 {
		t.Errorf("%d locks, of which failed: %v", r.N, r.Failed)
	}
	holder.Kill()
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}

// A counter that programs of two mounts count in under their locks loses nothing while both daemons
// are upgraded, and no call fails.
func TestFlockCounterDuringUpgrades(t *testing.T) {
	lab.Over(t, func(t *testing.T, on lab.Setup) {
		countsUnderFlocks(t, newFlocks(t, on), longtest.Seeds(t, 2, 6), func(m *lab.Mount) *lab.Mount { return upgrade(t, m) })
	}, lab.Local, lab.InLeases.ForLong())
}

// So it is when the daemons die.
func TestFlockCounterDuringDeaths(t *testing.T) {
	lab.Over(t, func(t *testing.T, on lab.Setup) {
		countsUnderFlocks(t, newFlocks(t, on, "--supervise", "--ttl", patientTTL), longtest.Seeds(t, 2, 40), succeed(t))
	}, lab.Local, lab.InLeases.ForLong())
}

func countsUnderFlocks(t *testing.T, v *lab.Volume, times iter.Seq[uint64], next func(*lab.Mount) *lab.Mount) {
	mounts := []*lab.Mount{v.Mount("a"), v.Mount("b")}
	stop := make(chan struct{})
	counted := make(map[string]chan int)
	for kind := range flockKinds {
		for _, where := range []string{"both", "one"} { // what one mount uses is private to it
			name := kind + " " + where
			v.Write(name, fmt.Sprintf("%010d", 0))
			counted[name] = make(chan int, 2)
			for i := range 2 {
				m := mounts[0]
				if where == "both" {
					m = mounts[i]
				}
				p := lab.NewAgent(t)
				fd := p.Open(m.Path(name), unix.O_RDWR)
				go func() {
					n := 0
					defer func() { counted[name] <- n }() // also if a call hangs: that ends the goroutine
					n = count(t, p, fd, kind, stop)
				}()
			}
		}
	}
	for i := range times {
		mounts[i%2] = next(mounts[i%2])
	}
	close(stop)
	for name, ch := range counted {
		want := <-ch + <-ch
		if got := v.Read(name); got != fmt.Sprintf("%010d", want) {
			t.Errorf("%s: counted to %s, want %d", name, got, want)
		}
		t.Log(name, want)
	}
}

func count(t *testing.T, p *lab.Agent, fd int, kind string, stop <-chan struct{}) (n int) {
	calls := flockKinds[kind]
	for {
		select {
		case <-stop:
			return n
		default:
		}
		if r := p.Do(of(fd, calls.take)); r.Errno != 0 {
			t.Errorf("%s: lock: %v", kind, r.Err())
			return n
		}
		r := p.Do(lab.Call{Op: "pread", FD: fd, N: 10})
		was, err := strconv.Atoi(r.Data)
		if err != nil {
			t.Errorf("%s: %v, %v", kind, r.Err(), err)
			return n
		}
		p.Do(lab.Call{Op: "pwrite", FD: fd, Data: fmt.Sprintf("%010d", was+1)})
		if r := p.Do(of(fd, calls.give)); r.Errno != 0 {
			t.Errorf("%s: unlock: %v", kind, r.Err())
			return n
		}
		n++
	}
}
