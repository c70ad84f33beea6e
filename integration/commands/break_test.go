package commands

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

	"github.com/lockfs/lockfs/integration/lab"
)

// breaks counts the breaks that are on record.
func breaks(v *lab.Volume) int64 {
	v.T.Helper()
	r, err := v.Etcd().Get(v.T.Context(), "/lockfs/default/source/break/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		v.T.Fatal(err)
	}
	return r.Count
}

// The holder of a lock that is broken gets EIO from then on, and the next in line is granted it
// when the holder's last write has landed. The operator's name and reason are on record. (docs/SEMANTICS.md, rule 25.)
func TestBreak(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--wait", "-1")
	v.Env = append(v.Env, "SUDO_USER=alice")
	a, b := v.Mount("a"), v.Mount("b")
	writer, bystander, waiter := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	fd := writer.Open(a.Path("f"), unix.O_RDWR|unix.O_CREAT)
	kept := bystander.Open(a.Path("g"), unix.O_WRONLY|unix.O_CREAT)
	writing := writer.Start(lab.Call{Op: "repeat", N: -1, Calls: []lab.Call{{Op: "pwrite", FD: fd, Data: "late"}}})
	opening := waiter.Start(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY})
	v.WaitFor("f")
	holder := v.LS()[0]
	who := fmt.Sprintf("pid %d (%s) on a, lock %s", holder.PID, holder.Command, holder.Lock)

	status, stdout, stderr := lab.Outcome(t, v.Command("break", a.Path("f"), "--reason", "ticket 4711"))
	if status != 0 || !strings.HasPrefix(stdout, fmt.Sprintf("broken: f was held by %s; now held by pid ", who)) ||
		!strings.Contains(stderr, "asked "+who) {
		t.Errorf("exit status %d, %q, %q", status, stdout, stderr)
	}
	next := lab.Await(t, "open", opening)
	waiter.Must(lab.Call{Op: "pwrite", FD: next.N, Data: "next"})
	for _, want := range []string{"lock broken", "path=f", "lock=" + holder.Lock[:8], `reason="ticket 4711"`, "sudo by alice"} {
		if !strings.Contains(a.Log.String(), want) {
			t.Errorf("the holder's log lacks %q:\n%s", want, a.Log)
		}
	}
	if n := breaks(v); n != 1 {
		t.Errorf("%d breaks on record", n)
	}
	if es := v.LS(); len(es) != 2 || es[0].Path != "f" || es[0].Node != "b" || es[0].State != "held" {
		t.Errorf("locked: %+v", es)
	}
	bystander.Must(lab.Call{Op: "write", FD: kept, Data: "not concerned"})
	select {
	case <-writing:
		t.Error("the writer has died")
	default:
	}
	if got := v.Read("f"); got != "next" {
		t.Errorf("the file holds %q", got)
	}
	// The program of the broken lock opens the file again, in line.
	writer.Kill()
	waiter.Must(lab.Call{Op: "close", FD: next.N})
	again := lab.NewAgent(t)
	again.Must(lab.Call{Op: "write", FD: again.Open(a.Path("f"), unix.O_WRONLY|unix.O_TRUNC), Data: "again"})
	again.Kill()
	lab.Eventually(t, "the lock is free", func() bool { return len(v.LS()) == 1 })
}

