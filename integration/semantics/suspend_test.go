package semantics

import (
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// The machine of a mount sleeps for an hour by CLOCK_BOOTTIME, in which its
// session ends and another program writes to the file. Whatever was under way
// when it fell asleep, it does not write over that. (docs/SEMANTICS.md, rule 10.)
func TestSystemSuspend(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--wait", "-1")
	b, s := v.Mount("b"), v.Staged("s", 0)
	other := lab.NewAgent(t)
	// theirs is what the others do while s sleeps.
	theirs := func() {
		v.Revoke() // as etcd does, TTL after the last renewal
		fd := other.Open(b.Path("f"), unix.O_WRONLY|unix.O_APPEND)
		other.Must(lab.Call{Op: "write", FD: fd, Data: "theirs\n"})
		other.Must(lab.Call{Op: "close", FD: fd})
	}
	check := func(t *testing.T, want string) {
		t.Helper()
		if got := v.Read("f"); got != want {
			t.Errorf("the file holds %q, want %q", got, want)
		}
		lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
	}
	hold := func() (*lab.Agent, int) {
		v.Write("f", "")
		writer := lab.NewAgent(t)
		fd := writer.Open(s.Path("f"), unix.O_WRONLY)
		writer.Must(lab.Call{Op: "write", FD: fd, Data: "mine\n"})
		return writer, fd
	}

	t.Run("between two writes", func(t *testing.T) {
		writer, fd := hold()
		var pending <-chan lab.Result
		s.Sleeps(func() {
			pending = writer.Start(lab.Call{Op: "write", FD: fd, Data: "late\n"}) // is the first to look at the clock
			theirs()
		})
		if r := lab.Await(t, "the write", pending); r.Errno != unix.EIO {
			t.Errorf("the first write: %v, want EIO", r.Err())
		}
		writer.Fails(lab.Call{Op: "write", FD: fd, Data: "later\n"}, unix.EIO)
		writer.Fails(lab.Call{Op: "close", FD: fd}, unix.EIO)
		check(t, "mine\ntheirs\n")
	})
	t.Run("between a renewal and its answer", func(t *testing.T) {
		writer, fd := hold()
		s.During(lab.Renewed, func() {}, func() { s.Sleeps(theirs) }) // the renewal succeeded, an hour ago
		writer.Fails(lab.Call{Op: "write", FD: fd, Data: "late\n"}, unix.EIO)
		writer.Fails(lab.Call{Op: "close", FD: fd}, unix.EIO)
		check(t, "mine\ntheirs\n")
	})
	t.Run("between a grant and its answer", func(t *testing.T) {
		v.Write("f", "")
		writer := lab.NewAgent(t)
		var pending <-chan lab.Result
		s.During(lab.Sent, func() {
			pending = writer.Start(lab.Call{Op: "open", Path: s.Path("f"), Flags: unix.O_WRONLY | unix.O_APPEND})
		},
			func() { s.Sleeps(theirs) })
		r := lab.Await(t, "open", pending)
		if r.Errno != 0 {
			t.Fatalf("open: %v", r.Err())
		}
		es := v.LS()
		if len(es) != 1 || es[0].State != "held" || es[0].PID != writer.PID() {
			t.Errorf("the program that has it open does not hold it: %+v", es)
		}
		writer.Must(lab.Call{Op: "write", FD: r.N, Data: "mine\n"})
		writer.Must(lab.Call{Op: "close", FD: r.N})
		check(t, "theirs\nmine\n")
	})
	t.Run("while it waits", func(t *testing.T) {
		v.Write("f", "")
		holder, writer := lab.NewAgent(t), lab.NewAgent(t)
		fd := holder.Open(b.Path("f"), unix.O_WRONLY|unix.O_APPEND)
		pending := writer.Start(lab.Call{Op: "open", Path: s.Path("f"), Flags: unix.O_WRONLY | unix.O_APPEND})
		v.WaitFor("f")
		s.Sleeps(func() {
			for _, e := range v.LS() {
				if e.Node == "s" {
					v.RevokeSession(e.Session)
				}
			}
			holder.Must(lab.Call{Op: "write", FD: fd, Data: "theirs\n"})
		})
		v.WaitFor("f") // anew
		holder.Must(lab.Call{Op: "write", FD: fd, Data: "and more\n"})
		holder.Must(lab.Call{Op: "close", FD: fd})
		r := lab.Await(t, "open", pending)
		writer.Must(lab.Call{Op: "write", FD: r.N, Data: "mine\n"})
		writer.Must(lab.Call{Op: "close", FD: r.N})
		check(t, "theirs\nand more\nmine\n")
	})
}

// A write that was on its way to the volume when the machine fell asleep lands
// when it lands; the program is told that nobody knows.
func TestSystemSuspendDuringAWrite(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--embedded")
	at := lab.NewTurnstile(t)
	v.Under(func(b lab.Below) gofs.InodeEmbedder { return &heldWrites{b, at} })
	s := v.Staged("s", 0)
	t.Cleanup(at.End)
	v.Write("f", "")
	writer := lab.NewAgent(t)
	fd := writer.Open(s.Path("f"), unix.O_WRONLY)
	at.Shut.Store(true)
	pending := writer.Start(lab.Call{Op: "write", FD: fd, Data: "x"})
	let := at.Next()
	at.Shut.Store(false)
	v.Revoke() // first: a renewal after the hour must not be answered
	s.Ahead.Add(int64(time.Hour))
	let()
	if r := lab.Await(t, "the write", pending); r.Errno != unix.EIO {
		t.Errorf("the write: %v, want EIO", r.Err())
	}
	writer.Fails(lab.Call{Op: "write", FD: fd, Data: "y"}, unix.EIO)
	writer.Fails(lab.Call{Op: "close", FD: fd}, unix.EIO)
	if got := v.Read("f"); got != "x" {
		t.Errorf("the file holds %q", got)
	}
}
