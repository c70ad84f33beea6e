package integration

import (
	"bytes"
	"context"
	"fmt"

	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
)

// stateFile finds the embedded etcd of the volume.
func (v *volume) stateFile(name string) string {
	v.t.Helper()
	found, err := filepath.Glob(filepath.Join(v.state, "embedded", "*", name))
	if err != nil || len(found) != 1 {
		v.t.Fatalf("%s of the embedded etcd: %v, %v", name, found, err)
	}
	return found[0]
}

// etcd is what an operator has in etcdctl.
func (v *volume) etcd() *clientv3.Client {
	v.t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + v.stateFile("client.sock")}})
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { c.Close() })
	return c
}

// etcdPID is the process that serves the embedded etcd: a child of one of the mounts.
func (v *volume) etcdPID() int {
	v.t.Helper()
	b, err := os.ReadFile(v.stateFile("lock"))
	if err != nil {
		v.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		v.t.Fatal(err)
	}
	return pid
}

// revoke ends the session of the one holder, as 'etcdctl lease revoke' does.
func (v *volume) revoke() {
	v.t.Helper()
	es := v.ls()
	if len(es) != 1 {
		v.t.Fatalf("one holder expected, got %v", es)
	}
	v.revokeSession(es[0].Session)
}

func (v *volume) revokeSession(session string) {
	v.t.Helper()
	id, err := strconv.ParseInt(session, 16, 64)
	if err != nil {
		v.t.Fatal(err)
	}
	if _, err := v.etcd().Revoke(context.Background(), clientv3.LeaseID(id)); err != nil {
		v.t.Fatal(err)
	}
}

// After its lease was revoked a writer gets EIO from write, fsync and close, and
// the file does not change any more, not even by the pages of a mapping.
func TestRevokedWriterIsFenced(t *testing.T) {
	over(t, testRevokedWriterIsFenced, local, onNetworkVolume)
}

func testRevokedWriterIsFenced(t *testing.T, on setup) {
	v := on.newVolume(t)
	a, b := v.mount("a"), v.mount("b")
	v.write("f", strings.Repeat("-", 4096))
	writer, other := newAgent(t), newAgent(t)
	fd := writer.open(a.path("f"), rdwr)
	mapped := writer.must(call{Op: "dup", FD: fd})
	writer.must(call{Op: "mmap", FD: mapped, N: 4096})
	writer.must(call{Op: "pwrite", FD: fd, Data: "mine"})
	v.revoke()
	// The mount hears of it by itself, far ahead of the next renewal.
	eventually(t, "the mount knows", func() bool { return strings.Contains(a.log.String(), "lock session lost") })
	next := other.open(b.path("f"), rdwr)
	other.must(call{Op: "pwrite", FD: next, Data: "theirs"})

	writer.fails(call{Op: "pwrite", FD: fd, Data: "late"}, unix.EIO)
	writer.fails(call{Op: "ftruncate", FD: fd, Off: 1}, unix.EIO)
	writer.fails(call{Op: "fallocate", FD: fd, N: 9000}, unix.EIO)
	writer.fails(call{Op: "fsync", FD: fd}, unix.EIO)
	writer.must(call{Op: "store", FD: mapped, Off: 0, Data: "latest"})
	// On the same mount, a new open is a new file to the kernel: it must not
	// send the lost mapping's pages through it.
	other.must(call{Op: "close", FD: next})
	eventually(t, "a new open on the old mount", func() bool {
		r := other.do(call{Op: "open", Path: a.path("f"), Flags: rdwr | nonblock})
		if r.Errno == 0 {
			next = r.N
		}
		return r.Errno == 0
	})
	other.must(call{Op: "pwrite", FD: next, Off: 6, Data: " again"})
	if r := writer.do(call{Op: "msync", FD: mapped}); r.Errno != unix.EIO {
		t.Errorf("msync of a lost mapping: %v, want EIO", r.Err())
	}
	other.must(call{Op: "fsync", FD: next})
	writer.fails(call{Op: "close", FD: fd}, unix.EIO)
	writer.kill()
	if got := v.read("f"); got[:13] != "theirs again-" || len(got) != 4096 {
		t.Errorf("the file holds %q…, %d bytes", got[:13], len(got))
	}
	other.must(call{Op: "close", FD: next})
	eventually(t, "nothing stays locked", func() bool { return len(v.ls()) == 0 })
}

