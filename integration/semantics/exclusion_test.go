package semantics

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// Writers on two mounts append lines, write reports of many lines under one
// open, and count: nothing is lost, and nothing stands within a holder's bytes.
func TestManyWritersOnTwoMounts(t *testing.T) {
	lab.Over(t, testManyWritersOnTwoMounts, lab.Local, lab.InLeases.ForLong(), lab.OverClients, lab.OverClientsThatKeep, lab.OnNetworkVolume)
}

func testManyWritersOnTwoMounts(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "-1")
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("counter", "0\n")
	const workers, rounds, lines = 4, 8, 12
	lab.Everywhere(workers, func(m *lab.Mount, w int) {
		who := fmt.Sprintf("%s.%d", m.Name, w)
		lab.Run(t, "sh", "-c", fmt.Sprintf(`for i in $(seq %d); do echo "%s $i" >> %s || exit 1; done`, rounds, who, m.Path("log")))
		lab.Run(t, "sh", "-c", fmt.Sprintf(`for i in $(seq %d); do { for j in $(seq %d); do echo "%s $i $j"; done; } >> %s || exit 1; done`,
			rounds, lines, who, m.Path("report")))
		lab.Run(t, "perl", "-e", `for (1..shift) { open(F, "+<", $ARGV[0]) or die "open: $!"; $n = <F>; seek(F, 0, 0); print F $n + 1, "\n"; close(F) or die "close: $!" }`,
			strconv.Itoa(rounds), m.Path("counter"))
	}, a, b)

	seen := make(map[string]bool)
	for line := range strings.Lines(v.Read("log")) {
		seen[line] = true
	}
	if want := 2 * workers * rounds; len(seen) != want || strings.Count(v.Read("log"), "\n") != want {
		t.Errorf("the log has %d different lines, want %d", len(seen), want)
	}
	if got, want := strings.TrimSpace(v.Read("counter")), strconv.Itoa(2*workers*rounds); got != want {
		t.Errorf("the counter stands at %s, want %s", got, want)
	}
	report := strings.Split(strings.TrimSuffix(v.Read("report"), "\n"), "\n")
	if want := 2 * workers * rounds * lines; len(report) != want {
		t.Fatalf("the report has %d lines, want %d", len(report), want)
	}
	for i, line := range report {
		first := strings.Fields(report[i-i%lines])
		if want := fmt.Sprintf("%s %s %d", first[0], first[1], i%lines+1); line != want {
			t.Fatalf("line %d of the report is %q within the bytes of %q", i+1, line, first)
		}
	}
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}

// What an open that meets a holder gets: EAGAIN with O_NONBLOCK, EBUSY when its
// wait is over, EBUSY at once with --wait 0. Readers are not concerned.
func TestContendedOpen(t *testing.T) {
	lab.Over(t, testContendedOpen, lab.Local, lab.InLeases.ForLong(), lab.OnNetworkVolume)
}

func testContendedOpen(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "500ms")
	a, b, c := v.Mount("a"), v.Mount("b"), v.Mount("c", "--wait", "0")
	v.Write("f", "kept")
	holder, other := lab.NewAgent(t), lab.NewAgent(t)
	open := func(who *lab.Agent, m *lab.Mount, flags int) (r lab.Result) {
		t.Helper()
		lab.Eventually(t, "the lock service answers within the wait", func() bool {
			r = who.Do(lab.Call{Op: "open", Path: m.Path("f"), Flags: flags})
			return r.Errno != unix.ENOLCK
		})
		return r
	}
	held := open(holder, a, unix.O_WRONLY)
	if held.Errno != 0 {
		t.Fatalf("an open of a file that nobody has: %v", held.Err())
	}
	fd := held.N
	refused := func(m *lab.Mount, flags int, want syscall.Errno) {
		t.Helper()
		if r := open(other, m, flags); r.Errno != want {
			t.Fatalf("an open with flags %#x on %s: %v, want %v", flags, m.Name, r.Err(), want)
		}
	}
	for _, m := range []*lab.Mount{a, b} {
		refused(m, unix.O_WRONLY|unix.O_NONBLOCK, unix.EAGAIN)
		refused(m, unix.O_RDWR, unix.EBUSY)
		refused(m, unix.O_RDONLY|unix.O_TRUNC, unix.EBUSY)
		refused(m, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND, unix.EBUSY)
		r := other.Open(m.Path("f"), unix.O_RDONLY)
		other.Must(lab.Call{Op: "close", FD: r})
	}
	refused(c, unix.O_WRONLY, unix.EBUSY)
	if got := v.Read("f"); got != "kept" {
		t.Errorf("a refused open left %q", got)
	}
	holder.Must(lab.Call{Op: "close", FD: fd})
	for _, m := range []*lab.Mount{a, b, c} {
		lab.Eventually(t, "the file is free on "+m.Name, func() bool {
			r := other.Do(lab.Call{Op: "open", Path: m.Path("f"), Flags: unix.O_WRONLY | unix.O_NONBLOCK})
			if r.Errno == 0 {
				other.Must(lab.Call{Op: "close", FD: r.N})
			}
			return r.Errno == 0
		})
	}
}

