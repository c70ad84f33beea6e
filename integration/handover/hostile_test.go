package handover

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/handover"
	"github.com/lockfs/lockfs/internal/longtest"
)

// isHandedOn is why a daemon refuses a second successor.
const isHandedOn = "it is being handed on to another daemon"

// asked has the mount offered to it, as soon as no former successor is in the way, the last one
// listens, and the machine is fast enough.
func asked(t *testing.T, m *lab.Mount) (p *handover.Peer) {
	t.Helper()
	lab.Eventually(t, "the mount is offered", func() bool {
		var why string
		if p, why = ask(t, m); p == nil && why != handover.ErrNone.Error() && !tooSlow.MatchString(why) {
			t.Fatal("refused: ", why)
		}
		return p != nil
	})
	return p
}

// ask connects to a daemon as a successor does that has all settings right, and asks for the mount.
// nil: it is refused, and why.
func ask(t *testing.T, m *lab.Mount) (_ *handover.Peer, why string) {
	t.Helper()
	settings := make(map[string]string)
	other := regexp.MustCompile(`^the new daemon has another (.*): "" instead of "(.*)"$`)
	for {
		p, err := handover.Dial(t.Context(), m.Vol.State, m.Dir)
		if errors.Is(err, handover.ErrNone) {
			return nil, err.Error()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		_, fds, err := p.Ask("of the test", settings)
		handover.CloseAll(fds)
		refused := new(handover.RefusedError)
		if err == nil {
			return p, ""
		}
		if !errors.As(err, &refused) {
			return nil, err.Error() // the daemon may have been too slow
		}
		match := other.FindStringSubmatch(refused.Why)
		if match == nil {
			return nil, refused.Why
		}
		settings[match[1]] = match[2]
	}
}

// refused starts a successor that must end, and say why. One that was too slow for that is started again.
func refused(t *testing.T, m *lab.Mount, why string, args ...string) {
	t.Helper()
	start := func() *lab.Mount { return m.Vol.Start(m.Name, append([]string{"--take-over"}, args...)...) }
	next := start()
	lab.Eventually(t, "the new daemon ends", func() bool {
		if ended(next) && tooSlow.MatchString(next.Log.String()) {
			next = start()
		}
		return ended(next)
	})
	if log := next.Log.String(); next.Cmd.ProcessState.ExitCode() != 1 || !strings.Contains(log, why) {
		t.Errorf("exit status %d, want 1 and %q: %s", next.Cmd.ProcessState.ExitCode(), why, log)
	}
}

// A program that waits in line and is killed while its view is paused ends, and so does its place.
func TestWaiterIsKilledInThePause(t *testing.T) {
	lab.Over(t, testWaiterIsKilledInThePause, lab.Local, lab.InLeases.ForLong())
}

func testWaiterIsKilledInThePause(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "-1")
	v.Write("f", "")
	a, b := v.Mount("a"), v.Mount("b")
	holder, waiter := lab.NewAgent(t), lab.NewAgent(t)
	held := holder.Open(b.Path("f"), unix.O_WRONLY)
	waiter.Start(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY})
	v.WaitFor("f")
	p := asked(t, a)
	waiter.Signal()
	_ = waiter.Cmd.Process.Kill()
	newcomer := lab.NewAgent(t)
	opens := newcomer.Start(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY})
	p.Close()
	waiter.Kill()
	lab.Eventually(t, "the newcomer waits alone", func() bool {
		var waits []lab.Entry
		for _, e := range v.LS() {
			if e.State == "waiting" {
				waits = append(waits, e)
			}
		}
		return len(waits) == 1 && waits[0].PID == newcomer.PID()
	})
	newcomer.Kill()
	<-opens
	lab.Eventually(t, "nobody waits", func() bool { return v.Waiting("f") == 0 })
	holder.Must(lab.Call{Op: "close", FD: held})
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}

// Who takes a mount, and dies, or says nothing, or nonsense, costs its programs a pause. Two do not
// get it.
func TestHostileSuccessors(t *testing.T) {
	lab.Over(t, testHostileSuccessors, lab.Local, lab.InLeases.ForLong())
}

