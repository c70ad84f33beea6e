package integration

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// lender is an etcd that other volumes can use, as --endpoints.
func lender(t *testing.T) (endpoints string) {
	t.Helper()
	v := newVolume(t)
	v.mount("m")
	return "--endpoints=unix://" + v.stateFile("client.sock")
}

// refused starts a mount which must not come to be, and returns when it has ended.
func (v *volume) refused(args ...string) *mount {
	v.t.Helper()
	m := v.start("refused", args...)
	eventually(v.t, "it is mounted or refused", func() bool {
		select {
		case <-m.done:
			return true
		default:
			return fsType(m.dir) == unix.FUSE_SUPER_MAGIC
		}
	})
	if fsType(m.dir) == unix.FUSE_SUPER_MAGIC {
		v.t.Fatalf("it is mounted, with %q", args)
	}
	<-m.done
	return m
}

// refusal starts a mount which must be refused for its lock service, and returns the
// command that would move the volume there.
func (v *volume) refusal(args ...string) (move []string) {
	v.t.Helper()
	m := v.refused(args...)
	found := regexp.MustCompile(`has its locks in (\S+), and this is (\S+): .*'lockfs (move --to (\S+) (\S+))'`).FindStringSubmatch(m.log.String())
	if m.cmd.ProcessState.ExitCode() != 1 || found == nil || found[1] == found[2] || found[2] != found[4] || found[5] != v.source {
		v.t.Fatalf("mount %q: exit status %d, want 1 and a line that names both lock services:\n%s", args, m.cmd.ProcessState.ExitCode(), m.log)
	}
	return strings.Fields(found[3])
}

// locks makes sure that the mounts exclude each other.
func locks(t *testing.T, a, b *mount) {
	t.Helper()
	p, q := newAgent(t), newAgent(t)
	fd := p.open(a.path("f"), wronly|create)
	if r := q.do(call{Op: "open", Path: b.path("f"), Flags: wronly | nonblock}); r.Errno == 0 {
		t.Error("both have the file open for write")
	}
	p.must(call{Op: "close", FD: fd})
}

// A volume has one lock service. A mount with another is refused, until the volume is
// moved there, which the former service allows when no mount lives.
func TestMoveToAnotherLockService(t *testing.T) {
	one, two := lender(t), lender(t)
	v := newVolume(t, "--name", "v")
	a := v.mount("a", one)
	move := v.refusal(two)
	v.refusal() // the embedded etcd is one, too
	b := v.mount("b", one)
	locks(t, a, b)

	moved := func(status int, says string, args ...string) {
		t.Helper()
		got, stdout, stderr := outcome(t, v.command(append(append([]string{}, move...), args...)...))
		if got != status || !strings.Contains(stdout+stderr, says) {
			t.Fatalf("%q %q: exit status %d, %q %q; want %d and %q", move, args, got, stdout, stderr, status, says)
		}
	}
	moved(1, a.dir, one)
	a.stop()
	b.kill() // its session outlives it
	moved(1, b.dir, one)
	run(t, "umount", b.dir)
	moved(1, b.dir+" on b", one)
	moved(1, "and this is etcd/", two)
	c := v.mount("b", one)
	c.stop()
	for _, args := range [][]string{{"ls"}, {"break", "--reason", "test"}} {
		for _, wrong := range []string{two, lender(t)} {
			args := append(append([]string{}, args...), wrong, v.inSource("f"))
			status, _, stderr := outcome(t, v.command(args...))
			if status != 2 || !regexp.MustCompile(`has its locks in etcd/\S+, and this is etcd.*unix://`).MatchString(stderr) {
				t.Errorf("%q: exit status %d, %q; want 2 and both lock services", args, status, stderr)
			}
		}
	}
	moved(2, "exclude each other", one, "--gone", "etcd/x")
	moved(2, "has its locks in etcd/", "--gone", "unknown")
	moved(0, "from now on", one)

	v.refusal(one)
	locks(t, v.mount("a", two), v.mount("b", two))
}

// The state of the embedded etcd may be lost, by a boot for example: the volume goes on
// with a new one. It does not where others may have another.
func TestEmbeddedStateIsLost(t *testing.T) {
	v := newVolume(t)
	a := v.mount("a")
	a.stop()
	if err := os.RemoveAll(v.state); err != nil {
		t.Fatal(err)
	}
	a, b := v.mount("a"), v.mount("b")
	locks(t, a, b)
	v.refusal(lender(t))
}

// The same between the kinds of lock services, there and back.
func TestMoveBetweenKinds(t *testing.T) { over(t, testMoveBetweenKinds, inLeases) }

func testMoveBetweenKinds(t *testing.T, on setup) {
	etcd := []string{lender(t)}
	leases := []string{"--backend=kubernetes", "--lease-namespace=" + on.space, "--kubeconfig=" + on.server.kubeconfig}
	v := newVolume(t, "--name", "v") // of neither kind unless it is told
	for _, s := range [][2][]string{{leases, etcd}, {etcd, leases}} {
		from, to := s[0], s[1]
		a, b := v.mount("a", from...), v.mount("b", from...)
		locks(t, a, b)
		move := v.command(append(v.refusal(to...), from...)...)
		a.stop()
		// What this machine has mounted is one thing, which sessions live another.
		hidden := exec.Command("unshare", append([]string{"-m", "sh", "-c", `umount -l "$0" && exec "$@"`, b.dir}, move.Args...)...)
		hidden.Env = v.env
		if status, _, stderr := outcome(t, hidden); status != 1 || !strings.Contains(stderr, b.dir+" on b") {
			t.Errorf("while a mount lives: exit status %d, %s", status, stderr)
		}
		b.stop()
		move = v.command(move.Args[1:]...)
		if status, stdout, stderr := outcome(t, move); status != 0 || !strings.Contains(stdout, "from now on") {
			t.Fatalf("exit status %d, %s %s", status, stdout, stderr)
		}
	}
	locks(t, v.mount("a", leases...), v.mount("b", leases...))
}
