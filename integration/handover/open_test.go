package handover

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// What a program has open, mapped, removed or made its working directory goes on, with its lock.
// (docs/SEMANTICS.md, rule 27.)
func TestUpgradeKeepsWhatIsOpen(t *testing.T) {
	lab.Over(t, testUpgradeKeepsWhatIsOpen, lab.Local, lab.InLeases)
}

func testUpgradeKeepsWhatIsOpen(t *testing.T, on lab.Setup) {
	keepsWhatIsOpen(t, on.NewVolume(t), func(m *lab.Mount) *lab.Mount { return upgrade(t, m) })
}

// keepsWhatIsOpen has the daemons of two mounts replaced, again and again.
func keepsWhatIsOpen(t *testing.T, v *lab.Volume, replace func(*lab.Mount) *lab.Mount) {
	t.Helper()
	v.Write("f", strings.Repeat("-", 8192))
	v.Write("log", "")
	v.Write("removed", "still here")
	if err := os.MkdirAll(v.InSource("d/e"), 0o755); err != nil {
		t.Fatal(err)
	}
	a, b := v.Mount("a"), v.Mount("b")
	p, other := lab.NewAgent(t), lab.NewAgent(t)
	mapped := p.Open(a.Path("f"), unix.O_RDWR)
	p.Must(lab.Call{Op: "mmap", FD: mapped, N: 8192})
	log := p.Open(a.Path("log"), unix.O_WRONLY|unix.O_APPEND)
	removed := p.Open(a.Path("removed"), unix.O_RDONLY)
	p.Must(lab.Call{Op: "unlink", Path: a.Path("removed")})
	p.Must(lab.Call{Op: "chdir", Path: a.Path("d/e")})
	token := p.Token(log)
	want := ""
	for i := range 3 {
		p.Must(lab.Call{Op: "store", FD: mapped, Off: int64(4096 + i), Data: "m"})
		if a = replace(a); i == 1 {
			b = replace(b)
		}
		p.Must(lab.Call{Op: "store", FD: mapped, Off: int64(i), Data: "M"})
		p.Must(lab.Call{Op: "write", FD: log, Data: "line\n"})
		want += "line\n"
		if r := p.Do(lab.Call{Op: "pread", FD: removed, N: 10}); r.Data != "still here" {
			t.Errorf("the removed file: %q, %v", r.Data, r.Err())
		}
		if got := p.Token(log); got != token {
			t.Errorf("the token is %d, and was %d", got, token)
		}
		other.Fails(lab.Call{Op: "open", Path: b.Path("log"), Flags: unix.O_WRONLY | unix.O_NONBLOCK}, unix.EAGAIN)
		p.Must(lab.Call{Op: "mkdir", Path: "x"})
		p.Must(lab.Call{Op: "rmdir", Path: "x"})
	}
	p.Must(lab.Call{Op: "msync", FD: mapped})
	p.Must(lab.Call{Op: "close", FD: log})
	fd := other.Open(b.Path("log"), unix.O_WRONLY|unix.O_APPEND)
	other.Must(lab.Call{Op: "write", FD: fd, Data: "other\n"})
	if got := v.Read("log"); got != want+"other\n" {
		t.Errorf("the log is %q", got)
	}
	if got := v.Read("f"); !strings.HasPrefix(got, "MMM-") || !strings.HasPrefix(got[4096:], "mmm-") {
		t.Errorf("the mapping is %q … %q", got[:4], got[4096:4100])
	}
	if exit := a.Stop(); exit != 0 {
		t.Errorf("the last daemon ends with %d", exit)
	}
}

// Who waits in line keeps his place among all mounts, by the same entry, and its patience.
func TestUpgradeKeepsPlacesInLine(t *testing.T) {
	lab.Over(t, testUpgradeKeepsPlacesInLine, lab.Local, lab.InLeases)
}

func testUpgradeKeepsPlacesInLine(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "-1")
	v.Write("f", "")
	a, b, c := v.Mount("a"), v.Mount("b"), v.Mount("c")
	holder, first, second, local := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	held := holder.Open(c.Path("f"), unix.O_WRONLY)
	one := first.Start(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY})
	v.WaitFor("f")
	behind := local.Start(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY})
	lab.Eventually(t, "the second on mount a waits", func() bool { return local.Within(unix.SYS_OPENAT) })
	two := second.Start(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY})
	lab.Eventually(t, "mount b waits too", func() bool { return v.Waiting("f") == 2 })
	lock := func() string {
		for _, e := range v.LS() {
			if e.Node == "a" && e.State == "waiting" {
				return e.Lock
			}
		}
		return "none"
	}
	was := lock()
	for range 3 {
		a = upgrade(t, a)
		if now := lock(); now != was || v.Waiting("f") != 2 {
			t.Fatalf("the entry %s has become %s; %d wait", was, now, v.Waiting("f"))
		}
	}
	holder.Must(lab.Call{Op: "close", FD: held})
	fd := lab.Await(t, "the first open", one)
	if fd.Errno != 0 {
		t.Fatal(fd.Err())
	}
	select {
	case r := <-two:
		t.Fatalf("two have the lock: %v", r.Err())
	default:
	}
	first.Must(lab.Call{Op: "close", FD: fd.N})
	fd = lab.Await(t, "the open on b", two)
	if fd.Errno != 0 {
		t.Fatal(fd.Err())
	}
	second.Must(lab.Call{Op: "close", FD: fd.N})
	if fd = lab.Await(t, "the second open on a", behind); fd.Errno != 0 {
		t.Fatal(fd.Err())
	}
	local.Must(lab.Call{Op: "close", FD: fd.N})
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}