// The flock and fcntl locks that a mount has on a file are broken together: its programs get EIO from
// the file, and the next in line gets the lock. Other files, and mounts, are not concerned.
func TestBreakOfFlocks(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--flock", "cluster", "--rule", "** nolock", "--ttl", "1m")
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", "0123456789")
	v.Write("g", "")
	holder, other, next := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	fd, g := holder.Open(a.Path("f"), unix.O_RDWR), other.Open(a.Path("g"), unix.O_RDWR)
	beside := other.Open(a.Path("f"), unix.O_RDWR)
	holder.Must(lab.Call{Op: "flock", FD: fd, Flags: unix.LOCK_EX})
	holder.Must(lab.Call{Op: "setlk", FD: fd, Flags: unix.F_WRLCK, N: 5})
	other.Must(lab.Call{Op: "flock", FD: g, Flags: unix.LOCK_EX})
	nextFD := next.Open(b.Path("f"), unix.O_RDWR)
	waits := next.Start(lab.Call{Op: "flock", FD: nextFD, Flags: unix.LOCK_EX})
	lab.Eventually(t, "the next waits", func() bool {
		return slices.ContainsFunc(v.LS(), func(e lab.Entry) bool { return e.State == "waiting" })
	})
	status, stdout, stderr := lab.Outcome(t, v.Command("break", b.Path("f"), "--reason", "ticket 4711"))
	if status != 0 || !strings.HasPrefix(stdout, "broken: f (inode ") || !strings.Contains(stdout, "on a; ") || !strings.Contains(stderr, "to give it up") {
		t.Errorf("exit status %d, %q, %q", status, stdout, stderr)
	}
	if r := lab.Await(t, "the next's flock", waits); r.Errno != 0 {
		t.Fatalf("the next's flock: %v", r.Err())
	}
	next.Must(lab.Call{Op: "setlk", FD: nextFD, Flags: unix.F_WRLCK, N: 5})
	holder.Fails(lab.Call{Op: "pwrite", FD: fd, Data: "late"}, unix.EIO)
	holder.Fails(lab.Call{Op: "pread", FD: fd, N: 1}, unix.EIO)
	other.Fails(lab.Call{Op: "pwrite", FD: beside, Data: "late"}, unix.EIO) // a write does not tell its owner
	other.Must(lab.Call{Op: "pwrite", FD: g, Data: "not concerned"})
	next.Must(lab.Call{Op: "pwrite", FD: nextFD, Data: "next"})
	if got := v.Read("f"); got != "next456789" {
		t.Errorf("the file holds %q", got)
	}
	for _, want := range []string{"flock and fcntl locks lost", `reason="ticket 4711"`} {
		if !strings.Contains(a.Log.String(), want) {
			t.Errorf("the holder's log lacks %q:\n%s", want, a.Log)
		}
	}
	if n := breaks(v); n != 1 {
		t.Errorf("%d breaks on record", n)
	}
	next.Must(lab.Call{Op: "close", FD: nextFD})
	again := holder.Open(a.Path("f"), unix.O_RDWR)
	holder.Must(lab.Call{Op: "flock", FD: again, Flags: unix.LOCK_EX})
	holder.Must(lab.Call{Op: "pwrite", FD: again, Data: "again"})

	t.Log("a mount that does not answer loses them with its session")
	t.Cleanup(func() { _ = a.Cmd.Process.Signal(unix.SIGCONT) })
	lab.Freeze(t, a.Cmd.Process.Pid)
	status, stdout, stderr = lab.Outcome(t, v.Command("break", v.InSource("f"), "--reason", "x", "--timeout", "100ms"))
	if status != 1 || !strings.Contains(stderr, "with all its locks (2)") {
		t.Errorf("exit status %d, %q, %q", status, stdout, stderr)
	}
	status, stdout, _ = lab.Outcome(t, v.Command("break", v.InSource("f"), "--reason", "x", "--timeout", "100ms", "--force"))
	if status != 0 || !strings.HasPrefix(stdout, "broken by force: f (inode ") || !strings.HasSuffix(stdout, "now free\n") {
		t.Errorf("exit status %d, %q", status, stdout)
	}
}

// What cannot be broken, with what the command says of it.
func TestBreakRefusals(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	p := lab.NewAgent(t)
	p.Must(lab.Call{Op: "mkdir", Path: a.Path("d")})
	p.Open(a.Path("d/f"), unix.O_WRONLY|unix.O_CREAT)
	because := []string{"--reason", "x"}
	for name, c := range map[string]struct {
		args   []string
		status int
		says   string
	}{
		"no reason":               {[]string{a.Path("d/f")}, 2, "--reason is required"},
		"reason of spaces":        {[]string{a.Path("d/f"), "--reason", " "}, 2, "--reason is required"},
		"negative timeout":        {append(because, a.Path("d/f"), "--timeout", "-1s"), 2, "positive"},
		"two paths":               {append(because, a.Path("d/f"), a.Path("g")), 2, "want one PATH"},
		"the volume":              {append(because, a.Dir), 2, "name a file"},
		"outside of a volume":     {append(because, v.Dir), 2, "--endpoints"},
		"what nobody holds":       {append(because, a.Path("g")), 1, "g: nobody holds it"},
		"what is not there":       {append(because, a.Path("none/at/all")), 1, "all: nobody holds it"},
		"the directory of a lock": {append(because, a.Path("d")), 1, "d: nobody holds it"},
		"no lock service":         {append(because, a.Path("d/f"), "--endpoints", "http://127.0.0.1:1"), 1, "127.0.0.1:1"},
	} {
		status, stdout, stderr := lab.Outcome(t, v.Command(append([]string{"break"}, c.args...)...))
		if status != c.status || stdout != "" || !strings.HasPrefix(stderr, "lockfs: ") || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: exit status %d, %q, %q; want %d and a line with %q", name, status, stdout, stderr, c.status, c.says)
		}
	}
	if len(v.LS()) != 1 || breaks(v) != 0 {
		t.Errorf("locked: %+v, and %d breaks on record", v.LS(), breaks(v))
	}
	a.Stop()
	status, _, stderr := lab.Outcome(t, v.Command("break", v.InSource("d/f"), "--reason", "x"))
	if status != 1 || !strings.Contains(stderr, "nobody serves the locks") {
		t.Errorf("without a mount: exit status %d, %q", status, stderr)
	}
}