// Somebody deletes a holder's entry by hand (etcdctl del). The next owner is
// granted the lock at once; the old one misses its entry and writes no more.
func TestDeletedEntryIsMissed(t *testing.T) {
	v := newVolume(t)
	a, b := v.mount("a"), v.mount("b")
	writer, bystander, other := newAgent(t), newAgent(t), newAgent(t)
	fd := writer.open(a.path("f"), wronly|create)
	kept := bystander.open(a.path("g"), wronly|create)
	etcd := v.etcd()
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
	eventually(t, "the holder misses its entry", func() bool {
		return writer.do(call{Op: "write", FD: fd, Data: "x"}).Errno == unix.EIO
	})
	before := v.read("f")
	next := other.open(b.path("f"), wronly|appends|nonblock)
	other.must(call{Op: "write", FD: next, Data: "theirs"})
	writer.fails(call{Op: "write", FD: fd, Data: "late"}, unix.EIO)
	writer.fails(call{Op: "close", FD: fd}, unix.EIO)
	bystander.must(call{Op: "write", FD: kept, Data: "not concerned"})
	if got := v.read("f"); got != before+"theirs" {
		t.Errorf("the file holds %q", got)
	}
}

// A daemon that was frozen for longer than its lease and thaws does not write: a
// program of its gets EIO, and the next owner's bytes stand.
func TestThawedDaemonDoesNotWrite(t *testing.T) {
	over(t, testThawedDaemonDoesNotWrite, local, inLeases, onNetworkVolume)
}

func testThawedDaemonDoesNotWrite(t *testing.T, on setup) {
	v := on.newVolume(t, "--wait", "-1")
	server, a := v.mount("server"), v.mount("a", "--ttl", shortTTL.String()) // the etcd is not frozen with a
	v.write("f", "")
	writer, other := newAgent(t), newAgent(t)
	fd := writer.open(a.path("f"), wronly)
	writer.must(call{Op: "write", FD: fd, Data: "mine\n"})
	freeze(t, a.cmd.Process.Pid)
	pending := writer.start(call{Op: "write", FD: fd, Data: "late\n"})
	next := other.open(server.path("f"), wronly|appends)
	other.must(call{Op: "write", FD: next, Data: "theirs\n"})
	if err := a.cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if r := await(t, "the frozen write", pending); r.Errno != unix.EIO {
		t.Errorf("the frozen write: %v, want EIO", r.Err())
	}
	writer.fails(call{Op: "write", FD: fd, Data: "later\n"}, unix.EIO)
	writer.fails(call{Op: "close", FD: fd}, unix.EIO)
	if got := v.read("f"); got != "mine\ntheirs\n" {
		t.Errorf("the file holds %q", got)
	}
}

// freeze stops a process, and returns when none of its threads runs any more.
func freeze(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process is frozen", func() bool {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		for _, stat := range stats {
			b, _ := os.ReadFile(stat)
			if i := bytes.LastIndexByte(b, ')'); i < 0 || b[i+2] != 'T' {
				return false
			}
		}
		return err == nil && len(stats) > 0
	})
}

// A killed mount's locks go to whoever waits; if the killed one served the etcd,
// its successor has to start one first, however long that takes.
func TestKilledMountHandsOver(t *testing.T) {
	over(t, testKilledMountHandsOver, local, inLeases, onNetworkVolume)
}

