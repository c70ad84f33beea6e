package faults

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/history"
	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
)

// writersOn returns the writers on a mount that the test has not ended.
func writersOn(tr *history.Trial, m *lab.Mount) (found []*history.Recorded) {
	for _, w := range tr.Writers {
		if w.Mount == m.Name && !w.Ended {
			found = append(found, w)
		}
	}
	return found
}

// Daemons are killed while programs on all mounts write. The others go on when
// the dead one's lease has ended, or as soon as it is mounted again, whatever it
// was about to do. (docs/SEMANTICS.md, rule 12.)
func TestKilledUnderLoad(t *testing.T) {
	lab.Over(t, testKilledUnderLoad, lab.Local, lab.InLeases.Alone().ForLong())
}

func testKilledUnderLoad(t *testing.T, on lab.Setup) {
	c := on.NewService(t)
	tr := history.New(t, c, "--wait", "-1", "--ttl", lab.ShortTTL.String())
	mounts := []*lab.Mount{tr.Mount("a"), tr.Mount("b"), tr.Mount("c")}
	for _, m := range mounts {
		tr.Work(m, 2)
	}
	tr.GoesOn("before the fault")
	for round, end := 0, time.Now().Add(longtest.For(t)); round < 2 || time.Now().Before(end); round++ {
		victim := mounts[round%len(mounts)]
		killed := time.Now()
		victim.Kill()
		for _, w := range writersOn(tr, victim) {
			w.Kill() // hangs if it cannot die
			w.Ended = true
		}
		how := "without the dead one"
		if round%2 == 0 { // its successor does not wait for the lease to end
			how = "with the dead one's successor"
			mounts[round%len(mounts)] = tr.Mount(victim.Name)
		}
		tr.GoesOn(how)
		t.Logf("%s, all others have had the files %.2f s after kill -9", how, time.Since(killed).Seconds())
		if round%2 != 0 {
			mounts[round%len(mounts)] = tr.Mount(victim.Name)
		}
		tr.Work(mounts[round%len(mounts)], 2)
		tr.GoesOn("with it again")
	}
	tr.Finish()
}

// A daemon is frozen while programs write, for longer than its lease, and thaws.
// Its programs had a file open, and go on writing to it the moment it thaws:
// others have had it meanwhile. (docs/SEMANTICS.md, rule 10.)
func TestThawedUnderLoad(t *testing.T) {
	lab.Over(t, testThawedUnderLoad, lab.Local, lab.InLeases.Alone().ForLong())
}