// A rename or removal of a directory keeps others from all that is below it, and is found by any of
// its paths.
func TestBreakOfDirectory(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	etcd := v.Etcd()
	lease, err := etcd.Grant(t.Context(), 600) // nobody answers for it
	if err != nil {
		t.Fatal(err)
	}
	holder := fmt.Sprintf(`{"session":"%x","node":"elsewhere"}`, lease.ID)
	if _, err := etcd.Put(t.Context(), "/lockfs/default/source/tree/d//w/"+uuid.NewString(), holder, clientv3.WithLease(lease.ID)); err != nil {
		t.Fatal(err)
	}
	status, stdout, stderr := lab.Outcome(t, v.Command("break", a.Path("d/e/f"), "--reason", "x", "--timeout", "100ms", "--force"))
	if status != 0 || !strings.HasPrefix(stdout, "broken by force: d/e/f (d/) was held by elsewhere, lock ") || !strings.HasSuffix(stdout, "now free\n") {
		t.Errorf("exit status %d, %q, %q", status, stdout, stderr)
	}
	if es := v.LS(); len(es) != 0 {
		t.Errorf("locked: %+v", es)
	}
}

// EIO is for ever: from write, fsync and close, and for the pages of a mapping.
func TestBrokenWriterIsFenced(t *testing.T) {
	lab.Over(t, testBrokenWriterIsFenced, lab.Local, lab.InLeases)
}

func testBrokenWriterIsFenced(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	a := v.Mount("a")
	v.Write("f", strings.Repeat("-", 4096))
	writer, other := lab.NewAgent(t), lab.NewAgent(t)
	fd := writer.Open(a.Path("f"), unix.O_RDWR)
	mapped := writer.Must(lab.Call{Op: "dup", FD: fd})
	writer.Must(lab.Call{Op: "mmap", FD: mapped, N: 4096})
	v.Env = append(v.Env, "LOCKFS_REASON=from the environment")
	if status, stdout, stderr := lab.Outcome(t, v.Command("break", a.Path("f"))); status != 0 || !strings.Contains(stdout, "now free") {
		t.Errorf("exit status %d, %q, %q", status, stdout, stderr)
	}
	writer.Fails(lab.Call{Op: "pwrite", FD: fd, Data: "late"}, unix.EIO)
	writer.Fails(lab.Call{Op: "fsync", FD: fd}, unix.EIO)
	next := other.Open(a.Path("f"), unix.O_RDWR) // another node to the kernel
	other.Must(lab.Call{Op: "pwrite", FD: next, Data: "theirs"})
	writer.Must(lab.Call{Op: "store", FD: mapped, Off: 8, Data: "latest"})
	writer.Fails(lab.Call{Op: "msync", FD: mapped}, unix.EIO)
	writer.Fails(lab.Call{Op: "close", FD: fd}, unix.EIO)
	other.Must(lab.Call{Op: "close", FD: next})
	if got := v.Read("f"); got[:14] != "theirs--------" {
		t.Errorf("the file holds %q…", got[:14])
	}
}

// A file of several names is broken by any of them, with all that has it open.
func TestBreakOfHardLinks(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--wait", "-1")
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("one", "")
	for _, name := range []string{"two", "three"} {
		if err := os.Link(filepath.Join(v.Source, "one"), filepath.Join(v.Source, name)); err != nil {
			t.Fatal(err)
		}
	}
	holder, waiter := lab.NewAgent(t), lab.NewAgent(t)
	first, second := holder.Open(a.Path("one"), unix.O_WRONLY), holder.Open(a.Path("two"), unix.O_WRONLY)
	opening := waiter.Start(lab.Call{Op: "open", Path: b.Path("three"), Flags: unix.O_WRONLY})
	lab.Eventually(t, "somebody waits", func() bool {
		return slices.ContainsFunc(v.LS(), func(e lab.Entry) bool { return e.State == "waiting" })
	})
	if status, stdout, stderr := lab.Outcome(t, v.Command("break", b.Path("three"), "--reason", "x")); status != 0 || !strings.Contains(stdout, " on a, ") {
		t.Errorf("exit status %d, %q, %q", status, stdout, stderr)
	}
	if r := lab.Await(t, "open", opening); r.Errno != 0 {
		t.Errorf("the waiter: %v", r.Err())
	}
	holder.Fails(lab.Call{Op: "write", FD: first, Data: "x"}, unix.EIO)
	holder.Fails(lab.Call{Op: "write", FD: second, Data: "x"}, unix.EIO)
	lab.Eventually(t, "the waiter's lock is the only one", func() bool {
		es := v.LS()
		return len(es) == 2 && es[0].Path == "three" && es[1].State == "held"
	})
}

