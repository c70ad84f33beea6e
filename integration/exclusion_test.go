package integration

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	rdonly   = unix.O_RDONLY
	wronly   = unix.O_WRONLY
	rdwr     = unix.O_RDWR
	create   = unix.O_CREAT
	appends  = unix.O_APPEND
	trunc    = unix.O_TRUNC
	nonblock = unix.O_NONBLOCK
)

// everywhere runs job once for each of n workers on each mount, all at once.
func everywhere(n int, job func(m *mount, worker int), mounts ...*mount) {
	var wg sync.WaitGroup
	for _, m := range mounts {
		for i := range n {
			wg.Go(func() { job(m, i) })
		}
	}
	wg.Wait()
}

// Writers on two mounts append lines, write reports of many lines under one
// open, and count: nothing is lost, and nothing stands within a holder's bytes.
func TestManyWritersOnTwoMounts(t *testing.T) {
	over(t, testManyWritersOnTwoMounts, local, inLeases.forLong(), overClients, overClientsThatKeep, onNetworkVolume)
}

func testManyWritersOnTwoMounts(t *testing.T, on setup) {
	v := on.newVolume(t, "--wait", "-1")
	a, b := v.mount("a"), v.mount("b")
	v.write("counter", "0\n")
	const workers, rounds, lines = 4, 8, 12
	everywhere(workers, func(m *mount, w int) {
		who := fmt.Sprintf("%s.%d", m.name, w)
		run(t, "sh", "-c", fmt.Sprintf(`for i in $(seq %d); do echo "%s $i" >> %s || exit 1; done`, rounds, who, m.path("log")))
		run(t, "sh", "-c", fmt.Sprintf(`for i in $(seq %d); do { for j in $(seq %d); do echo "%s $i $j"; done; } >> %s || exit 1; done`,
			rounds, lines, who, m.path("report")))
		run(t, "perl", "-e", `for (1..shift) { open(F, "+<", $ARGV[0]) or die "open: $!"; $n = <F>; seek(F, 0, 0); print F $n + 1, "\n"; close(F) or die "close: $!" }`,
			strconv.Itoa(rounds), m.path("counter"))
	}, a, b)

	seen := make(map[string]bool)
	for line := range strings.Lines(v.read("log")) {
		seen[line] = true
	}
	if want := 2 * workers * rounds; len(seen) != want || strings.Count(v.read("log"), "\n") != want {
		t.Errorf("the log has %d different lines, want %d", len(seen), want)
	}
	if got, want := strings.TrimSpace(v.read("counter")), strconv.Itoa(2*workers*rounds); got != want {
		t.Errorf("the counter stands at %s, want %s", got, want)
	}
	report := strings.Split(strings.TrimSuffix(v.read("report"), "\n"), "\n")
	if want := 2 * workers * rounds * lines; len(report) != want {
		t.Fatalf("the report has %d lines, want %d", len(report), want)
	}
	for i, line := range report {
		first := strings.Fields(report[i-i%lines])
		if want := fmt.Sprintf("%s %s %d", first[0], first[1], i%lines+1); line != want {
			t.Fatalf("line %d of the report is %q within the bytes of %q", i+1, line, first)
		}
	}
	eventually(t, "nothing stays locked", func() bool { return len(v.ls()) == 0 })
}

// Sqlite takes its database's lock for as long as it has it open.
func TestSqliteOnTwoMounts(t *testing.T) {
	over(t, testSqliteOnTwoMounts, local, overClients.forLong(), onNetworkVolume)
}

func testSqliteOnTwoMounts(t *testing.T, on setup) {
	v := on.newVolume(t, "--wait", "-1")
	a, b := v.mount("a"), v.mount("b")
	run(t, "sqlite3", a.path("db"), "CREATE TABLE t (x)")
	const workers, rounds = 2, 8
	everywhere(workers, func(m *mount, w int) {
		for i := range rounds {
			run(t, "sqlite3", "-cmd", ".timeout 60000", m.path("db"), fmt.Sprintf("INSERT INTO t VALUES ('%s %d %d')", m.name, w, i))
		}
	}, a, b)
	out, err := exec.Command("sqlite3", filepath.Join(v.source, "db"), "PRAGMA integrity_check; SELECT count(DISTINCT x) FROM t").CombinedOutput()
	if want := fmt.Sprintf("ok\n%d\n", 2*workers*rounds); err != nil || string(out) != want {
		t.Errorf("sqlite says %q, %v; want %q", out, err, want)
	}
}

