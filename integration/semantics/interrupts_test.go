package semantics

import (
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// An open is interrupted at each step of the acquisition of its lock, by a
// signal that the program catches and by SIGKILL. The program is free at once,
// whatever the lock service has done and will do; nothing of it stays in the
// service, and the next in line gets the lock. (docs/SEMANTICS.md, rule 5.)
func TestInterruptAtEveryStep(t *testing.T) {
	t.Parallel()
	for name, interrupt := range map[string]func(t *testing.T, victim *lab.Agent, pending <-chan lab.Result){
		"caught signal": func(t *testing.T, victim *lab.Agent, pending <-chan lab.Result) {
			if r := victim.Interrupt(pending); r.Errno != unix.EINTR {
				t.Errorf("an interrupted open got %v, want EINTR", r.Err())
			}
		},
		"SIGKILL": func(t *testing.T, victim *lab.Agent, _ <-chan lab.Result) { victim.Kill() }, // hangs if it cannot die
	} {
		t.Run(name, func(t *testing.T) {
			v := lab.NewVolume(t, "--wait", "-1")
			// A mount that asked again would be in line before the next one is, on a slow machine.
			a, b, s := v.Mount("a"), v.Mount("b"), v.Staged("s", time.Hour)
			v.Write("f", "")
			holder, next := lab.NewAgent(t), lab.NewAgent(t)

			// left checks that only these opens are left: of one that holds, and of
			// those that wait.
			left := func(when string, n int) {
				t.Helper()
				// Whatever s still had to do comes before what it does now.
				p := lab.NewAgent(t)
				p.Must(lab.Call{Op: "close", FD: p.Open(s.Path("barrier"), unix.O_WRONLY|unix.O_CREAT)})
				p.Must(lab.Call{Op: "unlink", Path: s.Path("barrier")})
				lab.Eventually(t, "nothing is left "+when, func() bool { return len(v.LS()) == n })
			}
			open := lab.Call{Op: "open", Path: s.Path("f"), Flags: unix.O_WRONLY}
			for _, at := range []lab.Stage{lab.Sending, lab.Sent} {
				t.Run(string(at), func(t *testing.T) {
					victim := lab.NewAgent(t)
					var pending <-chan lab.Result
					s.During(at, func() { pending = victim.Start(open) }, func() { interrupt(t, victim, pending) })
					left("of a free lock", 0)
				})
			}
			for _, at := range []lab.Stage{lab.Sending, lab.Sent, "while it waits", lab.Granted} {
				t.Run(string(at)+", behind a holder", func(t *testing.T) {
					fd := holder.Open(a.Path("f"), unix.O_WRONLY)
					victim := lab.NewAgent(t)
					var pending, queued <-chan lab.Result
					begin := func() { pending = victim.Start(open) }
					strike := func() { interrupt(t, victim, pending) }
					queue := func(waiting int) {
						queued = next.Start(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY})
						lab.Eventually(t, "the next one waits", func() bool { return v.Waiting("f") == waiting })
					}
					switch at {
					case lab.Sending:
						s.During(at, begin, func() { queue(1); strike() })
					case lab.Sent:
						s.During(at, begin, func() { queue(2); strike() })
					case lab.Granted:
						s.During(at, func() {
							begin()
							v.WaitFor("f")
							queue(2)
							holder.Must(lab.Call{Op: "close", FD: fd})
						}, strike)
					default:
						begin()
						v.WaitFor("f")
						queue(2)
						strike()
					}
					if at != lab.Granted {
						left("but the holder and the next", 2)
						holder.Must(lab.Call{Op: "close", FD: fd})
					}
					r := lab.Await(t, "the next open", queued)
					if r.Errno != 0 {
						t.Fatalf("the next open: %v", r.Err())
					}
					left("but the next", 1)
					next.Must(lab.Call{Op: "close", FD: r.N})
					left("at the end", 0)
				})
			}
		})
	}
}

// After the grant, while the file is being opened on the volume, an interrupt
// comes too late: the program has the file, unless it dies.
func TestInterruptAfterTheGrant(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--wait", "-1", "--embedded")
	at := lab.NewTurnstile(t)
	v.Under(func(b lab.Below) gofs.InodeEmbedder { return &heldOpens{b, at} })
	a, b := v.Mount("a"), v.Mount("b")
	t.Cleanup(at.End)
	v.Write("f", "")
	next := lab.NewAgent(t)
	open := lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY}
	for _, kill := range []bool{false, true} {
		victim := lab.NewAgent(t)
		at.Shut.Store(true)
		pending := victim.Start(open)
		let := at.Next()
		at.Shut.Store(false)
		queued := next.Start(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY})
		v.WaitFor("f")
		if kill {
			if err := victim.Cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			let()
			victim.Kill()
		} else {
			victim.Signal()
			let()
			switch r := lab.Await(t, "open", pending); r.Errno {
			case 0:
				victim.Must(lab.Call{Op: "write", FD: r.N, Data: "x"})
				victim.Must(lab.Call{Op: "close", FD: r.N})
			case unix.EINTR:
			default:
				t.Errorf("open: %v", r.Err())
			}
		}
		r := lab.Await(t, "the next open", queued)
		if r.Errno != 0 {
			t.Fatalf("the next open: %v", r.Err())
		}
		next.Must(lab.Call{Op: "close", FD: r.N})
		lab.Eventually(t, "nothing is left", func() bool { return len(v.LS()) == 0 })
	}
}