// A process has a file open twice, by two descriptors of its own, and does not
// wait for itself; its child would wait for it, and is told so.
func TestOwners(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	p := lab.NewAgent(t)
	one := p.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	two := p.Open(a.Path("f"), unix.O_RDWR)
	p.Must(lab.Call{Op: "close", FD: one})
	q := lab.NewAgent(t)
	q.Fails(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY | unix.O_NONBLOCK}, unix.EAGAIN)
	p.Must(lab.Call{Op: "close", FD: two})

	out, err := exec.Command("sh", "-c", `exec 9>>"$1"; perl -e 'open(F, ">>", shift) or print $!+0' "$1"`, "sh", a.Path("g")).CombinedOutput()
	if err != nil || string(out) != strconv.Itoa(int(unix.EDEADLK)) {
		t.Errorf("a child of the holder got %q, %v; want EDEADLK", out, err)
	}
}

// While a program holds a file, what others do next to it on the same mount
// neither changes the file nor keeps the program from going on: no request
// waits under a lock of the kernel's.
func TestHolderIsUndisturbed(t *testing.T) {
	lab.Over(t, testHolderIsUndisturbed, lab.Local, lab.InLeases.ForLong(), lab.OnNetworkVolume)
}

func testHolderIsUndisturbed(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", "")
	holder, other := lab.NewAgent(t), lab.NewAgent(t)
	fd := holder.Open(a.Path("f"), unix.O_WRONLY)
	for _, m := range []*lab.Mount{a, b} {
		calls := map[string]lab.Call{
			"unlink":   {Op: "unlink", Path: m.Path("f")},
			"truncate": {Op: "truncate", Path: m.Path("f"), Off: 7},
			"rename":   {Op: "rename", Path: m.Path("f"), Path2: m.Path("g")},
			"link":     {Op: "link", Path: m.Path("f"), Path2: m.Path("g")},
		}
		for name, c := range calls {
			pending := other.Start(c)
			// Meanwhile the holder writes. If the other's request waited for the
			// lock under the kernel's, this would hang.
			holder.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
			r := lab.Await(t, name, pending)
			if r.Errno == unix.ENOLCK {
				r = other.InTime(c)
			}
			if r.Errno != unix.EBUSY {
				t.Errorf("%s on %s of a held file: %v, want EBUSY", name, m.Name, r.Err())
			}
		}
		create := lab.Call{Op: "open", Path: m.Path("next-to-it"), Flags: unix.O_WRONLY | unix.O_CREAT}
		other.Must(lab.Call{Op: "close", FD: other.OnceFree(create)}) // a may give the name back late
		other.Must(lab.Call{Op: "unlink", Path: m.Path("next-to-it")})
	}
	if got := v.Read("f"); got != strings.Repeat("x", 8) {
		t.Errorf("the file holds %q", got)
	}
	holder.Must(lab.Call{Op: "close", FD: fd})
	holder.Open(a.Path("f"), unix.O_WRONLY)
	pending := other.Start(lab.Call{Op: "unlink", Path: b.Path("f")})
	holder.Kill() // hangs if the process cannot die
	if r := lab.Await(t, "unlink", pending); r.Errno != 0 && r.Errno != unix.EBUSY && r.Errno != unix.ENOLCK {
		t.Errorf("unlink: %v", r.Err())
	}
}

