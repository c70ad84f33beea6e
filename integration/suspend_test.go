package integration

import (
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sys/unix"
)

// The machine of a mount sleeps for an hour by CLOCK_BOOTTIME, in which its
// session ends and another program writes to the file. Whatever was under way
// when it fell asleep, it does not write over that. (docs/SEMANTICS.md, rule 10.)
func TestSystemSuspend(t *testing.T) {
	v := newVolume(t, "--wait", "-1")
	b, s := v.mount("b"), v.staged("s")
	other := newAgent(t)
	// theirs is what the others do while s sleeps.
	theirs := func() {
		v.revoke() // as etcd does, TTL after the last renewal
		fd := other.open(b.path("f"), wronly|appends)
		other.must(call{Op: "write", FD: fd, Data: "theirs\n"})
		other.must(call{Op: "close", FD: fd})
	}
	check := func(t *testing.T, want string) {
		t.Helper()
		if got := v.read("f"); got != want {
			t.Errorf("the file holds %q, want %q", got, want)
		}
		eventually(t, "nothing stays locked", func() bool { return len(v.ls()) == 0 })
	}
	hold := func() (*agent, int) {
		v.write("f", "")
		writer := newAgent(t)
		fd := writer.open(s.path("f"), wronly)
		writer.must(call{Op: "write", FD: fd, Data: "mine\n"})
		return writer, fd
	}

	t.Run("between two writes", func(t *testing.T) {
		writer, fd := hold()
		var pending <-chan result
		s.sleeps(func() {
			pending = writer.start(call{Op: "write", FD: fd, Data: "late\n"}) // is the first to look at the clock
			theirs()
		})
		if r := await(t, "the write", pending); r.Errno != unix.EIO {
			t.Errorf("the first write: %v, want EIO", r.Err())
		}
		writer.fails(call{Op: "write", FD: fd, Data: "later\n"}, unix.EIO)
		writer.fails(call{Op: "close", FD: fd}, unix.EIO)
		check(t, "mine\ntheirs\n")
	})
	t.Run("between a renewal and its answer", func(t *testing.T) {
		writer, fd := hold()
		s.during(renewed, func() {}, func() { s.sleeps(theirs) }) // the renewal succeeded, an hour ago
		writer.fails(call{Op: "write", FD: fd, Data: "late\n"}, unix.EIO)
		writer.fails(call{Op: "close", FD: fd}, unix.EIO)
		check(t, "mine\ntheirs\n")
	})
	t.Run("between a grant and its answer", func(t *testing.T) {
		v.write("f", "")
		writer := newAgent(t)
		var pending <-chan result
		s.during(sent, func() { pending = writer.start(call{Op: "open", Path: s.path("f"), Flags: wronly | appends}) },
			func() { s.sleeps(theirs) })
		r := await(t, "open", pending)
		if r.Errno != 0 {
			t.Fatalf("open: %v", r.Err())
		}
		es := v.ls()
		if len(es) != 1 || es[0].State != "held" || es[0].PID != writer.pid() {
			t.Errorf("the program that has it open does not hold it: %+v", es)
		}
		writer.must(call{Op: "write", FD: r.N, Data: "mine\n"})
		writer.must(call{Op: "close", FD: r.N})
		check(t, "theirs\nmine\n")
	})
	t.Run("while it waits", func(t *testing.T) {
		v.write("f", "")
		holder, writer := newAgent(t), newAgent(t)
		fd := holder.open(b.path("f"), wronly|appends)
		pending := writer.start(call{Op: "open", Path: s.path("f"), Flags: wronly | appends})
		v.waitFor("f")
		s.sleeps(func() {
			for _, e := range v.ls() {
				if e.Node == "s" {
					v.revokeSession(e.Session)
				}
			}
			holder.must(call{Op: "write", FD: fd, Data: "theirs\n"})
		})
		v.waitFor("f") // anew
		holder.must(call{Op: "write", FD: fd, Data: "and more\n"})
		holder.must(call{Op: "close", FD: fd})
		r := await(t, "open", pending)
		writer.must(call{Op: "write", FD: r.N, Data: "mine\n"})
		writer.must(call{Op: "close", FD: r.N})
		check(t, "theirs\nand more\nmine\n")
	})
}

// A write that was on its way to the volume when the machine fell asleep lands
// when it lands; the program is told that nobody knows.
func TestSystemSuspendDuringAWrite(t *testing.T) {
	v := newVolume(t, "--embedded")
	at := newTurnstile(t)
	v.under(func(b below) gofs.InodeEmbedder { return &heldWrites{b, at} })
	s := v.staged("s")
	t.Cleanup(at.end)
	v.write("f", "")
	writer := newAgent(t)
	fd := writer.open(s.path("f"), wronly)
	at.shut.Store(true)
	pending := writer.start(call{Op: "write", FD: fd, Data: "x"})
	let := at.next()
	at.shut.Store(false)
	s.ahead.Add(int64(time.Hour))
	v.revoke()
	let()
	if r := await(t, "the write", pending); r.Errno != unix.EIO {
		t.Errorf("the write: %v, want EIO", r.Err())
	}
	writer.fails(call{Op: "write", FD: fd, Data: "y"}, unix.EIO)
	writer.fails(call{Op: "close", FD: fd}, unix.EIO)
	if got := v.read("f"); got != "x" {
		t.Errorf("the file holds %q", got)
	}
}