// Who waits for a file that was just renamed, and may mean it by either name, gets after upgrades
// what has the name then that it asked for, if the holder has replaced the file as well.
func TestUpgradeWithAWaiterInDoubt(t *testing.T) {
	lab.Over(t, testUpgradeWithAWaiterInDoubt, lab.Local, lab.InLeases.ForLong())
}

func testUpgradeWithAWaiterInDoubt(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "-1")
	a, b := v.Mount("a"), v.Mount("b")
	holder, waiter := lab.NewAgent(t), lab.NewAgent(t)
	for range 3 {
		v.Write("was", "old")
		v.Write("new", "new")
		waiter.Must(lab.Call{Op: "rename", Path: a.Path("was"), Path2: a.Path("f")})
		held := holder.Open(b.Path("f"), unix.O_WRONLY)
		opens := waiter.Start(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY | unix.O_APPEND})
		v.WaitFor("f")
		a = upgrade(t, a)
		asked(t, a).Close()
		holder.Must(lab.Call{Op: "rename", Path: b.Path("new"), Path2: b.Path("f")})
		holder.Must(lab.Call{Op: "close", FD: held})
		r := lab.Await(t, "the open", opens)
		if r.Errno != 0 {
			t.Fatal(r.Err())
		}
		waiter.Must(lab.Call{Op: "write", FD: r.N, Data: "+"})
		waiter.Must(lab.Call{Op: "close", FD: r.N})
		if got := v.Read("f"); got != "new+" {
			t.Errorf("the file is %q", got)
		}
	}
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}

// A program that waits when its daemon is upgraded can still be interrupted.
func TestWaiterIsInterruptedAfterAnUpgrade(t *testing.T) {
	lab.Over(t, testWaiterIsInterruptedAfterAnUpgrade, lab.Local, lab.InLeases.ForLong())
}

func testWaiterIsInterruptedAfterAnUpgrade(t *testing.T, on lab.Setup) {
	waiterIsInterrupted(t, on.NewVolume(t, "--wait", "-1"), func(m *lab.Mount) { upgrade(t, m) })
}

// waiterIsInterrupted has the daemon of a mount replaced on which a program waits.
func waiterIsInterrupted(t *testing.T, v *lab.Volume, replace func(*lab.Mount)) {
	t.Helper()
	v.Write("f", "")
	a, b := v.Mount("a"), v.Mount("b")
	holder, waiter := lab.NewAgent(t), lab.NewAgent(t)
	held := holder.Open(b.Path("f"), unix.O_WRONLY)
	waits := waiter.Start(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY})
	v.WaitFor("f")
	replace(a)
	v.WaitFor("f")
	if r := waiter.Interrupt(waits); r.Errno != unix.EINTR {
		t.Errorf("after a signal: %v", r.Err())
	}
	lab.Eventually(t, "nobody waits", func() bool { return v.Waiting("f") == 0 })
	holder.Must(lab.Call{Op: "close", FD: held})
}

// A daemon of other settings is refused, says why, and changes nothing.
func TestUpgradeIsRefused(t *testing.T) {
	lab.Over(t, testUpgradeIsRefused, lab.Local, lab.InLeases.ForLong())
}

func testUpgradeIsRefused(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	v.Write("log", "")
	a := v.Mount("a")
	p := lab.NewAgent(t)
	log := p.Open(a.Path("log"), unix.O_WRONLY|unix.O_APPEND)
	for flag, why := range map[string]string{"--read-locks": "another read-locks", "--sync=always": "another sync", "--scope=node": "another scope"} {
		refused(t, a, why, flag)
		p.Must(lab.Call{Op: "write", FD: log, Data: "line\n"})
	}
	if got := v.Read("log"); got != strings.Repeat("line\n", 3) {
		t.Errorf("the log is %q", got)
	}
	upgrade(t, a)
	p.Must(lab.Call{Op: "close", FD: log})
}
