package semantics

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// A mount of a volume ends at once the session of a mount that died on the same machine, long before
// the lease would end. It does not end that of a mount that only does not answer.
func TestSuccessor(t *testing.T) { lab.Over(t, testSuccessor, lab.Local, lab.InLeases) }

func testSuccessor(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--ttl", "5m", "--wait", "-1")
	b, a, c := v.Mount("b"), v.Mount("a"), v.Mount("c")
	dying, frozen, waiter := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	fd := dying.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	dying.Must(lab.Call{Op: "write", FD: fd, Data: "last words\n"})
	kept := frozen.Open(c.Path("g"), unix.O_WRONLY|unix.O_CREAT)
	granted := waiter.Start(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY | unix.O_APPEND})
	lab.Eventually(t, "somebody waits", func() bool { return v.Waiting("f") == 1 })
	a.Kill()
	lab.Freeze(t, c.Cmd.Process.Pid)

	mountSuccessor(t, v, "a") // await gives up long before the lease ends
	r := lab.Await(t, "the lock of a dead mount", granted)
	if r.Errno != 0 {
		t.Fatalf("the waiter got %v", r.Err())
	}
	waiter.Must(lab.Call{Op: "write", FD: r.N, Data: "next\n"})
	waiter.Must(lab.Call{Op: "close", FD: r.N})
	if got := v.Read("f"); got != "last words\nnext\n" {
		t.Errorf("the file holds %q", got)
	}
	if err := c.Cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	frozen.Must(lab.Call{Op: "write", FD: kept, Data: "x"})
	frozen.Must(lab.Call{Op: "close", FD: kept})
	if got := v.Read("g"); got != "x" {
		t.Errorf("the frozen mount's file holds %q", got)
	}
	alive, err := filepath.Glob(filepath.Join(v.State, "alive", "*", "*"))
	if err != nil || len(alive) != 3 {
		t.Errorf("marks of living mounts: %v, %v; want 3", alive, err)
	}
	for _, m := range []*lab.Mount{b, c} {
		m.Stop()
	}
	left := slices.DeleteFunc(alive, func(path string) bool {
		_, err := os.Stat(path)
		return os.IsNotExist(err)
	})
	if len(left) != 1 {
		t.Errorf("marks left after two of three have ended: %q", left)
	}
}

// mountSuccessor mounts a volume in the place of a dead mount, and again while a busy disk leaves it too
// little time to end that one's sessions.
func mountSuccessor(t *testing.T, v *lab.Volume, name string) {
	t.Helper()
	for range 5 {
		m := v.Mount(name)
		lab.Eventually(t, "its log is read", func() bool { return strings.Contains(m.Log.String(), "msg=mounted ") })
		if !m.Said("a mount has died here; its locks end with their lease") && !m.Said("cannot look for mounts that have died here") {
			return
		}
		m.Stop()
	}
	t.Fatal("no mount ends the sessions of the dead one in time")
}

// A mount of more locks than one session takes has several, which end together.
func TestSuccessorOfManyLocks(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--ttl", "5m", "--wait", "-1")
	a, b := v.Mount("a"), v.Mount("b")
	const files = 2510 // of two names, which take two locks: a session has room for 5,000
	dying, next := lab.NewAgent(t), lab.NewAgent(t)
	name := func(i int) string { return "f" + strconv.Itoa(i) }
	for i := range files {
		v.Write(name(i), "")
		if err := os.Link(filepath.Join(v.Source, name(i)), filepath.Join(v.Source, "g"+strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
		dying.Open(a.Path(name(i)), unix.O_WRONLY)
	}
	sessions := make(map[string]bool)
	for _, e := range v.LS() {
		sessions[e.Session] = true
	}
	if len(sessions) < 2 {
		t.Fatalf("all locks are on one session: nothing is tested")
	}
	a.Kill()
	mountSuccessor(t, v, "a")
	for _, i := range []int{0, files / 2, files - 1} {
		granted := next.Start(lab.Call{Op: "open", Path: b.Path(name(i)), Flags: unix.O_WRONLY})
		if r := lab.Await(t, "a lock of a dead mount", granted); r.Errno != 0 {
			t.Errorf("%s: %v", name(i), r.Err())
		}
	}
}