func testKilledMountHandsOver(t *testing.T, on setup) {
	for _, name := range []string{"client", "server"} {
		t.Run(name, func(t *testing.T) {
			v := on.newVolume(t, "--wait", "-1")
			mortal, patient := shortTTL.String(), "5m" // the survivor's lock is no question of time
			var victim, heir *mount
			if name == "server" { // the first
				victim = v.mount("victim", "--ttl", mortal)
				heir = v.mount("heir", "--ttl", patient)
			} else {
				heir = v.mount("heir", "--ttl", patient)
				victim = v.mount("victim", "--ttl", mortal)
			}
			holder, waiter, bystander := newAgent(t), newAgent(t), newAgent(t)
			fd := holder.open(victim.path("f"), wronly|create)
			holder.must(call{Op: "write", FD: fd, Data: "one\n"})
			kept := bystander.open(heir.path("kept"), wronly|create)
			pending := waiter.start(call{Op: "open", Path: heir.path("f"), Flags: wronly | appends})
			v.waitFor("f")
			victim.kill()
			opened := await(t, "open", pending)
			if opened.Errno != 0 {
				t.Fatalf("open: %v", opened.Err())
			}
			waiter.must(call{Op: "write", FD: opened.N, Data: "two\n"})
			waiter.must(call{Op: "fsync", FD: opened.N}) // or another client might not see it yet
			if got := v.read("f"); got != "one\ntwo\n" {
				t.Errorf("the file holds %q", got)
			}
			// A lock of the survivor was held through all of it.
			bystander.must(call{Op: "write", FD: kept, Data: "x"})
			found := false
			for _, e := range v.ls() {
				found = found || e.Path == "kept" && e.PID == bystander.pid() && e.State == "held"
			}
			if !found {
				t.Errorf("the survivor's lock is gone: %v", v.ls())
			}
			// The dead mount is in the way of nobody.
			again := v.mount(victim.name)
			bystander.must(call{Op: "close", FD: bystander.open(again.path("new"), wronly|create)})
		})
	}
}

