package integration

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/longtest"
)

// of returns the writers on a mount that the test has not ended.
func (tr *trial) of(m *mount) (found []*recorded) {
	for _, w := range tr.writers {
		if w.mount == m.name && !w.ended {
			found = append(found, w)
		}
	}
	return found
}

// Daemons are killed while programs on all mounts write. The others go on when
// the dead one's lease has ended, or as soon as it is mounted again, whatever it
// was about to do. (docs/SEMANTICS.md, rule 12.)
func TestKilledUnderLoad(t *testing.T) { over(t, testKilledUnderLoad, local, inLeases.forLong()) }

func testKilledUnderLoad(t *testing.T, on setup) {
	c := on.newService(t)
	tr := newTrial(t, c, "--wait", "-1", "--ttl", shortTTL.String())
	mounts := []*mount{tr.mount("a"), tr.mount("b"), tr.mount("c")}
	for _, m := range mounts {
		tr.work(m, 2)
	}
	tr.goesOn("before the fault")
	for round, end := 0, time.Now().Add(longtest.For(t)); round < 2 || time.Now().Before(end); round++ {
		victim := mounts[round%len(mounts)]
		killed := time.Now()
		victim.kill()
		for _, w := range tr.of(victim) {
			w.kill() // hangs if it cannot die
			w.ended = true
		}
		how := "without the dead one"
		if round%2 == 0 { // who takes its place does not wait for the lease to end
			how = "with the dead one's successor"
			mounts[round%len(mounts)] = tr.mount(victim.name)
		}
		tr.goesOn(how)
		t.Logf("%s, all others have had the files %.2f s after kill -9", how, time.Since(killed).Seconds())
		if round%2 != 0 {
			mounts[round%len(mounts)] = tr.mount(victim.name)
		}
		tr.work(mounts[round%len(mounts)], 2)
		tr.goesOn("with it again")
	}
	tr.finish()
}

// A daemon is frozen while programs write, for longer than its lease, and thaws.
// Its programs had a file open, and go on writing to it the moment it thaws:
// others have had it meanwhile. (docs/SEMANTICS.md, rule 10.)
func TestThawedUnderLoad(t *testing.T) { over(t, testThawedUnderLoad, local, inLeases.forLong()) }