func testThawedUnderLoad(t *testing.T, on lab.Setup) {
	c := on.NewService(t)
	tr := history.New(t, c, "--wait", "-1", "--ttl", lab.ShortTTL.String())
	a, b := tr.Mount("a"), tr.Mount("b")
	tr.Work(a, 3)
	tr.Work(b, 2)
	tr.Stay(a) // one of the others may have only its close() before it when it is stopped
	tr.GoesOn("before the fault")
	for round, end := 0, time.Now().Add(longtest.For(t)); round < 1 || time.Now().Before(end); round++ {
		// Not in the middle of a write: see what is not promised. So the programs
		// are stopped first, one of them with a file open.
		lab.Eventually(t, "a program is stopped with a file open", func() bool {
			for _, w := range writersOn(tr, a) {
				lab.Freeze(t, w.Cmd.Process.Pid)
			}
			for _, w := range writersOn(tr, a) {
				if w.Config.Most > 0 && hasFile(tr, w) {
					return true
				}
			}
			thawMount(tr, a)
			return false
		})
		since := history.Monotonic()
		lab.Freeze(t, a.Cmd.Process.Pid)
		thawMount(tr, a) // they meet a daemon that does not answer
		for _, w := range writersOn(tr, a) {
			w.Ended = true
		}
		tr.GoesOn("without the frozen one") // the files it has locked, too
		lab.Eventually(t, "the frozen one's session is over", func() bool {
			return !slices.ContainsFunc(tr.LS(), func(e lab.Entry) bool { return e.Node == a.Name })
		})
		for _, w := range tr.Writers {
			w.Ended = false
		}
		if err := a.Cmd.Process.Signal(unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		tr.Saw(since, "the program that stays is told", func(o history.Op) bool { return o.File == "of-a" && o.Kind == history.Wrote && o.Errno == unix.EIO })
		tr.GoesOn("with it again")
	}
	tr.Finish()
}

// hasFile reports whether a stopped program has a file open, by the name that others open.
func hasFile(tr *history.Trial, w *history.Recorded) bool {
	ops := w.History()
	if len(ops) == 0 {
		return false
	}
	last := ops[len(ops)-1]
	if last.Kind == history.Closed || last.Kind == history.Acquired && (last.Return == 0 || last.Errno != 0) {
		return false // an entry of its last open may still be there
	}
	return slices.ContainsFunc(tr.LS(), func(e lab.Entry) bool {
		return e.State == "held" && e.PID == w.Cmd.Process.Pid && e.Path == last.File
	})
}

func thawMount(tr *history.Trial, m *lab.Mount) {
	for _, w := range writersOn(tr, m) {
		_ = w.Cmd.Process.Signal(unix.SIGCONT)
	}
}

// A daemon that thaws has requests of all kinds before it, for files that it has
// lost. None of them changes anything.
func TestThawedDaemonChangesNothing(t *testing.T) {
	t.Parallel()
	const size = 4096
	late := strings.Repeat("late", size/4)
	cases := map[string]struct {
		flags int
		mmap  bool
		call  lab.Call // with the FD of the open file
	}{
		"write":              {flags: unix.O_WRONLY, call: lab.Call{Op: "pwrite", Data: late}},
		"write of many":      {flags: unix.O_RDWR, call: lab.Call{Op: "pwrite", Off: 1, Data: strings.Repeat(late, 300)}},
		"append":             {flags: unix.O_WRONLY | unix.O_APPEND, call: lab.Call{Op: "write", Data: late}},
		"append and read":    {flags: unix.O_RDWR | unix.O_APPEND, call: lab.Call{Op: "write", Data: late}},
		"ftruncate":          {flags: unix.O_WRONLY, call: lab.Call{Op: "ftruncate", Off: 1}},
		"fallocate":          {flags: unix.O_RDWR, call: lab.Call{Op: "fallocate", N: 3 * size}},
		"copy":               {flags: unix.O_RDWR, call: lab.Call{Op: "copy", Off: size, N: size}},
		"fsync":              {flags: unix.O_RDWR, call: lab.Call{Op: "fsync"}},
		"close":              {flags: unix.O_WRONLY, call: lab.Call{Op: "close"}},
		"mapping":            {flags: unix.O_RDWR, mmap: true, call: lab.Call{Op: "msync"}},
		"mapping and append": {flags: unix.O_RDWR | unix.O_APPEND, mmap: true, call: lab.Call{Op: "msync"}},
	}
	v := lab.NewVolume(t, "--wait", "-1")
	server, a := v.Mount("server"), v.Mount("a", "--ttl", lab.ShortTTL.String()) // the etcd is not frozen with a
	programs, fds, pending := make(map[string]*lab.Agent), make(map[string]int), make(map[string]<-chan lab.Result)
	for name, c := range cases {
		v.Write(name, strings.Repeat("-", size))
		p := lab.NewAgent(t)
		fd := p.Open(a.Path(name), c.flags)
		if c.mmap {
			p.Must(lab.Call{Op: "mmap", FD: fd, N: size})
			p.Must(lab.Call{Op: "store", FD: fd, Data: "mine"}) // is dirty from here on
		}
		programs[name], fds[name] = p, fd
	}
	lab.Freeze(t, a.Cmd.Process.Pid)
	for name, c := range cases {
		if c.mmap {
			programs[name].Must(lab.Call{Op: "store", FD: fds[name], Data: "late"})
		}
		c.call.FD = fds[name]
		pending[name] = programs[name].Start(c.call)
	}
	other := lab.NewAgent(t)
	theirs := "theirs" + strings.Repeat(".", size)
	for name := range cases {
		fd := other.Open(server.Path(name), unix.O_WRONLY|unix.O_TRUNC)
		other.Must(lab.Call{Op: "write", FD: fd, Data: theirs})
		other.Must(lab.Call{Op: "close", FD: fd})
	}
	if err := a.Cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for name, c := range cases {
		r := lab.Await(t, name, pending[name])
		// What changes nothing is not held up: it may come before the loss is known.
		if harmless := c.call.Op == "fsync" || c.call.Op == "close"; r.Errno != unix.EIO && (r.Errno != 0 || !harmless) {
			t.Errorf("%s: %v, want EIO", name, r.Err())
		}
		if c.call.Op != "close" {
			if r.Errno == 0 {
				lab.Eventually(t, "the loss is known", a.LostItsSession)
			}
			programs[name].Fails(lab.Call{Op: "close", FD: fds[name]}, unix.EIO)
		}
		programs[name].Kill() // and its mappings
	}
	for name := range cases {
		if got := v.Read(name); got != theirs {
			t.Errorf("%s: the file holds %.20q…, %d bytes", name, got, len(got))
		}
		// An open on the thawed mount sees, and gets, what is there.
		fd := other.Open(a.Path(name), unix.O_RDWR)
		if r := other.Do(lab.Call{Op: "pread", FD: fd, N: 6}); r.Data != "theirs" {
			t.Errorf("%s: read on the thawed mount: %q, %v", name, r.Data, r.Err())
		}
		other.Must(lab.Call{Op: "close", FD: fd})
	}
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}

// A daemon is frozen in the middle of calls that change names. When it thaws, others have the files:
// none of their names changes, although the calls act with rights that are looked up on the way.
// (docs/SEMANTICS.md, rule 10.) Of some hundred calls one may be stopped between the check and the
// system call, a few instructions apart. (The same, "Fencing has limits".)
func TestThawedDaemonChangesNoNames(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--wait", "-1")
	server, a := v.Mount("server"), v.Mount("a", "--ttl", lab.ShortTTL.String())
	other := lab.NewAgent(t)
	const user, group = 1000, 2000
	late := 0
	for round := range longtest.Seeds(t, 1, 2) {
		var users []*lab.Agent
		var dirs []string
		var calls []lab.Call
		var failures []<-chan lab.Result
		for i := range 60 {
			dir := fmt.Sprint("d", round, "-", i)
			path := v.InSource(dir)
			if err := errors.Join(os.Mkdir(path, 0o755), os.Chown(path, 0, group), os.Chmod(path, 0o775)); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"f", "g"} {
				v.Write(filepath.Join(dir, name), "")
				if err := os.Chown(filepath.Join(path, name), user, user); err != nil {
					t.Fatal(err)
				}
			}
			f, g, h := a.Path(filepath.Join(dir, "f")), a.Path(filepath.Join(dir, "g")), a.Path(filepath.Join(dir, "h"))
			p := v.NewUser(user, group)
			c := lab.Call{Op: "untilfailure", Calls: [][]lab.Call{
				{{Op: "rename", Path: f, Path2: h}, {Op: "rename", Path: h, Path2: f}},
				{{Op: "exchange", Path: f, Path2: g}},
				{{Op: "link", Path: f, Path2: h}, {Op: "unlink", Path: h}},
			}[i%3]}
			users, dirs, calls, failures = append(users, p), append(dirs, dir), append(calls, c), append(failures, p.Start(c))
		}
		found := func() map[string]uint64 {
			names := make(map[string]uint64)
			for _, dir := range dirs {
				entries, err := os.ReadDir(v.InSource(dir))
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range entries {
					var st unix.Stat_t
					name := filepath.Join(dir, e.Name())
					if unix.Lstat(v.InSource(name), &st) == nil { // else it has changed since
						names[name] = st.Ino
					}
				}
			}
			return names
		}
		began := found()
		lab.Eventually(t, "names change", func() bool {
			for i, p := range users {
				if len(failures[i]) > 0 { // the lease has ended, or the lock service was slow
					<-failures[i]
					failures[i] = p.Start(calls[i])
				}
			}
			return !maps.Equal(began, found())
		})
		lab.Freeze(t, a.Cmd.Process.Pid)
		t.Cleanup(func() { _ = a.Cmd.Process.Signal(unix.SIGCONT) }) // before the users are killed
		before := found()
		var fds []int
		for name := range before {
			fds = append(fds, other.Open(server.Path(name), unix.O_WRONLY))
		}
		if err := a.Cmd.Process.Signal(unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		told := make(map[string]unix.Errno) // by directory
		for i, p := range users {
			told[dirs[i]] = p.Interrupt(failures[i]).Errno // those that wait for what others hold have EINTR
			p.Kill()
		}
		after := found()
		changed := make(map[string]bool) // directories
		for _, names := range []map[string]uint64{before, after} {
			for name := range names {
				if before[name] != after[name] {
					changed[filepath.Dir(name)] = true
				}
			}
		}
		for dir := range changed {
			if told[dir] != unix.EIO {
				t.Errorf("in %s what others have open for write has another name now, and the program was told %v", dir, told[dir])
			}
		}
		late += len(changed)
		for _, fd := range fds {
			other.Must(lab.Call{Op: "close", FD: fd})
		}
	}
	if late > 1 {
		t.Errorf("in %d directories what others have open for write has other names now", late)
	}
}
