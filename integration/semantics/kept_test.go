package semantics

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// oneEntry is how far apart the fencing tokens of two entries are.
const oneEntry = 1 << 12

// A file that one mount opens again and again has one entry. Another mount gets it at once
// when nobody has it open, and in its turn when somebody has. Nothing is left when the mount ends.
// (docs/SEMANTICS.md, rule 31.)
func TestKeptLock(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a, b := v.Mount("a", "--keep", "1m"), v.Mount("b", "--keep", "1m")
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
	use()
	entry := last / oneEntry
	const opens = 100
	for range opens {
		use()
	}
	if last/oneEntry != entry {
		t.Errorf("the entry was %d, it is %d", entry, last/oneEntry)
	}
	lab.Eventually(t, "the lock is shown as kept", func() bool { es := v.LS(); return len(es) == 1 && es[0].State == "kept" })

	q := lab.NewAgent(t)
	fd := q.Open(b.Path("f"), unix.O_WRONLY|unix.O_APPEND|unix.O_NONBLOCK)
	if token := q.Token(fd); token <= last {
		t.Errorf("token %d after %d", token, last)
	}
	if r := p.Do(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY | unix.O_NONBLOCK}); r.Errno != unix.EAGAIN {
		t.Errorf("open of what another mount has recalled: %v", r.Err())
	}
	q.Must(lab.Call{Op: "write", FD: fd, Data: "y"})
	q.Must(lab.Call{Op: "close", FD: fd})
	if got, want := len(v.Read("f")), opens+3; got != want {
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

	for _, what := range []func() error{
		func() error { return os.Remove(b.Path("g")) },
		func() error { return os.Rename(b.Path("d"), b.Path("e")) },
	} {
		if err := os.MkdirAll(v.InSource("d"), 0o755); err != nil {
			t.Fatal(err)
		}
		v.Write("h", "")
		for _, name := range []string{"d/f", "d/f", "d/f"} {
			fd := p.Open(a.Path(name), unix.O_CREAT|unix.O_WRONLY)
			p.Must(lab.Call{Op: "close", FD: fd})
		}
		if err := what(); err != nil {
			t.Error(err)
		}
	}
	for range 3 {
		fd := p.Open(a.Path("last"), unix.O_CREAT|unix.O_WRONLY)
		p.Must(lab.Call{Op: "close", FD: fd})
	}
	lab.Eventually(t, "only the last is kept", func() bool { es := v.LS(); return len(es) == 1 && es[0].Path == "last" })
	a.Stop()
	if es := v.LS(); len(es) != 0 {
		t.Errorf("a mount that has ended keeps %+v", es)
	}
}

// A mount that keeps the lock of a closed file is killed: the others get it when its lease has
// ended.
func TestKeptLockOfADeadMount(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--ttl", "3s", "--wait", "-1")
	a, b := v.Mount("a", "--keep", "1m"), v.Mount("b")
	p := lab.NewAgent(t)
	for range 3 {
		fd := p.Open(a.Path("f"), unix.O_CREAT|unix.O_WRONLY)
		p.Must(lab.Call{Op: "close", FD: fd})
	}
	lab.Eventually(t, "the lock is shown as kept", func() bool { es := v.LS(); return len(es) == 1 && es[0].State == "kept" })
	a.Kill()
	fd := p.Open(b.Path("f"), unix.O_WRONLY)
	p.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
	p.Must(lab.Call{Op: "close", FD: fd})
	if got := v.Read("f"); got != "x" {
		t.Errorf("the file holds %q", got)
	}
}