func testThawedUnderLoad(t *testing.T, on setup) {
	c := on.newService(t)
	tr := newTrial(t, c, "--wait", "-1", "--ttl", shortTTL.String())
	a, b := tr.mount("a"), tr.mount("b")
	tr.work(a, 3)
	tr.work(b, 2)
	tr.stay(a) // one of the others may have only its close() before it when it is stopped
	tr.goesOn("before the fault")
	for round, end := 0, time.Now().Add(longtest.For(t)); round < 1 || time.Now().Before(end); round++ {
		// Not in the middle of a write: see what is not promised. So the programs
		// are stopped first, one of them with a file open.
		eventually(t, "a program is stopped with a file open", func() bool {
			for _, w := range tr.of(a) {
				freeze(t, w.cmd.Process.Pid)
			}
			for _, w := range tr.of(a) {
				if w.config.Most > 0 && tr.holds(w) {
					return true
				}
			}
			tr.thaw(a)
			return false
		})
		since := monotonic()
		freeze(t, a.cmd.Process.Pid)
		tr.thaw(a) // they meet a daemon that does not answer
		for _, w := range tr.of(a) {
			w.ended = true
		}
		tr.goesOn("without the frozen one") // the files it has locked, too
		for _, w := range tr.writers {
			w.ended = false
		}
		if err := a.cmd.Process.Signal(unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		tr.saw(since, "the program that stays is told", func(o op) bool { return o.File == "of-a" && o.Kind == wrote && o.Errno == unix.EIO })
		tr.goesOn("with it again")
	}
	tr.finish()
}

// holds reports whether a stopped program has a file open.
func (tr *trial) holds(w *recorded) bool {
	found := false
	for _, e := range tr.ls() {
		found = found || e.State == "held" && e.PID == w.cmd.Process.Pid
	}
	ops := w.history()
	return found && len(ops) > 0 && ops[len(ops)-1].Kind != closed
}

func (tr *trial) thaw(m *mount) {
	for _, w := range tr.of(m) {
		_ = w.cmd.Process.Signal(unix.SIGCONT)
	}
}

// A daemon that thaws has requests of all kinds before it, for files that it has
// lost. None of them changes anything.
func TestThawedDaemonChangesNothing(t *testing.T) {
	const size = 4096
	late := strings.Repeat("late", size/4)
	cases := map[string]struct {
		flags int
		mmap  bool
		call  call // with the FD of the open file
	}{
		"write":              {flags: wronly, call: call{Op: "pwrite", Data: late}},
		"write of many":      {flags: rdwr, call: call{Op: "pwrite", Off: 1, Data: strings.Repeat(late, 300)}},
		"append":             {flags: wronly | appends, call: call{Op: "write", Data: late}},
		"append and read":    {flags: rdwr | appends, call: call{Op: "write", Data: late}},
		"ftruncate":          {flags: wronly, call: call{Op: "ftruncate", Off: 1}},
		"fallocate":          {flags: rdwr, call: call{Op: "fallocate", N: 3 * size}},
		"copy":               {flags: rdwr, call: call{Op: "copy", Off: size, N: size}},
		"fsync":              {flags: rdwr, call: call{Op: "fsync"}},
		"close":              {flags: wronly, call: call{Op: "close"}},
		"mapping":            {flags: rdwr, mmap: true, call: call{Op: "msync"}},
		"mapping and append": {flags: rdwr | appends, mmap: true, call: call{Op: "msync"}},
	}
	v := newVolume(t, "--wait", "-1")
	server, a := v.mount("server"), v.mount("a", "--ttl", shortTTL.String()) // the etcd is not frozen with a
	programs, fds, pending := make(map[string]*agent), make(map[string]int), make(map[string]<-chan result)
	for name, c := range cases {
		v.write(name, strings.Repeat("-", size))
		p := newAgent(t)
		fd := p.open(a.path(name), c.flags)
		if c.mmap {
			p.must(call{Op: "mmap", FD: fd, N: size})
			p.must(call{Op: "store", FD: fd, Data: "mine"}) // is dirty from here on
		}
		programs[name], fds[name] = p, fd
	}
	freeze(t, a.cmd.Process.Pid)
	for name, c := range cases {
		if c.mmap {
			programs[name].must(call{Op: "store", FD: fds[name], Data: "late"})
		}
		c.call.FD = fds[name]
		pending[name] = programs[name].start(c.call)
	}
	other := newAgent(t)
	theirs := "theirs" + strings.Repeat(".", size)
	for name := range cases {
		fd := other.open(server.path(name), wronly|trunc)
		other.must(call{Op: "write", FD: fd, Data: theirs})
		other.must(call{Op: "close", FD: fd})
	}
	if err := a.cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for name, c := range cases {
		r := await(t, name, pending[name])
		// What changes nothing is not held up: it may come before the loss is known.
		if harmless := c.call.Op == "fsync" || c.call.Op == "close"; r.Errno != unix.EIO && (r.Errno != 0 || !harmless) {
			t.Errorf("%s: %v, want EIO", name, r.Err())
		}
		if c.call.Op != "close" {
			programs[name].fails(call{Op: "close", FD: fds[name]}, unix.EIO)
		}
		programs[name].kill() // and its mappings
	}
	for name := range cases {
		if got := v.read(name); got != theirs {
			t.Errorf("%s: the file holds %.20q…, %d bytes", name, got, len(got))
		}
		// Who opens it on the thawed mount sees, and has, what is there.
		fd := other.open(a.path(name), rdwr)
		if r := other.do(call{Op: "pread", FD: fd, N: 6}); r.Data != "theirs" {
			t.Errorf("%s: read on the thawed mount: %q, %v", name, r.Data, r.Err())
		}
		other.must(call{Op: "close", FD: fd})
	}
	eventually(t, "nothing stays locked", func() bool { return len(v.ls()) == 0 })
}
