package semantics

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// oneEntry is how far apart the fencing tokens of two entries are.
const oneEntry = 1 << 12

// keepLock opens a file until its mount keeps the lock, however slow the machine is. It returns the
// lock's token.
func keepLock(v *lab.Volume, p *lab.Agent, m *lab.Mount, name string) (token int64) {
	v.T.Helper()
	lab.Eventually(v.T, "the lock is shown as kept", func() bool {
		for range 2 {
			p.Must(lab.Call{Op: "close", FD: p.Open(m.Path(name), unix.O_CREAT|unix.O_WRONLY)})
		}
		kept := false
		lab.Eventually(v.T, "the lock is kept or gone", func() bool {
			es := v.LS()
			i := slices.IndexFunc(es, func(e lab.Entry) bool { return e.Path == name })
			if kept = i >= 0 && es[i].State == "kept"; kept {
				token = es[i].Token
			}
			return i < 0 || kept
		})
		return kept
	})
	return token
}

// A file that one mount opens again and again has one entry. Another mount gets it at once
// when nobody has it open, and in its turn when somebody has. Nothing is left when the mount ends.
// (docs/SEMANTICS.md, rule 31.)
func TestKeptLock(t *testing.T) { lab.Over(t, testKeptLock, lab.Local, lab.InLeases) }

func testKeptLock(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--ttl", "1m") // an open that tries waits for an eighth of that
	a, b := v.Mount("a", "--keep", "1m"), v.Mount("b", "--keep", "1m", "--name-wait", "1m")
	p, r := lab.NewAgent(t), lab.NewAgent(t)
	var last int64
	use := func() {
		p, r = r, p // each waits for the other's release
		fd := p.Open(a.Path("f"), unix.O_CREAT|unix.O_WRONLY|unix.O_APPEND)
		token := p.Token(fd)
		if token <= last {
			t.Errorf("token %d after %d", token, last)
		}
		last = token
		p.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
		p.Must(lab.Call{Op: "close", FD: fd})
	}
	use()
	lab.Eventually(t, "the lock is released", func() bool { return len(v.LS()) == 0 })
	const opens = 100
	used := 1
	entries := func() int {
		t.Helper()
		found := make(map[int64]bool)
		for range opens {
			use()
			used++
			found[last/oneEntry] = true
		}
		return len(found)
	}
	// One, unless the lock service does not tell of recalls in time: on a slow machine, but not twice.
	if n := entries(); n > opens/2 {
		if again := entries(); again > opens/2 {
			t.Errorf("%d opens took %d entries, and then %d", opens, n, again)
		}
	}
	keepLock(v, r, a, "f")

	q := lab.NewAgent(t)
	fd := q.Open(b.Path("f"), unix.O_WRONLY|unix.O_APPEND|unix.O_NONBLOCK)
	if token := q.Token(fd); token <= last {
		t.Errorf("token %d after %d", token, last)
	}
	if r := p.InTime(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY | unix.O_NONBLOCK}); r.Errno != unix.EAGAIN {
		t.Errorf("open of what another mount has recalled: %v", r.Err())
	}
	q.Must(lab.Call{Op: "write", FD: fd, Data: "y"})
	q.Must(lab.Call{Op: "close", FD: fd})
	if got, want := len(v.Read("f")), used+1; got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}

	v.Write("g", "")
	for range 3 {
		fd := p.Open(a.Path("g"), unix.O_WRONLY)
		p.Must(lab.Call{Op: "close", FD: fd})
	}
	held := p.Open(a.Path("g"), unix.O_WRONLY)
	waits := q.Start(lab.Call{Op: "open", Path: b.Path("g"), Flags: unix.O_WRONLY})
	v.WaitFor("g")
	p.Must(lab.Call{Op: "close", FD: held})
	q.Must(lab.Call{Op: "close", FD: lab.Await(t, "the open", waits).N})

	for _, c := range []lab.Call{
		{Op: "unlink", Path: b.Path("g")},
		{Op: "rename", Path: b.Path("d"), Path2: b.Path("e")},
	} {
		if err := os.MkdirAll(v.InSource("d"), 0o755); err != nil {
			t.Fatal(err)
		}
		v.Write("h", "")
		for _, name := range []string{"d/f", "d/f", "d/f"} {
			fd := p.Open(a.Path(name), unix.O_CREAT|unix.O_WRONLY)
			p.Must(lab.Call{Op: "close", FD: fd})
		}
		r.OnceFree(c)
	}
	keepLock(v, p, a, "last")
	a.Stop()
	keepsNothing(v, a)
}

// keepsNothing looks for what a mount that has ended has left in the lock service.
func keepsNothing(v *lab.Volume, m *lab.Mount) {
	v.T.Helper()
	for _, e := range v.LS() {
		if e.Node == m.Name {
			v.T.Errorf("a mount that has ended keeps %+v", e)
		}
	}
}

// A mount that keeps the lock of a closed file is killed: the others get it when its lease has
// ended.
func TestKeptLockOfADeadMount(t *testing.T) {
	lab.Over(t, testKeptLockOfADeadMount, lab.Local, lab.InLeases)
}

func testKeptLockOfADeadMount(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--ttl", mortalTTL, "--wait", "-1")
	a, b := v.Mount("a", "--keep", "1m"), v.Mount("b", "--ttl", "5m") // b must not lose its own
	p := lab.NewAgent(t)
	keepLock(v, p, a, "f")
	a.Kill()
	fd := p.Open(b.Path("f"), unix.O_WRONLY)
	p.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
	p.Must(lab.Call{Op: "close", FD: fd})
	if got := v.Read("f"); got != "x" {
		t.Errorf("the file holds %q", got)
	}
}

// A mount that keeps the lock of a closed file is frozen until another has had the file. When it
// goes on, its programs open the file at once: not by the lock that it had kept, and they see what
// the other has written.
func TestKeptLockOfAFrozenMount(t *testing.T) {
	lab.Over(t, testKeptLockOfAFrozenMount, lab.Local, lab.InLeases)
}

func testKeptLockOfAFrozenMount(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--ttl", mortalTTL, "--wait", "-1", "--keep", "1m")
	a, b := v.Mount("a"), v.Mount("b", "--ttl", "5m")
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	kept := keepLock(v, p, a, "f")
	lab.Freeze(t, a.Cmd.Process.Pid)
	fd := q.Open(b.Path("f"), unix.O_WRONLY|unix.O_APPEND)
	between := q.Token(fd)
	q.Must(lab.Call{Op: "write", FD: fd, Data: "b"})
	waits := p.Start(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY | unix.O_APPEND})
	if err := a.Cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	v.WaitFor("f")
	q.Must(lab.Call{Op: "close", FD: fd})
	again := lab.Await(t, "the open on the mount that was frozen", waits)
	if again.Errno != 0 {
		t.Fatalf("open: %v", again.Err())
	}
	if token := p.Token(again.N); between <= kept || token <= between {
		t.Errorf("tokens %d, %d of the other mount, and then %d", kept, between, token)
	}
	p.Must(lab.Call{Op: "write", FD: again.N, Data: "a"})
	p.Must(lab.Call{Op: "close", FD: again.N})
	if got := v.Read("f"); got != "ba" {
		t.Errorf("the file holds %q", got)
	}
}