func testHostileSuccessors(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	v.Write("log", "")
	a, b := v.Mount("a"), v.Mount("b")
	p, other := lab.NewAgent(t), lab.NewAgent(t)
	log := p.Open(a.Path("log"), unix.O_WRONLY|unix.O_APPEND)
	want := ""
	works := func(what string) {
		t.Helper()
		p.Must(lab.Call{Op: "write", FD: log, Data: what + "\n"})
		other.Fails(lab.Call{Op: "open", Path: b.Path("log"), Flags: unix.O_WRONLY | unix.O_NONBLOCK}, unix.EAGAIN)
		want += what + "\n"
	}
	for range 10 {
		asked(t, a).Close()
		works("closed")
	}
	lab.Eventually(t, "a second is refused beside a silent one", func() bool {
		silent := asked(t, a) // which has only a while: the second may come late
		defer silent.Close()
		second, why := ask(t, a)
		if second != nil {
			second.Close()
		}
		return why == isHandedOn
	})
	works("silent")
	sockets, err := filepath.Glob(filepath.Join(v.State, "handover", "*"))
	if err != nil || len(sockets) != 2 {
		t.Fatalf("the sockets are %q, %v", sockets, err)
	}
	for _, socket := range sockets {
		for _, bytes := range []string{"", "\x00", "\x00\x00\x00\x08garbage!", "\x3f\xff\xff\xffx", strings.Repeat("GET / HTTP/1.1\r\n", 1000)} {
			c, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = c.Write([]byte(bytes))
			defer c.Close() // a silent one stays
			works(fmt.Sprintf("%q", bytes[:min(len(bytes), 8)]))
		}
	}
	// Both at once: one is refused, or finds the mount handed on.
	one, two := v.Start("a", "--take-over"), v.Start("a", "--take-over")
	lab.Eventually(t, "two of three daemons end", func() bool {
		if !ended(a) && ended(one) && ended(two) && tooSlow.MatchString(one.Log.String()+two.Log.String()) {
			one, two = v.Start("a", "--take-over"), v.Start("a", "--take-over")
		}
		return ended(a) && (ended(one) || ended(two) || one.Said("took") && two.Said("took"))
	})
	v.AwaitTakeover()
	works("two successors")
	if got := v.Read("log"); got != want {
		t.Errorf("the log is %q, want %q", got, want)
	}
	p.Must(lab.Call{Op: "close", FD: log})
}

// A successor that has too few descriptors, or no room for its files, leaves the mount to the old
// daemon, or serves it.
func TestSuccessorWithoutRoom(t *testing.T) {
	lab.Over(t, testSuccessorWithoutRoom, lab.Local, lab.InLeases.ForLong())
}

func testSuccessorWithoutRoom(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	p := lab.NewAgent(t)
	const n = 1000
	var fds []int
	for i := range n {
		name := fmt.Sprint("f", i)
		v.Write(name, "")
		fds = append(fds, p.Open(a.Path(name), unix.O_WRONLY|unix.O_APPEND))
	}
	v.Via = []string{"setpriv", "--bounding-set", "-sys_resource", "--inh-caps", "-sys_resource", "sh", "-c", `ulimit -n 600; exec "$0" "$@"`}
	refused(t, a, "too few descriptors are free")
	v.Via = nil
	sockets := filepath.Join(v.State, "handover")
	lab.Run(t, "chattr", "+i", sockets) // nobody makes a file there, as on a full disk
	defer lab.Run(t, "chattr", "-i", sockets)
	a = upgrade(t, a)
	lab.Eventually(t, "the new daemon says that it cannot be upgraded", func() bool {
		return a.Said("an upgrade will not be able to take this mount over")
	})
	for i, fd := range fds {
		p.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
		if i%100 == 0 {
			lab.NewAgent(t).Fails(lab.Call{Op: "open", Path: b.Path(fmt.Sprint("f", i)), Flags: unix.O_WRONLY | unix.O_NONBLOCK}, unix.EAGAIN)
		}
		p.Must(lab.Call{Op: "close", FD: fd})
	}
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}

// A daemon that has no descriptor left when a pause is over ends, and gives its locks back.
func TestNoDescriptorAfterAPause(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	v.Write("f", "")
	b := v.Mount("b") // which serves etcd
	a := v.Mount("a")
	holder, other := lab.NewAgent(t), lab.NewAgent(t)
	held := holder.Open(a.Path("f"), unix.O_WRONLY)
	limit := func(descriptors uint64) {
		t.Helper()
		if err := unix.Prlimit(a.Cmd.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: descriptors, Max: 4096}, nil); err != nil {
			t.Fatal(err)
		}
	}
	pauses := func() int { return strings.Count(a.Log.String(), "the mount was not taken over") }
	lab.Eventually(t, "the daemon says why it ends", func() bool {
		if a.Said("the view cannot go on") {
			return true
		}
		limit(4096) // the test was too slow, and the daemon went on
		before := pauses()
		p, _ := ask(t, a)
		if p == nil {
			return false
		}
		limit(3)
		p.Close()
		lab.Eventually(t, "the pause is over", func() bool { return pauses() > before })
		return a.Said("the view cannot go on")
	})
	lab.Eventually(t, "the daemon ends", func() bool { return ended(a) })
	if status := a.Cmd.ProcessState.ExitCode(); status != 1 {
		t.Errorf("exit status %d, want 1", status)
	}
	if r := holder.Do(lab.Call{Op: "write", FD: held, Data: "x"}); r.Errno != unix.ENOTCONN && r.Errno != unix.ECONNABORTED {
		t.Errorf("a file that was open: %v, want ENOTCONN", r.Err())
	}
	theirs := other.Open(b.Path("f"), unix.O_WRONLY)
	other.Must(lab.Call{Op: "close", FD: theirs})
}

