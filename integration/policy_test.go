package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// All mounts of a volume have one policy. It is changed on purpose, and only
// while nobody has the volume mounted.
func TestPolicyMismatch(t *testing.T) { over(t, testPolicyMismatch, local, inLeases) }

func testPolicyMismatch(t *testing.T, on setup) {
	v := on.newVolume(t)
	rules := filepath.Join(v.dir, "rules")
	if err := os.WriteFile(rules, []byte("*.tmp nolock # scratch\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	refused := func(says string, args ...string) {
		t.Helper()
		m := v.start("refused", args...)
		<-m.done
		log := strings.TrimSpace(m.log.String())
		last := log[strings.LastIndexByte(log, '\n')+1:]
		if status := m.cmd.ProcessState.ExitCode(); status != 1 || !strings.HasPrefix(last, "lockfs: ") || !strings.Contains(last, says) {
			t.Errorf("mount %q: exit status %d, %s; want 1 and a line with %q", args, status, last, says)
		}
	}
	a := v.mount("a")
	refused("--set-policy", "--policy", rules)
	refused(a.dir+" on a", "--policy", rules, "--set-policy")
	a.stop()
	refused("--set-policy", "--policy", rules)

	a = v.mount("a", "--policy", rules, "--set-policy")
	v.mount("b", "--rule", "**/*.tmp   nolock", "--set-policy")
	refused("(no rules)")
	refused("with two policies", "--rule", "*.tmp readonly")
	if status := a.stop(); status != 0 || !strings.Contains(a.log.String(), "matched nothing") {
		t.Errorf("exit status %d, and no word of the rule that matched nothing:\n%s", status, a.log)
	}
}

// A mount that was cut off while the policy changed takes no lock any more:
// by its rules it would exclude nobody who goes by the new ones.
func TestPolicyChangesBehindAMountsBack(t *testing.T) {
	etcd := newVolume(t) // lends its lock service, which would end with the volume's last mount
	etcd.mount("m")
	sock := etcd.stateFile("client.sock")
	link := newPartition(t, sock)
	v := newVolume(t, "--name", "v", "--ttl", shortTTL.String(), "--wait", "0", "--suspend-wait", "10ms")
	away := v.mount("away", "--endpoints", link.endpoint())
	p := newAgent(t)
	p.must(call{Op: "close", FD: p.open(away.path("f"), wronly|create)})
	link.part()
	eventually(t, "the mount that is cut off has given up", away.lostItsSession)
	var changed *mount
	eventually(t, "its lease has ended and the policy is changed", func() bool {
		changed = v.start("changed", "--endpoints", "unix://"+sock, "--rule", "/g readonly", "--set-policy")
		eventually(t, "it is mounted or refused", func() bool {
			select {
			case <-changed.done:
				return true
			default:
				return fsType(changed.dir) == unix.FUSE_SUPER_MAGIC
			}
		})
		return fsType(changed.dir) == unix.FUSE_SUPER_MAGIC
	})
	newPartition(t, sock) // heals
	eventually(t, "opens of the old mount are refused for good", func() bool {
		return p.do(call{Op: "open", Path: away.path("f"), Flags: wronly}).Errno == unix.EIO
	})
	eventually(t, "the log says why", func() bool { return strings.Contains(away.log.String(), "mount it again") })
	p.must(call{Op: "close", FD: p.open(changed.path("f"), wronly)})
}
