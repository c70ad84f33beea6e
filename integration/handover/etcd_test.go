package handover

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// The embedded etcd outlives the upgrade of the mount that has started it, whether that succeeds or
// is given up. The new daemon starts another one when it ends, and it ends with the new daemon.
// (docs/SEMANTICS.md, rule 27.)
func TestUpgradeKeepsTheEmbeddedEtcd(t *testing.T) {
	lab.Over(t, testUpgradeKeepsTheEmbeddedEtcd, lab.Local)
}

func testUpgradeKeepsTheEmbeddedEtcd(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	v.Write("f", "")
	a, b := v.Mount("a"), v.Mount("b")
	p, other := lab.NewAgent(t), lab.NewAgent(t)
	fd := p.Open(a.Path("f"), unix.O_WRONLY)
	pid := v.EtcdPID()
	same := func(when string) {
		t.Helper()
		if now := v.EtcdPID(); now != pid {
			t.Errorf("%s: etcd is the process %d, and was %d", when, now, pid)
		}
		// There is no outage: nobody waits for an answer.
		other.Fails(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY | unix.O_NONBLOCK}, unix.EAGAIN)
	}
	for range 3 {
		asked(t, a).Close()
		same("given up")
		a = upgrade(t, a)
		same("upgraded")
		b = upgrade(t, b)
		same("the other is upgraded")
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	changed := func(when string) {
		t.Helper()
		lab.Eventually(t, when+": another etcd serves", func() bool { return v.EtcdPID() != pid })
		v.AwaitTakeover()
		pid = v.EtcdPID()
	}
	changed("it was killed")
	a, b = upgrade(t, a), upgrade(t, b)
	same("one that was started anew")
	p.Must(lab.Call{Op: "close", FD: fd})
	a.Stop()
	b.Stop()
	v.Mount("c")
	changed("its mounts have ended")
}

// The etcd ends with a new daemon that is killed, and another mount serves.
func TestEmbeddedEtcdEndsWithTheNewDaemon(t *testing.T) {
	lab.Over(t, testEmbeddedEtcdEndsWithTheNewDaemon, lab.Local)
}

func testEmbeddedEtcdEndsWithTheNewDaemon(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	v.Write("f", "")
	a, b := v.Mount("a"), v.Mount("b")
	a = upgrade(t, a)
	pid := v.EtcdPID()
	a.Kill()
	lab.Eventually(t, "the other mount serves", func() bool { return v.EtcdPID() != pid })
	v.AwaitTakeover()
	p := lab.NewAgent(t)
	p.Must(lab.Call{Op: "close", FD: p.Open(b.Path("f"), unix.O_WRONLY)})
}