// What was written under a broken lock is on the volume before the next is
// granted it, where --sync promises that.
func TestBreakFlushes(t *testing.T) {
	t.Parallel()
	v := lab.NewVolumeOverClients(t, lab.ClientConfig{WriteBack: true})
	a := v.Mount("a")
	p := lab.NewAgent(t)
	fd := p.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	p.Must(lab.Call{Op: "write", FD: fd, Data: "data"})
	path := v.InSource("f")
	if b, err := os.ReadFile(path); err != nil || len(b) != 0 {
		t.Fatalf("the backing does not cache: %q, %v", b, err)
	}
	if status, _, stderr := lab.Outcome(t, v.Command("break", path, "--reason", "x")); status != 0 {
		t.Errorf("exit status %d, %q", status, stderr)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "data" {
		t.Errorf("on the volume: %q, %v", b, err)
	}
	p.Fails(lab.Call{Op: "close", FD: fd}, unix.EIO)
}

// A holder that does not answer keeps its lock, unless its session is ended by
// force; when it thaws it does not write. (docs/SEMANTICS.md, rule 25.)
func TestBreakByForce(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--wait", "-1", "--ttl", "1m") // its session must not end by itself
	server, a := v.Mount("server"), v.Mount("a")         // the etcd is not frozen with a
	writer, other := lab.NewAgent(t), lab.NewAgent(t)
	fd := writer.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	writer.Open(a.Path("g"), unix.O_WRONLY|unix.O_CREAT)
	lab.Freeze(t, a.Cmd.Process.Pid)
	path := filepath.Join(v.Source, "f")
	status, stdout, stderr := lab.Outcome(t, v.Command("break", path, "--reason", "hangs", "--timeout", "5s"))
	if status != 1 || stdout != "" || !strings.Contains(stderr, "has not given it up within 5s; it may still do so") || !strings.Contains(stderr, "--force ends its session") || !strings.Contains(stderr, "all its locks (2)") {
		t.Errorf("exit status %d, %q, %q", status, stdout, stderr)
	}
	if n := breaks(v); n != 0 {
		t.Errorf("%d requests stand, and would be answered later", n)
	}
	if es := v.LS(); len(es) != 2 {
		t.Errorf("locked: %+v", es)
	}
	status, stdout, stderr = lab.Outcome(t, v.Command("break", path, "--reason", "hangs", "--timeout", "300ms", "--force"))
	if status != 0 || !strings.Contains(stdout, "broken by force: f was held by pid ") || !strings.Contains(stdout, "all its locks (2)") {
		t.Errorf("exit status %d, %q, %q", status, stdout, stderr)
	}
	pending := writer.Start(lab.Call{Op: "write", FD: fd, Data: "late"})
	next := other.Open(server.Path("f"), unix.O_WRONLY|unix.O_NONBLOCK)
	if err := a.Cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the mount knows", a.LostItsSession)
	lab.Await(t, "the frozen write", pending) // it may write until it notices
	other.Must(lab.Call{Op: "pwrite", FD: next, Data: "theirs"})
	writer.Fails(lab.Call{Op: "write", FD: fd, Data: "later"}, unix.EIO)
	writer.Fails(lab.Call{Op: "close", FD: fd}, unix.EIO)
	if got := v.Read("f"); got[:6] != "theirs" {
		t.Errorf("the file holds %q", got)
	}
}

// A holder that could not hear when it was asked answers when it can.
func TestBreakIsAnsweredLate(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--ttl", "1m")
	v.Mount("server")
	a := v.Mount("a")
	writer := lab.NewAgent(t)
	fd := writer.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	lab.Freeze(t, a.Cmd.Process.Pid)
	breaking := make(chan int, 1)
	go func() {
		status, _, _ := lab.Outcome(t, v.Command("break", filepath.Join(v.Source, "f"), "--reason", "x", "--timeout", lab.CallTimeout.String()))
		breaking <- status
	}()
	lab.Eventually(t, "the request stands", func() bool { return breaks(v) == 1 })
	if err := a.Cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if status := <-breaking; status != 0 || a.LostItsSession() {
		t.Errorf("exit status %d", status)
	}
	writer.Fails(lab.Call{Op: "write", FD: fd, Data: "x"}, unix.EIO)
}