// An open may be interrupted by a signal that is caught, and by SIGKILL, while
// it waits; it leaves no entry behind.
func TestInterruptedOpenLeavesNothing(t *testing.T) {
	lab.Over(t, testInterruptedOpenLeavesNothing, lab.Local, lab.InLeases.ForLong())
}

func testInterruptedOpenLeavesNothing(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "-1")
	a, b := v.Mount("a"), v.Mount("b")
	holder := lab.NewAgent(t)
	fd := holder.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	for _, m := range []*lab.Mount{a, b} {
		for range 3 {
			w := lab.NewAgent(t)
			if r := w.Interrupt(w.Start(lab.Call{Op: "open", Path: m.Path("f"), Flags: unix.O_WRONLY})); r.Errno != unix.EINTR {
				t.Errorf("an interrupted open got %v, want EINTR", r.Err())
			}
			w.Start(lab.Call{Op: "open", Path: m.Path("f"), Flags: unix.O_WRONLY})
			if m == b { // on the holder's own mount waiters stand in line there, not in etcd
				lab.Eventually(t, "it waits", func() bool { return v.Waiting("f") == 1 })
			}
			w.Kill()
		}
	}
	lab.Eventually(t, "only the holder is left", func() bool {
		es := v.LS()
		return len(es) == 1 && es[0].State == "held" && es[0].PID == holder.PID()
	})
	holder.Must(lab.Call{Op: "close", FD: fd})
	lab.Eventually(t, "nothing is left", func() bool { return len(v.LS()) == 0 })
	free := lab.NewAgent(t)
	free.Open(b.Path("f"), unix.O_WRONLY|unix.O_NONBLOCK)
}

// The lock lives as long as anything that can write through the open file:
// duplicates of the descriptor, another process that inherited it, a mapping.
func TestLastReferenceReleases(t *testing.T) {
	lab.Over(t, testLastReferenceReleases, lab.Local, lab.OnNetworkVolume)
}

func testLastReferenceReleases(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", strings.Repeat("-", 4096))
	other := lab.NewAgent(t)
	held := func(when string) {
		t.Helper()
		if r := other.InTime(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY | unix.O_NONBLOCK}); r.Errno != unix.EAGAIN {
			t.Fatalf("after %s: %v, want EAGAIN", when, r.Err())
		}
	}
	free := func(when string) {
		t.Helper()
		lab.Eventually(t, "free after "+when, func() bool {
			r := other.Do(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY | unix.O_NONBLOCK})
			if r.Errno == 0 {
				other.Must(lab.Call{Op: "close", FD: r.N})
			}
			return r.Errno == 0
		})
		lab.Eventually(t, "no entry after "+when, func() bool { return len(v.LS()) == 0 })
	}

	p := lab.NewAgent(t)
	fd := p.Open(a.Path("f"), unix.O_RDWR)
	dup := p.Must(lab.Call{Op: "dup", FD: fd})
	p.Must(lab.Call{Op: "close", FD: fd})
	held("the first of two close()")
	p.Must(lab.Call{Op: "pwrite", FD: dup, Data: "dup"})
	p.Must(lab.Call{Op: "close", FD: dup})
	free("the last close()")

	fd = p.Open(a.Path("f"), unix.O_RDWR)
	p.Must(lab.Call{Op: "mmap", FD: fd, N: 4096})
	p.Must(lab.Call{Op: "close", FD: fd})
	held("close() with a mapping")
	p.Must(lab.Call{Op: "store", FD: fd, Data: "map"})
	p.Must(lab.Call{Op: "munmap", FD: fd})
	free("munmap()")
	if got := v.Read("f")[:4]; got != "map-" {
		t.Errorf("a mapping's bytes did not reach the file: %q", got)
	}

	fd = p.Open(a.Path("f"), unix.O_RDWR)
	child := p.Must(lab.Call{Op: "spawn", FD: fd})
	p.Kill()
	held("the death of the opener")
	_ = unix.Kill(child, unix.SIGKILL)
	free("the death of the heir")
}
