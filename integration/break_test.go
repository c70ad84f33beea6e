package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
)

// breaks counts the breaks that are on record.
func (v *volume) breaks() int64 {
	v.t.Helper()
	r, err := v.etcd().Get(v.t.Context(), "/lockfs/default/source/break/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		v.t.Fatal(err)
	}
	return r.Count
}

// The holder of a lock that is broken gets EIO from then on, and who stands in
// line is granted it when the holder's last write has landed. Who broke it, and
// why, is on record. (docs/SEMANTICS.md, rule 25.)
func TestBreak(t *testing.T) {
	v := newVolume(t, "--wait", "-1")
	v.inMemory()
	v.env = append(v.env, "SUDO_USER=alice")
	a, b := v.mount("a"), v.mount("b")
	writer, bystander, waiter := newAgent(t), newAgent(t), newAgent(t)
	fd := writer.open(a.path("f"), rdwr|create)
	kept := bystander.open(a.path("g"), wronly|create)
	writing := writer.start(call{Op: "repeat", N: -1, Calls: []call{{Op: "pwrite", FD: fd, Data: "late"}}})
	opening := waiter.start(call{Op: "open", Path: b.path("f"), Flags: wronly})
	v.waitFor("f")
	holder := v.ls()[0]
	who := fmt.Sprintf("pid %d (%s) on a, lock %s", holder.PID, holder.Command, holder.Lock)

	status, stdout, stderr := outcome(t, v.command("break", a.path("f"), "--reason", "ticket 4711"))
	if status != 0 || !strings.HasPrefix(stdout, fmt.Sprintf("broken: f was held by %s; now held by pid ", who)) ||
		!strings.Contains(stderr, "asked "+who) {
		t.Errorf("exit status %d, %q, %q", status, stdout, stderr)
	}
	next := await(t, "open", opening)
	waiter.must(call{Op: "pwrite", FD: next.N, Data: "next"})
	for _, want := range []string{"lock broken", "path=f", "lock=" + holder.Lock[:8], `reason="ticket 4711"`, "sudo by alice"} {
		if !strings.Contains(a.log.String(), want) {
			t.Errorf("the holder's log lacks %q:\n%s", want, a.log)
		}
	}
	if n := v.breaks(); n != 1 {
		t.Errorf("%d breaks on record", n)
	}
	if es := v.ls(); len(es) != 2 || es[0].Path != "f" || es[0].Node != "b" || es[0].State != "held" {
		t.Errorf("locked: %+v", es)
	}
	bystander.must(call{Op: "write", FD: kept, Data: "not concerned"})
	select {
	case <-writing:
		t.Error("the writer has died")
	default:
	}
	if got := v.read("f"); got != "next" {
		t.Errorf("the file holds %q", got)
	}
	// The program of the broken lock opens the file again, in line.
	writer.kill()
	waiter.must(call{Op: "close", FD: next.N})
	again := newAgent(t)
	again.must(call{Op: "write", FD: again.open(a.path("f"), wronly|trunc), Data: "again"})
	again.kill()
	eventually(t, "the lock is free", func() bool { return len(v.ls()) == 1 })
}

// What cannot be broken, with what the command says of it.
func TestBreakRefusals(t *testing.T) {
	v := newVolume(t)
	v.inMemory()
	a := v.mount("a")
	p := newAgent(t)
	p.must(call{Op: "mkdir", Path: a.path("d")})
	p.open(a.path("d/f"), wronly|create)
	because := []string{"--reason", "x"}
	for name, c := range map[string]struct {
		args   []string
		status int
		says   string
	}{
		"no reason":               {[]string{a.path("d/f")}, 2, "--reason is required"},
		"reason of spaces":        {[]string{a.path("d/f"), "--reason", " "}, 2, "--reason is required"},
		"negative timeout":        {append(because, a.path("d/f"), "--timeout", "-1s"), 2, "positive"},
		"two paths":               {append(because, a.path("d/f"), a.path("g")), 2, "accepts 1 arg"},
		"the volume":              {append(because, a.dir), 2, "name a file"},
		"outside of a volume":     {append(because, v.dir), 2, "--endpoints"},
		"what nobody holds":       {append(because, a.path("g")), 1, "g: nobody holds it"},
		"what is not there":       {append(because, a.path("none/at/all")), 1, "all: nobody holds it"},
		"the directory of a lock": {append(because, a.path("d")), 1, "d: nobody holds it"},
		"no lock service":         {append(because, a.path("d/f"), "--endpoints", "http://127.0.0.1:1"), 1, "127.0.0.1:1"},
	} {
		status, stdout, stderr := outcome(t, v.command(append([]string{"break"}, c.args...)...))
		if status != c.status || stdout != "" || !strings.HasPrefix(stderr, "lockfs: ") || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: exit status %d, %q, %q; want %d and a line with %q", name, status, stdout, stderr, c.status, c.says)
		}
	}
	if len(v.ls()) != 1 || v.breaks() != 0 {
		t.Errorf("locked: %+v, and %d breaks on record", v.ls(), v.breaks())
	}
	a.stop()
	status, _, stderr := outcome(t, v.command("break", v.inSource("d/f"), "--reason", "x"))
	if status != 1 || !strings.Contains(stderr, "nobody serves the locks") {
		t.Errorf("without a mount: exit status %d, %q", status, stderr)
	}
}

