package semantics

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// mortalTTL is of mounts that a test kills or cuts off. Ahead of that the machine may stop for two
// seconds, and they lose nothing.
const mortalTTL = "6s"

// After its lease was revoked a writer gets EIO from write, fsync and close, and
// the file does not change any more, not even by the pages of a mapping.
func TestRevokedWriterIsFenced(t *testing.T) {
	lab.Over(t, testRevokedWriterIsFenced, lab.Local, lab.OnNetworkVolume)
}

func testRevokedWriterIsFenced(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", strings.Repeat("-", 4096))
	writer, other := lab.NewAgent(t), lab.NewAgent(t)
	fd := writer.Open(a.Path("f"), unix.O_RDWR)
	mapped := writer.Must(lab.Call{Op: "dup", FD: fd})
	writer.Must(lab.Call{Op: "mmap", FD: mapped, N: 4096})
	writer.Must(lab.Call{Op: "pwrite", FD: fd, Data: "mine"})
	v.Revoke()
	// The mount hears of it by itself, far ahead of the next renewal.
	lab.Eventually(t, "the mount knows", func() bool { return strings.Contains(a.Log.String(), "lock session lost") })
	next := other.Open(b.Path("f"), unix.O_RDWR)
	other.Must(lab.Call{Op: "pwrite", FD: next, Data: "theirs"})

	writer.Fails(lab.Call{Op: "pwrite", FD: fd, Data: "late"}, unix.EIO)
	writer.Fails(lab.Call{Op: "ftruncate", FD: fd, Off: 1}, unix.EIO)
	writer.Fails(lab.Call{Op: "fallocate", FD: fd, N: 9000}, unix.EIO)
	writer.Fails(lab.Call{Op: "fsync", FD: fd}, unix.EIO)
	writer.Must(lab.Call{Op: "store", FD: mapped, Off: 0, Data: "latest"})
	// On the same mount, a new open is a new file to the kernel: it must not
	// send the lost mapping's pages through it.
	other.Must(lab.Call{Op: "close", FD: next})
	lab.Eventually(t, "a new open on the old mount", func() bool {
		r := other.Do(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_RDWR | unix.O_NONBLOCK})
		if r.Errno == 0 {
			next = r.N
		}
		return r.Errno == 0
	})
	other.Must(lab.Call{Op: "pwrite", FD: next, Off: 6, Data: " again"})
	if r := writer.Do(lab.Call{Op: "msync", FD: mapped}); r.Errno != unix.EIO {
		t.Errorf("msync of a lost mapping: %v, want EIO", r.Err())
	}
	other.Must(lab.Call{Op: "fsync", FD: next})
	writer.Fails(lab.Call{Op: "close", FD: fd}, unix.EIO)
	writer.Kill()
	if got := v.Read("f"); got[:13] != "theirs again-" || len(got) != 4096 {
		t.Errorf("the file holds %q…, %d bytes", got[:13], len(got))
	}
	other.Must(lab.Call{Op: "close", FD: next})
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}

// Somebody deletes a holder's entry by hand (etcdctl del). The next owner is
// granted the lock at once; the old one misses its entry and writes no more.
func TestDeletedEntryIsMissed(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	writer, bystander, other := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	fd := writer.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	kept := bystander.Open(a.Path("g"), unix.O_WRONLY|unix.O_CREAT)
	etcd := v.Etcd()
	locks := func() int64 {
		r, err := etcd.Get(t.Context(), "/locks/default/source/f//", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		return r.Count
	}
	if locks() != 1 {
		t.Fatal("the entry is not where it is documented to be")
	}
	if _, err := etcd.Delete(t.Context(), "/locks/default/source/f//", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the holder misses its entry", func() bool {
		return writer.Do(lab.Call{Op: "write", FD: fd, Data: "x"}).Errno == unix.EIO
	})
	before := v.Read("f")
	next := other.Open(b.Path("f"), unix.O_WRONLY|unix.O_APPEND|unix.O_NONBLOCK)
	other.Must(lab.Call{Op: "write", FD: next, Data: "theirs"})
	writer.Fails(lab.Call{Op: "write", FD: fd, Data: "late"}, unix.EIO)
	writer.Fails(lab.Call{Op: "close", FD: fd}, unix.EIO)
	bystander.Must(lab.Call{Op: "write", FD: kept, Data: "not concerned"})
	if got := v.Read("f"); got != before+"theirs" {
		t.Errorf("the file holds %q", got)
	}
}

