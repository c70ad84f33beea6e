package semantics

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// A lock is broken while its holder's change hangs in the volume. Nobody else gets it before the change
// has landed.
func TestBreakAwaitsChangesUnderWay(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("root can mount and freeze a volume")
	}
	for name, c := range map[string]struct {
		change func(m *lab.Mount, p *lab.Agent) lab.Call
		in     int // the system call that the daemon makes for it
		errno  unix.Errno
	}{
		"write": {
			func(m *lab.Mount, p *lab.Agent) lab.Call {
				return lab.Call{Op: "write", FD: p.Open(m.Path("f"), unix.O_WRONLY), Data: "late"}
			}, unix.SYS_PWRITE64, unix.EIO},
		"truncate": {
			func(m *lab.Mount, _ *lab.Agent) lab.Call {
				return lab.Call{Op: "truncate", Path: m.Path("f"), N: 1}
			}, unix.SYS_FTRUNCATE, unix.EIO},
		"unlink": {
			func(m *lab.Mount, _ *lab.Agent) lab.Call {
				return lab.Call{Op: "unlink", Path: m.Path("f")}
			}, unix.SYS_UNLINKAT, unix.EIO},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := lab.NewVolume(t)
			freeze, thaw := onExt4(v)
			v.Write("f", "was")
			a, b := v.Mount("a"), v.Mount("b")
			holder, next := lab.NewAgent(t), lab.NewAgent(t)
			call := c.change(a, holder)
			thawed := false
			t.Cleanup(func() {
				if !thawed {
					thaw()
				}
			})
			freeze()
			pending := holder.StartUntil(call, "the volume is asked for the change", func() bool { return lab.IsWithin(t, a.Cmd.Process.Pid, c.in) })
			// The holder's mount gives the lock up a second after it is asked.
			lab.Eventually(t, "the holder's mount is asked", func() bool {
				if status, _, stderr := lab.Outcome(t, v.Command("break", "--endpoints", v.Endpoint(), "--timeout", "10s", "--reason", "test", b.Path("f"))); status == 0 {
					t.Errorf("the lock was given up while the change was under way: %s", stderr)
				}
				return strings.Contains(a.Log.String(), "lock broken")
			})
			if entries := v.LS(); len(entries) != 1 || entries[0].Path != "f" {
				t.Errorf("the lock's entries are %v, want the holder's", entries)
			}
			thaw()
			thawed = true
			if got := lab.Await(t, "the change", pending); got.Errno != c.errno {
				t.Errorf("the change: %v, want %v", got.Err(), c.errno)
			}
			lab.Eventually(t, "the lock is given up", func() bool {
				r := next.Do(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY | unix.O_NONBLOCK})
				return r.Errno == 0 || r.Errno == unix.ENOENT
			})
		})
	}
}

// The daemon that has to give a broken lock back is killed while the holder's write hangs in its kernel.
// Nobody gets the lock before that write has ended, and the next daemon gives it back then.
func TestBreakBeforeADeath(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("root can mount and freeze a volume")
	}
	v := lab.NewVolume(t)
	freeze, thaw := onExt4(v)
	v.Write("f", "was")
	b := v.Mount("b") // which serves etcd
	a := lab.Supervise(v.Mount("a", "--supervise", "--ttl", "5m"))
	thawed := false
	t.Cleanup(func() {
		if !thawed {
			thaw()
		}
	})
	holder, next := lab.NewAgent(t), lab.NewAgent(t)
	fd := holder.Open(a.Path("f"), unix.O_WRONLY)
	waiting := next.Start(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_RDWR})
	v.WaitFor("f")
	a.BecomesSteady()
	worker := a.Serving()
	freeze()
	pending := holder.StartUntil(lab.Call{Op: "write", FD: fd, Data: "late"}, "the volume is asked to write", func() bool { return lab.IsWithin(t, worker, unix.SYS_PWRITE64) })
	refused := func() {
		if status, _, stderr := lab.Outcome(t, v.Command("break", "--endpoints", v.Endpoint(), "--timeout", "3s", "--reason", "test", b.Path("f"))); status == 0 {
			t.Errorf("the lock was given up while the write was under way: %s", stderr)
		}
	}
	lab.Eventually(t, "the holder's mount is asked", func() bool {
		refused()
		return strings.Contains(a.Log.String(), "lock broken")
	})
	a.Dies(func() {
		if err := unix.Kill(worker, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		refused() // longer than a lock waits for what the volume does at once
		if len(waiting) > 0 {
			t.Error("the next has the lock while the write is under way")
		}
		thaw()
		thawed = true
	})
	if got := lab.Await(t, "the write", pending); got.Errno != unix.EIO {
		t.Errorf("the write: %v, want EIO", got.Err())
	}
	opened := lab.Await(t, "the next", waiting)
	if opened.Errno != 0 {
		t.Fatalf("the next: %v", opened.Err())
	}
	next.Must(lab.Call{Op: "pwrite", FD: opened.N, Data: "mine"})
	holder.Fails(lab.Call{Op: "write", FD: fd, Data: "later"}, unix.EIO)
	next.Must(lab.Call{Op: "close", FD: opened.N})
	if got := v.Read("f"); got != "mine" {
		t.Errorf("the file holds %q", got)
	}
}