// Hundreds of programs wait, a directory is half read, and the daemon is upgraded.
func TestUpgradeWithACrowd(t *testing.T) {
	lab.Over(t, testUpgradeWithACrowd, lab.Local, lab.InLeases.ForLong())
}

func testUpgradeWithACrowd(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "-1", "--scope", "handle")
	v.Write("f", "")
	if err := os.Mkdir(v.InSource("d"), 0o755); err != nil {
		t.Fatal(err)
	}
	n := 200
	if longtest.For(t) > 0 {
		n = 1000
	}
	for i := range 3 * n {
		v.Write(fmt.Sprint("d/", i), "")
	}
	a, b := v.Mount("a"), v.Mount("b")
	holder, crowd, dying := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	held := holder.Open(b.Path("f"), unix.O_WRONLY)
	wait := lab.Call{Op: "open and close", Path: a.Path("f"), Flags: unix.O_WRONLY | unix.O_APPEND}
	crowd.Must(lab.Call{Op: "flood", N: n / 2, Calls: []lab.Call{wait}})
	dying.Must(lab.Call{Op: "flood", N: n / 2, Calls: []lab.Call{wait}})
	lab.Eventually(t, "all wait", func() bool {
		return threadsWithin(t, crowd.PID(), unix.SYS_OPENAT)+threadsWithin(t, dying.PID(), unix.SYS_OPENAT) == n
	})
	dir, err := os.Open(a.Path("d"))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(100)
	if err != nil {
		t.Fatal(err)
	}
	a = upgrade(t, a)
	next := v.Start("a", "--take-over")
	_ = dying.Cmd.Process.Kill()
	lab.Eventually(t, "the old daemon ends", func() bool { return ended(a) || ended(next) })
	dying.Kill()
	rest, err := dir.Readdirnames(-1)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]int)
	for _, name := range append(names, rest...) {
		seen[name]++
	}
	if len(seen) != 3*n || len(names)+len(rest) != 3*n {
		t.Errorf("%d names, of which %d are different, want %d", len(names)+len(rest), len(seen), 3*n)
	}
	holder.Must(lab.Call{Op: "close", FD: held})
	r := crowd.Do(lab.Call{Op: "flooded"})
	delete(r.Failed, "EDEADLK") // a thread has met another one of its process, as without upgrades
	if r.N != n/2 || len(r.Failed) > 0 {
		t.Errorf("%d opens, of which failed: %v", r.N, r.Failed)
	}
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}

// threadsWithin counts a process's threads that are in a system call.
func threadsWithin(t *testing.T, pid, number int) (n int) {
	t.Helper()
	found, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range found {
		if b, _ := os.ReadFile(name); strings.HasPrefix(string(b), fmt.Sprint(number, " ")) {
			n++
		}
	}
	return n
}

// A crowd waits while successors come and give up, and programs of it are killed in the pauses: none
// of its requests is lost, and nothing stays locked.
func TestCrowdOutlivesFailedPauses(t *testing.T) {
	lab.Over(t, testCrowdOutlivesFailedPauses, lab.Local.ForLong(), lab.InLeases.ForLong())
}

func testCrowdOutlivesFailedPauses(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "-1", "--scope", "handle")
	v.Write("f", "")
	a, b := v.Mount("a"), v.Mount("b")
	holder, crowd := lab.NewAgent(t), lab.NewAgent(t)
	held := holder.Open(b.Path("f"), unix.O_WRONLY)
	const n = 200
	wait := lab.Call{Op: "open and close", Path: a.Path("f"), Flags: unix.O_WRONLY | unix.O_APPEND}
	crowd.Must(lab.Call{Op: "flood", N: n, Calls: []lab.Call{wait}})
	for range 10 {
		dying := lab.NewAgent(t)
		dying.Must(lab.Call{Op: "flood", N: n, Calls: []lab.Call{wait}})
		asked(t, a).Close() // some come while the view is paused, or about to be
		lab.Eventually(t, "all wait", func() bool {
			return threadsWithin(t, crowd.PID(), unix.SYS_OPENAT)+threadsWithin(t, dying.PID(), unix.SYS_OPENAT) == 2*n
		})
		p := asked(t, a)
		_ = dying.Cmd.Process.Kill() // while it is paused
		p.Close()
		dying.Kill()
	}
	holder.Must(lab.Call{Op: "close", FD: held})
	r := crowd.Do(lab.Call{Op: "flooded"})
	delete(r.Failed, "EDEADLK") // a thread has met another one of its process, as without upgrades
	if r.N != n || len(r.Failed) > 0 {
		t.Errorf("%d opens, of which failed: %v", r.N, r.Failed)
	}
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}
