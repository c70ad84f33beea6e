package commands

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// lender is an etcd that other volumes can use, as --endpoints.
func lender(t *testing.T) (endpoints string) {
	t.Helper()
	v := lab.NewVolume(t)
	v.Mount("m")
	return "--endpoints=unix://" + v.StateFile("client.sock")
}

// refusalOf starts a mount which must be refused for its lock service, and returns the
// command that would move the volume there.
func refusalOf(v *lab.Volume, args ...string) (move []string) {
	v.T.Helper()
	m := v.Refused(args...)
	found := regexp.MustCompile(`has its locks in (\S+), and this is (\S+): .*'lockfs (move --to (\S+) (\S+))'`).FindStringSubmatch(m.Log.String())
	if m.Cmd.ProcessState.ExitCode() != 1 || found == nil || found[1] == found[2] || found[2] != found[4] || found[5] != v.Source {
		v.T.Fatalf("mount %q: exit status %d, want 1 and a line that names both lock services:\n%s", args, m.Cmd.ProcessState.ExitCode(), m.Log)
	}
	return strings.Fields(found[3])
}

// locks makes sure that the mounts exclude each other.
func locks(t *testing.T, a, b *lab.Mount) {
	t.Helper()
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	fd := p.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	if r := q.Do(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY | unix.O_NONBLOCK}); r.Errno == 0 {
		t.Error("both have the file open for write")
	}
	p.Must(lab.Call{Op: "close", FD: fd})
}

// A volume has one lock service. A mount with another is refused, until the volume is
// moved there, which the former service allows when no mount lives.
func TestMoveToAnotherLockService(t *testing.T) {
	t.Parallel()
	one, two := lender(t), lender(t)
	v := lab.NewVolume(t, "--name", "v", "--ttl", "5m") // no session ends by itself
	lab.InMemory(t, v.Source)
	a := v.Mount("a", one)
	move := refusalOf(v, two)
	refusalOf(v) // the embedded etcd is one, too
	b := v.Mount("b", one)
	locks(t, a, b)

	moved := func(status int, says string, args ...string) {
		t.Helper()
		got, stdout, stderr := lab.Outcome(t, v.Command(append(append([]string{}, move...), args...)...))
		if got != status || !strings.Contains(stdout+stderr, says) {
			t.Fatalf("%q %q: exit status %d, %q %q; want %d and %q", move, args, got, stdout, stderr, status, says)
		}
	}
	moved(1, a.Dir, one)
	a.Stop()
	b.Kill() // its session outlives it
	moved(1, b.Dir, one)
	lab.Run(t, "umount", b.Dir)
	moved(1, b.Dir+" on b", one)
	moved(1, "and this is etcd/", two)
	c := v.Mount("b", one)
	c.Stop()
	for _, args := range [][]string{{"ls"}, {"break", "--reason", "test"}} {
		for _, wrong := range []string{two, lender(t)} {
			args := append(append([]string{}, args...), wrong, v.InSource("f"))
			status, _, stderr := lab.Outcome(t, v.Command(args...))
			if status != 2 || !regexp.MustCompile(`has its locks in etcd/\S+, and this is etcd.*unix://`).MatchString(stderr) {
				t.Errorf("%q: exit status %d, %q; want 2 and both lock services", args, status, stderr)
			}
		}
	}
	moved(2, "exclude each other", one, "--gone", "etcd/x")
	moved(2, "has its locks in etcd/", "--gone", "unknown")
	moved(0, "from now on", one)

	refusalOf(v, one)
	locks(t, v.Mount("a", two), v.Mount("b", two))
}

// The state of the embedded etcd may be lost, by a boot for example: the volume goes on
// with a new one. It does not where others may have another.
func TestEmbeddedStateIsLost(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	a.Stop()
	if err := os.RemoveAll(v.State); err != nil {
		t.Fatal(err)
	}
	a, b := v.Mount("a"), v.Mount("b")
	locks(t, a, b)
	refusalOf(v, lender(t))
}

// The same between the kinds of lock services, there and back.
func TestMoveBetweenKinds(t *testing.T) { lab.Over(t, testMoveBetweenKinds, lab.InLeases) }

func testMoveBetweenKinds(t *testing.T, on lab.Setup) {
	etcd := []string{lender(t)}
	leases := []string{"--backend=kubernetes", "--lease-namespace=" + on.Space, "--kubeconfig=" + on.Server.KubeconfigFile}
	v := lab.NewVolume(t, "--name", "v") // of neither kind unless it is told
	for _, s := range [][2][]string{{leases, etcd}, {etcd, leases}} {
		from, to := s[0], s[1]
		a, b := v.Mount("a", from...), v.Mount("b", from...)
		locks(t, a, b)
		move := v.Command(append(refusalOf(v, to...), from...)...)
		a.Stop()
		// What this machine has mounted is one thing, which sessions live another.
		hidden := exec.Command("unshare", append([]string{"-m", "sh", "-c", `umount -l "$0" && exec "$@"`, b.Dir}, move.Args...)...)
		hidden.Env = v.Env
		if status, _, stderr := lab.Outcome(t, hidden); status != 1 || !strings.Contains(stderr, b.Dir+" on b") {
			t.Errorf("while a mount lives: exit status %d, %s", status, stderr)
		}
		b.Stop()
		move = v.Command(move.Args[1:]...)
		if status, stdout, stderr := lab.Outcome(t, move); status != 0 || !strings.Contains(stdout, "from now on") {
			t.Fatalf("exit status %d, %s %s", status, stdout, stderr)
		}
	}
	locks(t, v.Mount("a", leases...), v.Mount("b", leases...))
}