// What an open that meets a holder gets: EAGAIN with O_NONBLOCK, EBUSY when its
// wait is over, EBUSY at once with --wait 0. Readers are not concerned.
func TestContendedOpen(t *testing.T) {
	over(t, testContendedOpen, local, inLeases.forLong(), onNetworkVolume)
}

func testContendedOpen(t *testing.T, on setup) {
	v := on.newVolume(t, "--wait", "500ms")
	a, b, c := v.mount("a"), v.mount("b"), v.mount("c", "--wait", "0")
	v.write("f", "kept")
	holder, other := newAgent(t), newAgent(t)
	fd := holder.open(a.path("f"), wronly)
	for _, m := range []*mount{a, b} {
		other.fails(call{Op: "open", Path: m.path("f"), Flags: wronly | nonblock}, unix.EAGAIN)
		other.fails(call{Op: "open", Path: m.path("f"), Flags: rdwr}, unix.EBUSY)
		other.fails(call{Op: "open", Path: m.path("f"), Flags: rdonly | trunc}, unix.EBUSY)
		other.fails(call{Op: "open", Path: m.path("f"), Flags: wronly | create | appends}, unix.EBUSY)
		r := other.open(m.path("f"), rdonly)
		other.must(call{Op: "close", FD: r})
	}
	other.fails(call{Op: "open", Path: c.path("f"), Flags: wronly}, unix.EBUSY)
	if got := v.read("f"); got != "kept" {
		t.Errorf("a refused open left %q", got)
	}
	holder.must(call{Op: "close", FD: fd})
	for _, m := range []*mount{a, b, c} {
		eventually(t, "the file is free on "+m.name, func() bool {
			r := other.do(call{Op: "open", Path: m.path("f"), Flags: wronly | nonblock})
			if r.Errno == 0 {
				other.must(call{Op: "close", FD: r.N})
			}
			return r.Errno == 0
		})
	}
}

// A process has a file open twice, by two descriptors of its own, and does not
// wait for itself; its child would wait for it, and is told so.
func TestOwners(t *testing.T) {
	v := newVolume(t)
	a := v.mount("a")
	p := newAgent(t)
	one := p.open(a.path("f"), wronly|create)
	two := p.open(a.path("f"), rdwr)
	p.must(call{Op: "close", FD: one})
	q := newAgent(t)
	q.fails(call{Op: "open", Path: a.path("f"), Flags: wronly | nonblock}, unix.EAGAIN)
	p.must(call{Op: "close", FD: two})

	out, err := exec.Command("sh", "-c", `exec 9>>"$1"; perl -e 'open(F, ">>", shift) or print $!+0' "$1"`, "sh", a.path("g")).CombinedOutput()
	if err != nil || string(out) != strconv.Itoa(int(unix.EDEADLK)) {
		t.Errorf("a child of the holder got %q, %v; want EDEADLK", out, err)
	}
}

// While a program holds a file, what others do next to it on the same mount
// neither changes the file nor keeps the program from going on: no request
// waits under a lock of the kernel's.
func TestHolderIsUndisturbed(t *testing.T) {
	over(t, testHolderIsUndisturbed, local, inLeases.forLong(), onNetworkVolume)
}

func testHolderIsUndisturbed(t *testing.T, on setup) {
	v := on.newVolume(t)
	a, b := v.mount("a"), v.mount("b")
	v.write("f", "")
	holder, other := newAgent(t), newAgent(t)
	fd := holder.open(a.path("f"), wronly)
	for _, m := range []*mount{a, b} {
		calls := map[string]call{
			"unlink":   {Op: "unlink", Path: m.path("f")},
			"truncate": {Op: "truncate", Path: m.path("f"), Off: 7},
			"rename":   {Op: "rename", Path: m.path("f"), Path2: m.path("g")},
			"link":     {Op: "link", Path: m.path("f"), Path2: m.path("g")},
		}
		for name, c := range calls {
			pending := other.start(c)
			// Meanwhile the holder writes. If the other's request waited for the
			// lock under the kernel's, this would hang.
			holder.must(call{Op: "write", FD: fd, Data: "x"})
			if r := await(t, name, pending); r.Errno != unix.EBUSY {
				t.Errorf("%s on %s of a held file: %v, want EBUSY", name, m.name, r.Err())
			}
		}
		other.must(call{Op: "close", FD: other.open(m.path("next-to-it"), wronly|create)})
		other.must(call{Op: "unlink", Path: m.path("next-to-it")})
	}
	if got := v.read("f"); got != strings.Repeat("x", 8) {
		t.Errorf("the file holds %q", got)
	}
	holder.must(call{Op: "close", FD: fd})
	holder.open(a.path("f"), wronly)
	pending := other.start(call{Op: "unlink", Path: b.path("f")})
	holder.kill() // hangs if the process cannot die
	if r := await(t, "unlink", pending); r.Errno != 0 && r.Errno != unix.EBUSY {
		t.Errorf("unlink: %v", r.Err())
	}
}