// When the mount that serves the etcd ends in peace, another serves on: locks
// held stay held, and nobody notices.
func TestServerEndsInPeace(t *testing.T) {
	v := newVolume(t, "--wait", "-1")
	first, second := v.mount("first"), v.mount("second")
	holder, waiter := newAgent(t), newAgent(t)
	fd := holder.open(second.path("f"), wronly|create)
	token := v.ls()[0].Token
	if status := first.stop(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	holder.must(call{Op: "write", FD: fd, Data: "one\n"})
	eventually(t, "another serves", func() bool {
		cmd := v.command("ls", "-o", "json", v.source)
		return cmd.Run() == nil
	})
	if es := v.ls(); len(es) != 1 || es[0].Token != token {
		t.Errorf("the lock did not stay held: %v", es)
	}
	third := v.mount("third")
	pending := waiter.start(call{Op: "open", Path: third.path("f"), Flags: wronly | appends})
	v.waitFor("f")
	holder.must(call{Op: "write", FD: fd, Data: "two\n"})
	holder.must(call{Op: "close", FD: fd})
	opened := await(t, "open", pending)
	waiter.must(call{Op: "write", FD: opened.N, Data: "three\n"})
	if got := v.read("f"); got != "one\ntwo\nthree\n" {
		t.Errorf("the file holds %q", got)
	}
}

// A lock service that does not answer is waited out like contention. An outage
// shorter than the lease costs a pause; no lock is lost by it.
func TestUnreachableLockService(t *testing.T) {
	v := newVolume(t, "--wait", "1s", "--ttl", "6s")
	a := v.mount("a")
	v.write("f", "")
	writer, other := newAgent(t), newAgent(t)
	fd := writer.open(a.path("f"), wronly)
	etcd := v.etcdPID()
	stop := func() { freeze(t, etcd) }
	resume := func() { _ = unix.Kill(etcd, unix.SIGCONT) }
	t.Cleanup(resume)
	stop()
	other.fails(call{Op: "open", Path: a.path("g"), Flags: wronly | create | nonblock}, unix.ENOLCK)
	other.fails(call{Op: "truncate", Path: a.path("f"), Off: 1}, unix.EBUSY) // held here: no need to ask
	writer.must(call{Op: "write", FD: fd, Data: "in time\n"})
	resume()
	var opened result
	eventually(t, "locks are granted again", func() bool {
		opened = other.do(call{Op: "open", Path: a.path("g"), Flags: wronly | create})
		return opened.Errno == 0
	})
	other.must(call{Op: "close", FD: opened.N})

	stop()
	other.fails(call{Op: "open", Path: a.path("g"), Flags: wronly}, unix.ENOLCK)
	waiter := newAgent(t)
	waiter.start(call{Op: "open", Path: a.path("g"), Flags: wronly})
	waiter.kill() // hangs if it cannot die
	// Past the deadline a write waits, and goes on when the lease proves alive:
	// the frozen etcd could not let it expire.
	eventually(t, "the session is suspended", func() bool { return strings.Contains(a.log.String(), "suspended") })
	pending := writer.start(call{Op: "write", FD: fd, Data: "after a pause\n"})
	resume()
	r := await(t, "write", pending)
	got := v.read("f")
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
	v := newVolume(t, "--suspend-wait", "1h", "--ttl", shortTTL.String())
	a := v.mount("a")
	writer := newAgent(t)
	fd := writer.open(a.path("f"), wronly|create)
	etcd := v.etcdPID()
	freeze(t, etcd)
	t.Cleanup(func() { _ = unix.Kill(etcd, unix.SIGCONT) })
	eventually(t, "the session is suspended", func() bool { return strings.Contains(a.log.String(), "suspended") })
	pending := writer.start(call{Op: "write", FD: fd, Data: "never\n"})
	select {
	case r := <-pending:
		t.Fatalf("a write of a suspended session: %v", r.Err())
	case <-time.After(200 * time.Millisecond): // it does not end by itself
	}
	done := make(chan struct{})
	go func() { writer.kill(); close(done) }()
	select {
	case <-done:
	case <-time.After(callTimeout):
		t.Fatal("a program that waits in write() cannot be killed")
	}
	if got := v.read("f"); got != "" {
		t.Errorf("the file holds %q", got)
	}
}

// Readers do not wait for the lock service, even beside a write that does.
func TestReaderBesideSuspendedWrite(t *testing.T) {
	v := newVolume(t, "--suspend-wait", "1h", "--ttl", shortTTL.String())
	a := v.mount("a")
	v.write("f", "old\n")
	writer, reader := newAgent(t), newAgent(t)
	fd := writer.open(a.path("f"), wronly)
	etcd := v.etcdPID()
	freeze(t, etcd)
	t.Cleanup(func() { _ = unix.Kill(etcd, unix.SIGCONT) })
	eventually(t, "the session is suspended", func() bool { return strings.Contains(a.log.String(), "suspended") })
	t.Cleanup(writer.kill) // before the reader, which may wait for it
	pending := writer.start(call{Op: "pwrite", FD: fd, Data: "new\n"})
	eventually(t, "the write waits", func() bool { return writer.within(unix.SYS_PWRITE64) })
	got := reader.open(a.path("f"), rdonly)
	if r := reader.do(call{Op: "pread", FD: got, N: 10}); r.Data != "old\n" {
		t.Errorf("a reader got %q, %v", r.Data, r.Err())
	}
	select {
	case r := <-pending:
		t.Errorf("a write of a suspended session: %v", r.Err())
	default:
	}
}

// umount is as good an end as SIGTERM. A view that somebody takes out of the tree
// while it is in use does not keep SIGTERM waiting.
func TestUnmountedBySomebodyElse(t *testing.T) {
	v := newVolume(t)
	m := v.mount("m")
	p := newAgent(t)
	p.must(call{Op: "close", FD: p.open(m.path("f"), wronly|create)})
	umount := func(lazily string) {
		t.Helper()
		if os.Getuid() == 0 {
			run(t, "umount", strings.Fields("-n "+lazily+" "+m.dir)...)
		} else {
			run(t, "fusermount3", strings.Fields("-u "+strings.Replace(lazily, "-l", "-z", 1)+" "+m.dir)...)
		}
	}
	umount("")
	select {
	case <-m.done:
	case <-time.After(callTimeout):
		t.Fatal("it does not end")
	}
	if m.err != nil || strings.Contains(m.log.String(), "in use") {
		t.Errorf("%v, log:\n%s", m.err, m.log)
	}

	m = v.mount("n", "--ttl", "1h")
	fd := p.open(m.path("f"), rdwr)
	umount("-l")
	if status := m.stop(); status != 0 { // long before the TTL
		t.Errorf("exit status %d, log:\n%s", status, m.log)
	}
	if r := p.do(call{Op: "write", FD: fd, Data: "late"}); r.Errno == 0 {
		t.Error("a program wrote through a view that is gone")
	}
}

// SIGTERM unmounts a view that is in use, lets go of its locks at once, and
// exits with 0.
func TestTerminatedMountReleases(t *testing.T) {
	over(t, testTerminatedMountReleases, local, inLeases.forLong())
}

func testTerminatedMountReleases(t *testing.T, on setup) {
	terminated(t, on, func() {})
}

// A mount namespace that was made beside the mount has a copy of the view, and
// keeps it for as long as it likes. The mount ends in peace nevertheless.
func TestTerminatedMountLivesOnElsewhere(t *testing.T) {
	terminated(t, local, func() {
		elsewhere := exec.Command("unshare", "-m", "--propagation", "private", "sleep", "1000")
		if err := elsewhere.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = elsewhere.Process.Kill(); _ = elsewhere.Wait() })
		eventually(t, "there is a copy", func() bool {
			comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", elsewhere.Process.Pid))
			return string(comm) == "sleep\n"
		})
	})
}