// Who is renaming or removing a directory keeps others from all that is below, and
// is found by any of it.
func TestBreakOfDirectory(t *testing.T) {
	v := newVolume(t)
	v.inMemory()
	a := v.mount("a")
	etcd := v.etcd()
	lease, err := etcd.Grant(t.Context(), 600) // nobody answers for it
	if err != nil {
		t.Fatal(err)
	}
	holder := fmt.Sprintf(`{"session":"%x","node":"elsewhere"}`, lease.ID)
	if _, err := etcd.Put(t.Context(), "/lockfs/default/source/tree/d//w/"+uuid.NewString(), holder, clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr := outcome(t, v.command("break", a.path("d/e/f"), "--reason", "x", "--timeout", "100ms", "--force"))
	if status != 0 || !strings.HasPrefix(stdout, "broken by force: d/e/f (d/) was held by elsewhere, lock ") || !strings.HasSuffix(stdout, "now free\n") {
		t.Errorf("exit status %d, %q, %q", status, stdout, stderr)
	}
	if es := v.ls(); len(es) != 0 {
		t.Errorf("locked: %+v", es)
	}
}

// EIO is for ever: from write, fsync and close, and for the pages of a mapping.
func TestBrokenWriterIsFenced(t *testing.T) { over(t, testBrokenWriterIsFenced, local, inLeases) }

func testBrokenWriterIsFenced(t *testing.T, on setup) {
	v := on.newVolume(t)
	v.inMemory()
	a := v.mount("a")
	v.write("f", strings.Repeat("-", 4096))
	writer, other := newAgent(t), newAgent(t)
	fd := writer.open(a.path("f"), rdwr)
	mapped := writer.must(call{Op: "dup", FD: fd})
	writer.must(call{Op: "mmap", FD: mapped, N: 4096})
	v.env = append(v.env, "LOCKFS_REASON=from the environment")
	if status, stdout, stderr := outcome(t, v.command("break", a.path("f"))); status != 0 || !strings.Contains(stdout, "now free") {
		t.Errorf("exit status %d, %q, %q", status, stdout, stderr)
	}
	writer.fails(call{Op: "pwrite", FD: fd, Data: "late"}, unix.EIO)
	writer.fails(call{Op: "fsync", FD: fd}, unix.EIO)
	next := other.open(a.path("f"), rdwr) // another node to the kernel
	other.must(call{Op: "pwrite", FD: next, Data: "theirs"})
	writer.must(call{Op: "store", FD: mapped, Off: 8, Data: "latest"})
	writer.fails(call{Op: "msync", FD: mapped}, unix.EIO)
	writer.fails(call{Op: "close", FD: fd}, unix.EIO)
	other.must(call{Op: "close", FD: next})
	if got := v.read("f"); got[:14] != "theirs--------" {
		t.Errorf("the file holds %q…", got[:14])
	}
}

// A file of several names is broken by any of them, with all that has it open.
func TestBreakOfHardLinks(t *testing.T) {
	v := newVolume(t, "--wait", "-1")
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	v.write("one", "")
	for _, name := range []string{"two", "three"} {
		if err := os.Link(filepath.Join(v.source, "one"), filepath.Join(v.source, name)); err != nil {
			t.Fatal(err)
		}
	}
	holder, waiter := newAgent(t), newAgent(t)
	first, second := holder.open(a.path("one"), wronly), holder.open(a.path("two"), wronly)
	opening := waiter.start(call{Op: "open", Path: b.path("three"), Flags: wronly})
	eventually(t, "somebody waits", func() bool {
		return slices.ContainsFunc(v.ls(), func(e entry) bool { return e.State == "waiting" })
	})
	if status, stdout, stderr := outcome(t, v.command("break", b.path("three"), "--reason", "x")); status != 0 || !strings.Contains(stdout, " on a, ") {
		t.Errorf("exit status %d, %q, %q", status, stdout, stderr)
	}
	if r := await(t, "open", opening); r.Errno != 0 {
		t.Errorf("the waiter: %v", r.Err())
	}
	holder.fails(call{Op: "write", FD: first, Data: "x"}, unix.EIO)
	holder.fails(call{Op: "write", FD: second, Data: "x"}, unix.EIO)
	if es := v.ls(); len(es) != 2 || es[0].Path != "three" || es[1].State != "held" {
		t.Errorf("locked: %+v", es)
	}
}

// What was written under a broken lock is on the volume before the next is
// granted it, where --sync promises that.
func TestBreakFlushes(t *testing.T) {
	v := newVolumeOverClients(t, clientConfig{WriteBack: true})
	a := v.mount("a")
	p := newAgent(t)
	fd := p.open(a.path("f"), wronly|create)
	p.must(call{Op: "write", FD: fd, Data: "data"})
	path := v.inSource("f")
	if b, err := os.ReadFile(path); err != nil || len(b) != 0 {
		t.Fatalf("the backing does not cache: %q, %v", b, err)
	}
	if status, _, stderr := outcome(t, v.command("break", path, "--reason", "x")); status != 0 {
		t.Errorf("exit status %d, %q", status, stderr)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "data" {
		t.Errorf("on the volume: %q, %v", b, err)
	}
	p.fails(call{Op: "close", FD: fd}, unix.EIO)
}

// A holder that does not answer keeps its lock, unless its session is ended by
// force; when it thaws it does not write. (docs/SEMANTICS.md, rule 25.)
func TestBreakByForce(t *testing.T) {
	v := newVolume(t, "--wait", "-1")
	v.inMemory()
	server, a := v.mount("server"), v.mount("a") // the etcd is not frozen with a
	writer, other := newAgent(t), newAgent(t)
	fd := writer.open(a.path("f"), wronly|create)
	writer.open(a.path("g"), wronly|create)
	freeze(t, a.cmd.Process.Pid)
	path := filepath.Join(v.source, "f")
	status, stdout, stderr := outcome(t, v.command("break", path, "--reason", "hangs", "--timeout", "300ms"))
	if status != 1 || stdout != "" || !strings.Contains(stderr, "has not given it up within 300ms; it may still do so") || !strings.Contains(stderr, "--force ends its session") || !strings.Contains(stderr, "all its locks (2)") {
		t.Errorf("exit status %d, %q, %q", status, stdout, stderr)
	}
	if n := v.breaks(); n != 0 {
		t.Errorf("%d requests stand, and would be answered later", n)
	}
	if es := v.ls(); len(es) != 2 {
		t.Errorf("locked: %+v", es)
	}
	status, stdout, stderr = outcome(t, v.command("break", path, "--reason", "hangs", "--timeout", "300ms", "--force"))
	if status != 0 || !strings.Contains(stdout, "broken by force: f was held by pid ") || !strings.Contains(stdout, "all its locks (2)") {
		t.Errorf("exit status %d, %q, %q", status, stdout, stderr)
	}
	pending := writer.start(call{Op: "write", FD: fd, Data: "late"})
	next := other.open(server.path("f"), wronly|nonblock)
	if err := a.cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the mount knows", a.lostItsSession)
	await(t, "the frozen write", pending) // it may write until it notices
	other.must(call{Op: "pwrite", FD: next, Data: "theirs"})
	writer.fails(call{Op: "write", FD: fd, Data: "later"}, unix.EIO)
	writer.fails(call{Op: "close", FD: fd}, unix.EIO)
	if got := v.read("f"); got[:6] != "theirs" {
		t.Errorf("the file holds %q", got)
	}
}

// A holder that could not hear when it was asked answers when it can.
func TestBreakIsAnsweredLate(t *testing.T) {
	v := newVolume(t)
	v.inMemory()
	v.mount("server")
	a := v.mount("a")
	writer := newAgent(t)
	fd := writer.open(a.path("f"), wronly|create)
	freeze(t, a.cmd.Process.Pid)
	breaking := make(chan int, 1)
	go func() {
		status, _, _ := outcome(t, v.command("break", filepath.Join(v.source, "f"), "--reason", "x", "--timeout", callTimeout.String()))
		breaking <- status
	}()
	eventually(t, "the request stands", func() bool { return v.breaks() == 1 })
	if err := a.cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if status := <-breaking; status != 0 || a.lostItsSession() {
		t.Errorf("exit status %d", status)
	}
	writer.fails(call{Op: "write", FD: fd, Data: "x"}, unix.EIO)
}