// An open may be interrupted by a signal that is caught, and by SIGKILL, while
// it waits; it leaves no entry behind.
func TestInterruptedOpenLeavesNothing(t *testing.T) {
	over(t, testInterruptedOpenLeavesNothing, local, inLeases.forLong())
}

func testInterruptedOpenLeavesNothing(t *testing.T, on setup) {
	v := on.newVolume(t, "--wait", "-1")
	a, b := v.mount("a"), v.mount("b")
	holder := newAgent(t)
	fd := holder.open(a.path("f"), wronly|create)
	for _, m := range []*mount{a, b} {
		for range 3 {
			w := newAgent(t)
			if r := w.interrupt(w.start(call{Op: "open", Path: m.path("f"), Flags: wronly})); r.Errno != unix.EINTR {
				t.Errorf("an interrupted open got %v, want EINTR", r.Err())
			}
			w.start(call{Op: "open", Path: m.path("f"), Flags: wronly})
			if m == b { // on the holder's own mount waiters stand in line there, not in etcd
				eventually(t, "it waits", func() bool { return v.waiting("f") == 1 })
			}
			w.kill()
		}
	}
	eventually(t, "only the holder is left", func() bool {
		es := v.ls()
		return len(es) == 1 && es[0].State == "held" && es[0].PID == holder.pid()
	})
	holder.must(call{Op: "close", FD: fd})
	eventually(t, "nothing is left", func() bool { return len(v.ls()) == 0 })
	free := newAgent(t)
	free.open(b.path("f"), wronly|nonblock)
}

// The lock lives as long as anything that can write through the open file:
// duplicates of the descriptor, another process that inherited it, a mapping.
func TestLastReferenceReleases(t *testing.T) {
	over(t, testLastReferenceReleases, local, onNetworkVolume)
}

func testLastReferenceReleases(t *testing.T, on setup) {
	v := on.newVolume(t)
	a, b := v.mount("a"), v.mount("b")
	v.write("f", strings.Repeat("-", 4096))
	other := newAgent(t)
	held := func(when string) {
		t.Helper()
		if r := other.do(call{Op: "open", Path: b.path("f"), Flags: wronly | nonblock}); r.Errno != unix.EAGAIN {
			t.Fatalf("after %s: %v, want EAGAIN", when, r.Err())
		}
	}
	free := func(when string) {
		t.Helper()
		eventually(t, "free after "+when, func() bool {
			r := other.do(call{Op: "open", Path: b.path("f"), Flags: wronly | nonblock})
			if r.Errno == 0 {
				other.must(call{Op: "close", FD: r.N})
			}
			return r.Errno == 0
		})
		eventually(t, "no entry after "+when, func() bool { return len(v.ls()) == 0 })
	}

	p := newAgent(t)
	fd := p.open(a.path("f"), rdwr)
	dup := p.must(call{Op: "dup", FD: fd})
	p.must(call{Op: "close", FD: fd})
	held("the first of two close()")
	p.must(call{Op: "pwrite", FD: dup, Data: "dup"})
	p.must(call{Op: "close", FD: dup})
	free("the last close()")

	fd = p.open(a.path("f"), rdwr)
	p.must(call{Op: "mmap", FD: fd, N: 4096})
	p.must(call{Op: "close", FD: fd})
	held("close() with a mapping")
	p.must(call{Op: "store", FD: fd, Data: "map"})
	p.must(call{Op: "munmap", FD: fd})
	free("munmap()")
	if got := v.read("f")[:4]; got != "map-" {
		t.Errorf("a mapping's bytes did not reach the file: %q", got)
	}

	fd = p.open(a.path("f"), rdwr)
	child := p.must(call{Op: "spawn", FD: fd})
	p.kill()
	held("the death of the opener")
	_ = unix.Kill(child, unix.SIGKILL)
	free("the death of the heir")
}
