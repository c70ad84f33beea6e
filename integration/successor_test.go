package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// Who mounts a volume on a machine where a mount of it has died ends the dead
// one's session at once, long before its lease would; not that of one which
// only does not answer.
func TestSuccessor(t *testing.T) { over(t, testSuccessor, local, inLeases) }

func testSuccessor(t *testing.T, on setup) {
	v := on.newVolume(t, "--ttl", "5m", "--wait", "-1")
	b, a, c := v.mount("b"), v.mount("a"), v.mount("c")
	dying, frozen, waiter := newAgent(t), newAgent(t), newAgent(t)
	fd := dying.open(a.path("f"), wronly|create)
	dying.must(call{Op: "write", FD: fd, Data: "last words\n"})
	kept := frozen.open(c.path("g"), wronly|create)
	granted := waiter.start(call{Op: "open", Path: b.path("f"), Flags: wronly | appends})
	eventually(t, "somebody waits", func() bool { return v.waiting("f") == 1 })
	a.kill()
	freeze(t, c.cmd.Process.Pid)

	v.mount("a") // await gives up long before the lease ends
	r := await(t, "the lock of a dead mount", granted)
	if r.Errno != 0 {
		t.Fatalf("the waiter got %v", r.Err())
	}
	waiter.must(call{Op: "write", FD: r.N, Data: "next\n"})
	waiter.must(call{Op: "close", FD: r.N})
	if got := v.read("f"); got != "last words\nnext\n" {
		t.Errorf("the file holds %q", got)
	}
	if err := c.cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	frozen.must(call{Op: "write", FD: kept, Data: "x"})
	frozen.must(call{Op: "close", FD: kept})
	if got := v.read("g"); got != "x" {
		t.Errorf("the frozen mount's file holds %q", got)
	}
	alive, err := filepath.Glob(filepath.Join(v.state, "alive", "*", "*"))
	if err != nil || len(alive) != 3 {
		t.Errorf("marks of living mounts: %v, %v; want 3", alive, err)
	}
	for _, m := range []*mount{b, c} {
		m.stop()
	}
	left := slices.DeleteFunc(alive, func(path string) bool {
		_, err := os.Stat(path)
		return os.IsNotExist(err)
	})
	if len(left) != 1 {
		t.Errorf("marks left after two of three have ended: %q", left)
	}
}

// A mount of more locks than one session takes has several, which end together.
func TestSuccessorOfManyLocks(t *testing.T) {
	v := newVolume(t, "--ttl", "5m", "--wait", "-1")
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	const files = 2510 // of two names, which take two locks: a session has room for 5,000
	dying, next := newAgent(t), newAgent(t)
	name := func(i int) string { return "f" + strconv.Itoa(i) }
	for i := range files {
		v.write(name(i), "")
		if err := os.Link(filepath.Join(v.source, name(i)), filepath.Join(v.source, "g"+strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
		dying.open(a.path(name(i)), wronly)
	}
	sessions := make(map[string]bool)
	for _, e := range v.ls() {
		sessions[e.Session] = true
	}
	if len(sessions) < 2 {
		t.Fatalf("all locks are on one session: nothing is tested")
	}
	a.kill()
	v.mount("a")
	for _, i := range []int{0, files / 2, files - 1} {
		granted := next.start(call{Op: "open", Path: b.path(name(i)), Flags: wronly})
		if r := await(t, "a lock of a dead mount", granted); r.Errno != 0 {
			t.Errorf("%s: %v", name(i), r.Err())
		}
	}
}