// terminated ends a mount of two by SIGTERM, after what is to be there before its
// files are open.
func terminated(t *testing.T, on setup, before func()) {
	v := on.newVolume(t)
	a, b := v.mount("a"), v.mount("b")
	before()
	v.write("f", "")
	writer, other := newAgent(t), newAgent(t)
	fd := writer.open(b.path("f"), rdwr)
	writer.must(call{Op: "write", FD: fd, Data: "one\n"})
	if status := b.stop(); status != 0 {
		t.Errorf("exit status %d, log:\n%s", status, b.log)
	}
	if es := v.ls(); len(es) != 0 {
		t.Errorf("still locked: %v", es)
	}
	if fsType(b.dir) == unix.FUSE_SUPER_MAGIC {
		t.Error("still mounted")
	}
	next := other.open(a.path("f"), wronly|appends|nonblock)
	if r := writer.do(call{Op: "write", FD: fd, Data: "late\n"}); r.Errno == 0 {
		t.Error("a program wrote through a view that is gone")
	}
	other.must(call{Op: "write", FD: next, Data: "two\n"})
	if got := v.read("f"); got != "one\ntwo\n" {
		t.Errorf("the file holds %q", got)
	}
}

// A mount whose view was unmounted leaves the next view at its mountpoint alone.
func TestUnmountedMountLeavesTheNext(t *testing.T) {
	v := newVolume(t)
	v.mount("server") // of the locks
	old := v.mount("a")
	if err := old.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(old.dir, 0); err != nil {
		t.Fatal(err)
	}
	next := v.mount("a")
	if err := old.cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	<-old.done
	if status := old.cmd.ProcessState.ExitCode(); status != 0 {
		t.Errorf("exit status %d, log:\n%s", status, old.log)
	}
	if fsType(next.dir) != unix.FUSE_SUPER_MAGIC {
		t.Error("the next view was unmounted")
	}
}