// A daemon that was frozen for longer than its lease and thaws does not write: a
// program of its gets EIO, and the next owner's bytes stand.
func TestThawedDaemonDoesNotWrite(t *testing.T) {
	lab.Over(t, testThawedDaemonDoesNotWrite, lab.Local, lab.InLeases, lab.OnNetworkVolume)
}

func testThawedDaemonDoesNotWrite(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "-1")
	server, a := v.Mount("server"), v.Mount("a", "--ttl", mortalTTL) // the etcd is not frozen with a
	v.Write("f", "")
	writer, other := lab.NewAgent(t), lab.NewAgent(t)
	fd := writer.Open(a.Path("f"), unix.O_WRONLY)
	writer.Must(lab.Call{Op: "write", FD: fd, Data: "mine\n"})
	lab.Freeze(t, a.Cmd.Process.Pid)
	pending := writer.Start(lab.Call{Op: "write", FD: fd, Data: "late\n"})
	next := other.Open(server.Path("f"), unix.O_WRONLY|unix.O_APPEND)
	other.Must(lab.Call{Op: "write", FD: next, Data: "theirs\n"})
	if err := a.Cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if r := lab.Await(t, "the frozen write", pending); r.Errno != unix.EIO {
		t.Errorf("the frozen write: %v, want EIO", r.Err())
	}
	writer.Fails(lab.Call{Op: "write", FD: fd, Data: "later\n"}, unix.EIO)
	writer.Fails(lab.Call{Op: "close", FD: fd}, unix.EIO)
	if got := v.Read("f"); got != "mine\ntheirs\n" {
		t.Errorf("the file holds %q", got)
	}
}

// A killed mount's locks go to whoever waits; if the killed one served the etcd,
// its successor has to start one first, however long that takes.
func TestKilledMountHandsOver(t *testing.T) {
	lab.Over(t, testKilledMountHandsOver, lab.Local, lab.InLeases, lab.OnNetworkVolume)
}

func testKilledMountHandsOver(t *testing.T, on lab.Setup) {
	for _, name := range []string{"client", "server"} {
		t.Run(name, func(t *testing.T) {
			lab.InTries(t, func() bool {
				v := on.NewVolume(t, "--wait", "-1")
				mortal, patient := mortalTTL, "5m" // the survivor's lock is no question of time
				var victim, heir *lab.Mount
				if name == "server" { // the first
					victim = v.Mount("victim", "--ttl", mortal)
					heir = v.Mount("heir", "--ttl", patient)
				} else {
					heir = v.Mount("heir", "--ttl", patient)
					victim = v.Mount("victim", "--ttl", mortal)
				}
				holder, waiter, bystander := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
				fd := holder.Open(victim.Path("f"), unix.O_WRONLY|unix.O_CREAT)
				holder.Must(lab.Call{Op: "write", FD: fd, Data: "one\n"})
				kept := bystander.Open(heir.Path("kept"), unix.O_WRONLY|unix.O_CREAT)
				pending := waiter.Start(lab.Call{Op: "open", Path: heir.Path("f"), Flags: unix.O_WRONLY | unix.O_APPEND})
				if !victim.Keeps(pending, func() bool { return v.Waiting("f") == 1 }) {
					return false
				}
				victim.Kill()
				opened := lab.Await(t, "open", pending)
				if opened.Errno != 0 {
					t.Fatalf("open: %v", opened.Err())
				}
				waiter.Must(lab.Call{Op: "write", FD: opened.N, Data: "two\n"})
				waiter.Must(lab.Call{Op: "fsync", FD: opened.N}) // or another client might not see it yet
				if got := v.Read("f"); got != "one\ntwo\n" {
					t.Errorf("the file holds %q", got)
				}
				// A lock of the survivor was held through all of it.
				bystander.Must(lab.Call{Op: "write", FD: kept, Data: "x"})
				found := false
				for _, e := range v.LS() {
					found = found || e.Path == "kept" && e.PID == bystander.PID() && e.State == "held"
				}
				if !found {
					t.Errorf("the survivor's lock is gone: %v", v.LS())
				}
				// The dead mount is in the way of nobody.
				again := v.Mount(victim.Name)
				bystander.Must(lab.Call{Op: "close", FD: bystander.Open(again.Path("new"), unix.O_WRONLY|unix.O_CREAT)})
				return true
			})
		})
	}
}

