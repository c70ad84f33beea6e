package integration

import (
	"testing"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sys/unix"
)

// An open is interrupted at each step of the acquisition of its lock, by a
// signal that the program catches and by SIGKILL. The program is free at once,
// whatever the lock service has done and will do; nothing of it stays in the
// service, and who waits behind it is next. (docs/SEMANTICS.md, rule 5.)
func TestInterruptAtEveryStep(t *testing.T) {
	for name, interrupt := range map[string]func(t *testing.T, victim *agent, pending <-chan result){
		"caught signal": func(t *testing.T, victim *agent, pending <-chan result) {
			if r := victim.interrupt(pending); r.Errno != unix.EINTR {
				t.Errorf("an interrupted open got %v, want EINTR", r.Err())
			}
		},
		"SIGKILL": func(t *testing.T, victim *agent, _ <-chan result) { victim.kill() }, // hangs if it cannot die
	} {
		t.Run(name, func(t *testing.T) {
			v := newVolume(t, "--wait", "-1")
			a, b, s := v.mount("a"), v.mount("b"), v.staged("s")
			v.write("f", "")
			holder, next := newAgent(t), newAgent(t)

			// left checks that only these opens are left: of one that holds, and of
			// those that wait.
			left := func(when string, n int) {
				t.Helper()
				// Whatever s still had to do comes before what it does now.
				p := newAgent(t)
				p.must(call{Op: "close", FD: p.open(s.path("barrier"), wronly|create)})
				p.must(call{Op: "unlink", Path: s.path("barrier")})
				eventually(t, "nothing is left "+when, func() bool { return len(v.ls()) == n })
			}
			open := call{Op: "open", Path: s.path("f"), Flags: wronly}
			for _, at := range []stage{sending, sent} {
				t.Run(string(at), func(t *testing.T) {
					victim := newAgent(t)
					var pending <-chan result
					s.during(at, func() { pending = victim.start(open) }, func() { interrupt(t, victim, pending) })
					left("of a free lock", 0)
				})
			}
			for _, at := range []stage{sending, sent, "while it waits", granted} {
				t.Run(string(at)+", behind a holder", func(t *testing.T) {
					fd := holder.open(a.path("f"), wronly)
					victim := newAgent(t)
					var pending, queued <-chan result
					begin := func() { pending = victim.start(open) }
					strike := func() { interrupt(t, victim, pending) }
					queue := func(waiting int) {
						queued = next.start(call{Op: "open", Path: b.path("f"), Flags: wronly})
						eventually(t, "the next one waits", func() bool { return v.waiting("f") == waiting })
					}
					switch at {
					case sending:
						s.during(at, begin, func() { queue(1); strike() })
					case sent:
						s.during(at, begin, func() { queue(2); strike() })
					case granted:
						s.during(at, func() {
							begin()
							v.waitFor("f")
							queue(2)
							holder.must(call{Op: "close", FD: fd})
						}, strike)
					default:
						begin()
						v.waitFor("f")
						queue(2)
						strike()
					}
					if at != granted {
						left("but the holder and the next", 2)
						holder.must(call{Op: "close", FD: fd})
					}
					r := await(t, "the next open", queued)
					if r.Errno != 0 {
						t.Fatalf("the next open: %v", r.Err())
					}
					left("but the next", 1)
					next.must(call{Op: "close", FD: r.N})
					left("at the end", 0)
				})
			}
		})
	}
}

// After the grant, while the file is being opened on the volume, an interrupt
// comes too late: the program has the file, unless it dies.
func TestInterruptAfterTheGrant(t *testing.T) {
	v := newVolume(t, "--wait", "-1", "--embedded")
	at := newTurnstile(t)
	v.under(func(b below) gofs.InodeEmbedder { return &heldOpens{b, at} })
	a, b := v.mount("a"), v.mount("b")
	t.Cleanup(at.end)
	v.write("f", "")
	next := newAgent(t)
	open := call{Op: "open", Path: a.path("f"), Flags: wronly}
	for _, kill := range []bool{false, true} {
		victim := newAgent(t)
		at.shut.Store(true)
		pending := victim.start(open)
		let := at.next()
		at.shut.Store(false)
		queued := next.start(call{Op: "open", Path: b.path("f"), Flags: wronly})
		v.waitFor("f")
		if kill {
			if err := victim.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			let()
			victim.kill()
		} else {
			victim.signal()
			let()
			switch r := await(t, "open", pending); r.Errno {
			case 0:
				victim.must(call{Op: "write", FD: r.N, Data: "x"})
				victim.must(call{Op: "close", FD: r.N})
			case unix.EINTR:
			default:
				t.Errorf("open: %v", r.Err())
			}
		}
		r := await(t, "the next open", queued)
		if r.Errno != 0 {
			t.Fatalf("the next open: %v", r.Err())
		}
		next.must(call{Op: "close", FD: r.N})
		eventually(t, "nothing is left", func() bool { return len(v.ls()) == 0 })
	}
}