// When the mount that serves the etcd ends in peace, another serves on: locks
// held stay held, and nobody notices.
func TestServerEndsInPeace(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--wait", "-1")
	first, second := v.Mount("first"), v.Mount("second")
	holder, waiter := lab.NewAgent(t), lab.NewAgent(t)
	fd := holder.Open(second.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	token := v.LS()[0].Token
	if status := first.Stop(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	holder.Must(lab.Call{Op: "write", FD: fd, Data: "one\n"})
	lab.Eventually(t, "another serves", func() bool {
		cmd := v.Command("ls", "-o", "json", v.Source)
		return cmd.Run() == nil
	})
	if es := v.LS(); len(es) != 1 || es[0].Token != token {
		t.Errorf("the lock did not stay held: %v", es)
	}
	third := v.Mount("third")
	pending := waiter.Start(lab.Call{Op: "open", Path: third.Path("f"), Flags: unix.O_WRONLY | unix.O_APPEND})
	v.WaitFor("f")
	holder.Must(lab.Call{Op: "write", FD: fd, Data: "two\n"})
	holder.Must(lab.Call{Op: "close", FD: fd})
	opened := lab.Await(t, "open", pending)
	waiter.Must(lab.Call{Op: "write", FD: opened.N, Data: "three\n"})
	if got := v.Read("f"); got != "one\ntwo\nthree\n" {
		t.Errorf("the file holds %q", got)
	}
}

// A lock service that does not answer is waited out like contention. An outage
// shorter than the lease costs a pause; no lock is lost by it.
func TestUnreachableLockService(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--wait", "1s", "--ttl", "12s")
	a := v.Mount("a")
	v.Write("f", "")
	writer, other := lab.NewAgent(t), lab.NewAgent(t)
	fd := writer.Open(a.Path("f"), unix.O_WRONLY)
	etcd := v.EtcdPID()
	stop := func() { lab.Freeze(t, etcd) }
	resume := func() { _ = unix.Kill(etcd, unix.SIGCONT) }
	t.Cleanup(resume)
	stop()
	writer.Must(lab.Call{Op: "write", FD: fd, Data: "in time\n"}) // ahead of what takes an eighth of the TTL
	other.Fails(lab.Call{Op: "open", Path: a.Path("g"), Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_NONBLOCK}, unix.ENOLCK)
	other.Fails(lab.Call{Op: "truncate", Path: a.Path("f"), Off: 1}, unix.EBUSY) // held here: no need to ask
	resume()
	var opened lab.Result
	lab.Eventually(t, "locks are granted again", func() bool {
		opened = other.Do(lab.Call{Op: "open", Path: a.Path("g"), Flags: unix.O_WRONLY | unix.O_CREAT})
		return opened.Errno == 0
	})
	other.Must(lab.Call{Op: "close", FD: opened.N})
	v.AwaitLocked("f") // other still has g until its close is handled

	stop()
	other.Fails(lab.Call{Op: "open", Path: a.Path("g"), Flags: unix.O_WRONLY}, unix.ENOLCK)
	waiter := lab.NewAgent(t)
	waiter.Start(lab.Call{Op: "open", Path: a.Path("g"), Flags: unix.O_WRONLY})
	waiter.Kill() // hangs if it cannot die
	// Past the deadline a write waits, and goes on when the lease proves alive:
	// the frozen etcd could not let it expire.
	lab.Eventually(t, "the session is suspended", a.IsSuspended)
	pending := writer.Start(lab.Call{Op: "write", FD: fd, Data: "after a pause\n"})
	resume()
	r := lab.Await(t, "write", pending)
	got := v.Read("f")
	switch {
	case r.Errno == 0 && got == "in time\nafter a pause\n":
	case r.Errno == unix.EIO && got == "in time\n":
		t.Log("the lease did not survive the outage") // etcd's right: it was frozen past the TTL
	default:
		t.Errorf("the write got %v and the file holds %q", r.Err(), got)
	}
}

// A write that waits for a suspended session can be killed.
func TestSuspendedWriteIsKillable(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--suspend-wait", "1h", "--ttl", mortalTTL)
	a := v.Mount("a")
	writer := lab.NewAgent(t)
	fd := writer.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	etcd := v.EtcdPID()
	lab.Freeze(t, etcd)
	t.Cleanup(func() { _ = unix.Kill(etcd, unix.SIGCONT) })
	lab.Eventually(t, "the session is suspended", a.IsSuspended)
	pending := writer.Start(lab.Call{Op: "write", FD: fd, Data: "never\n"})
	select {
	case r := <-pending:
		t.Fatalf("a write of a suspended session: %v", r.Err())
	case <-time.After(200 * time.Millisecond): // it does not end by itself
	}
	done := make(chan struct{})
	go func() { writer.Kill(); close(done) }()
	select {
	case <-done:
	case <-time.After(lab.CallTimeout):
		t.Fatal("a program that waits in write() cannot be killed")
	}
	if got := v.Read("f"); got != "" {
		t.Errorf("the file holds %q", got)
	}
}

// Readers do not wait for the lock service, even beside a write that does, or is about to.
func TestReaderBesideSuspendedWrite(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--suspend-wait", "1h", "--ttl", "15s")
	a := v.Mount("a")
	const n = 20
	var writers []*lab.Agent
	var fds []int
	for i := range n {
		v.Write(fmt.Sprint("f", i), "old\n")
		writers = append(writers, lab.NewAgent(t))
		fds = append(fds, writers[i].Open(a.Path(fmt.Sprint("f", i)), unix.O_WRONLY))
	}
	reader := lab.NewAgent(t)
	etcd := v.EtcdPID()
	lab.Freeze(t, etcd)
	t.Cleanup(func() { _ = unix.Kill(etcd, unix.SIGCONT) })
	lab.Eventually(t, "the session is suspended", a.IsSuspended)
	var pending []<-chan lab.Result
	var last int
	for i, writer := range writers {
		t.Cleanup(writer.Kill) // before the reader, which may wait for it
		pending = append(pending, writer.Start(lab.Call{Op: "pwrite", FD: fds[i], Data: "new\n"}))
		if i%2 == 0 {
			lab.Eventually(t, "the write waits", func() bool { return writer.Within(unix.SYS_PWRITE64) })
		}
		got := reader.Open(a.Path(fmt.Sprint("f", i)), unix.O_RDONLY)
		if r := reader.Do(lab.Call{Op: "pread", FD: got, N: 10}); r.Data != "old\n" {
			t.Errorf("a reader got %q, %v", r.Data, r.Err())
		}
		if r := reader.Do(lab.Call{Op: "mapread", FD: got, N: 4, Flags: unix.MAP_PRIVATE}); r.Data != "old\n" {
			t.Errorf("a reader's mapping has %q, %v", r.Data, r.Err())
		}
		last = got
	}
	for _, p := range pending {
		select {
		case r := <-p:
			t.Errorf("a write of a suspended session: %v", r.Err())
		default:
		}
	}
	// Linux has a shared mapping wait for the write (docs/SEMANTICS.md, Waiting has limits).
	mapped := reader.Start(lab.Call{Op: "mapread", FD: last, N: 4, Flags: unix.MAP_SHARED})
	writers[n-1].Kill()
	if r := lab.Await(t, "the shared mapping", mapped); r.Data != "old\n" {
		t.Errorf("a reader's shared mapping has %q, %v", r.Data, r.Err())
	}
}

// A session is suspended while a write is on its way to the volume. The write has not failed: its
// program is told when the session is resumed.
func TestSuspendedDuringAWrite(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--embedded", "--suspend-wait", "1h", "--ttl", "30s") // suspended for 10 s before it is lost
	at := lab.NewTurnstile(t)
	v.Under(func(b lab.Below) gofs.InodeEmbedder { return &heldWrites{b, at} })
	m := v.Mount("m")
	t.Cleanup(at.End)
	v.Write("f", "")
	writer := lab.NewAgent(t)
	fd := writer.Open(m.Path("f"), unix.O_WRONLY)
	etcd := v.EtcdPID()
	t.Cleanup(func() { _ = unix.Kill(etcd, unix.SIGCONT) })
	for range 2 {
		at.Shut.Store(true)
		pending := writer.Start(lab.Call{Op: "write", FD: fd, Data: "x"})
		let := at.Next()
		at.Shut.Store(false)
		lab.Freeze(t, etcd)
		lab.Eventually(t, "the session is suspended", m.IsSuspended)
		let()
		lab.Eventually(t, "the write is on the volume", func() bool { return strings.HasSuffix(v.Read("f"), "x") })
		if err := unix.Kill(etcd, unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if r := lab.Await(t, "the write", pending); r.Errno != 0 {
			t.Fatalf("the write: %v", r.Err())
		}
		lab.Eventually(t, "the session is resumed", func() bool { return !m.IsSuspended() })
		writer.Must(lab.Call{Op: "pwrite", FD: fd, Data: "y", Off: 1}) // so that the next x is another
		writer.Must(lab.Call{Op: "seek", FD: fd, Flags: unix.SEEK_END})
	}
	writer.Must(lab.Call{Op: "close", FD: fd})
}

// umount is as good an end as SIGTERM. A view that somebody takes out of the tree
// while it is in use does not keep SIGTERM waiting.
func TestUnmountedBySomebodyElse(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	m := v.Mount("m")
	p := lab.NewAgent(t)
	p.Must(lab.Call{Op: "close", FD: p.Open(m.Path("f"), unix.O_WRONLY|unix.O_CREAT)})
	umount := func(lazily string) {
		t.Helper()
		command := "umount -n " + lazily
		if os.Getuid() != 0 {
			command = "fusermount3 -u " + strings.Replace(lazily, "-l", "-z", 1)
		}
		words := append(strings.Fields(command), m.Dir)
		// 'lockfs status' of a test beside this one asks all views of the machine.
		lab.Eventually(t, "the view is unmounted", func() bool {
			out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
			if err != nil && !strings.Contains(string(out), "busy") {
				t.Fatalf("%s: %v\n%s", command, err, out)
			}
			return err == nil
		})
	}
	umount("")
	select {
	case <-m.Done:
	case <-time.After(lab.CallTimeout):
		t.Fatal("it does not end")
	}
	if m.Err != nil || strings.Contains(m.Log.String(), "in use") {
		t.Errorf("%v, log:\n%s", m.Err, m.Log)
	}

	m = v.Mount("n", "--ttl", "1h")
	fd := p.Open(m.Path("f"), unix.O_RDWR)
	umount("-l")
	if status := m.Stop(); status != 0 { // long before the TTL
		t.Errorf("exit status %d, log:\n%s", status, m.Log)
	}
	if r := p.Do(lab.Call{Op: "write", FD: fd, Data: "late"}); r.Errno == 0 {
		t.Error("a program wrote through a view that is gone")
	}
}

// SIGTERM unmounts a view that is in use, lets go of its locks at once, and
// exits with 0.
func TestTerminatedMountReleases(t *testing.T) {
	lab.Over(t, testTerminatedMountReleases, lab.Local, lab.InLeases.ForLong())
}

func testTerminatedMountReleases(t *testing.T, on lab.Setup) {
	terminated(t, on, func() {})
}

// A mount namespace that was made beside the mount has a copy of the view, and
// keeps it for as long as it likes. The mount ends in peace nevertheless.
func TestTerminatedMountLivesOnElsewhere(t *testing.T) {
	t.Parallel()
	terminated(t, lab.Local, func() {
		elsewhere := exec.Command("unshare", "-m", "--propagation", "private", "sleep", "1000")
		if err := elsewhere.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = elsewhere.Process.Kill(); _ = elsewhere.Wait() })
		lab.Eventually(t, "there is a copy", func() bool {
			comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", elsewhere.Process.Pid))
			return string(comm) == "sleep\n"
		})
	})
}

// terminated ends a mount of two by SIGTERM, after what is to be there before its
// files are open.
func terminated(t *testing.T, on lab.Setup, before func()) {
	v := on.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	before()
	v.Write("f", "")
	writer, other := lab.NewAgent(t), lab.NewAgent(t)
	fd := writer.Open(b.Path("f"), unix.O_RDWR)
	writer.Must(lab.Call{Op: "write", FD: fd, Data: "one\n"})
	if status := b.Stop(); status != 0 {
		t.Errorf("exit status %d, log:\n%s", status, b.Log)
	}
	if es := v.LS(); len(es) != 0 {
		t.Errorf("still locked: %v", es)
	}
	if lab.FSType(b.Dir) == unix.FUSE_SUPER_MAGIC {
		t.Error("still mounted")
	}
	next := other.Open(a.Path("f"), unix.O_WRONLY|unix.O_APPEND|unix.O_NONBLOCK)
	if r := writer.Do(lab.Call{Op: "write", FD: fd, Data: "late\n"}); r.Errno == 0 {
		t.Error("a program wrote through a view that is gone")
	}
	other.Must(lab.Call{Op: "write", FD: next, Data: "two\n"})
	if got := v.Read("f"); got != "one\ntwo\n" {
		t.Errorf("the file holds %q", got)
	}
}

// A mount whose view was unmounted leaves the next view at its mountpoint alone.
func TestUnmountedMountLeavesTheNext(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	v.Mount("server") // of the locks
	old := v.Mount("a")
	lab.Eventually(t, "it does nothing more at the mountpoint", func() bool { return strings.Contains(old.Log.String(), "msg=mounted") })
	lab.Freeze(t, old.Cmd.Process.Pid)
	// 'lockfs status' of a test beside this one asks all views of the machine.
	lab.Eventually(t, "the view is unmounted", func() bool { return unix.Unmount(old.Dir, 0) == nil })
	next := v.Mount("a")
	if err := old.Cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	<-old.Done
	if status := old.Cmd.ProcessState.ExitCode(); status != 0 {
		t.Errorf("exit status %d, log:\n%s", status, old.Log)
	}
	if lab.FSType(next.Dir) != unix.FUSE_SUPER_MAGIC {
		t.Error("the next view was unmounted")
	}
}
