package handover

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// Locks of flock and fcntl stay with what has them, whether the table is shared between mounts or
// one mount's, and exclude programs of all mounts as before. (docs/SEMANTICS.md, rule 27.)
func TestUpgradeKeepsFlocks(t *testing.T) {
	lab.Over(t, func(t *testing.T, on lab.Setup) {
		keepsFlocks(t, newFlocks(t, on), func(m *lab.Mount) *lab.Mount { return upgrade(t, m) })
	}, lab.Local, lab.InLeases)
}

// So they do when daemons die, and are upgraded in between.
func TestDeathKeepsFlocks(t *testing.T) {
	lab.Over(t, func(t *testing.T, on lab.Setup) {
		keepsFlocks(t, newFlocks(t, on, "--supervise", "--ttl", patientTTL), succeed(t))
	}, lab.Local, lab.InLeases)
}

// succeed returns what lets another daemon go on with a mount: for the most part by a death, and
// sometimes by an upgrade.
func succeed(t *testing.T) func(*lab.Mount) *lab.Mount {
	mounts := make(map[string]*lab.Supervised)
	n := 0
	return func(m *lab.Mount) *lab.Mount {
		if mounts[m.Name] == nil {
			mounts[m.Name] = lab.Supervise(m)
		}
		s := mounts[m.Name]
		if n++; n%3 == 0 {
			s = lab.Supervise(upgrade(t, m))
			s.Takeovers = 1 // the upgrade is told so too
			mounts[m.Name] = s
			return s.Mount
		}
		s.KillWorker()
		return s.Mount
	}
}

func keepsFlocks(t *testing.T, v *lab.Volume, next func(*lab.Mount) *lab.Mount) {
	for _, name := range []string{"private", "shared", "idle"} {
		v.Write(name, "0123456789")
	}
	a, b := v.Mount("a"), v.Mount("b")
	p, other, local := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	const (
		ex, no, un = unix.LOCK_EX, unix.LOCK_NB, unix.LOCK_UN
		wrlck      = unix.F_WRLCK
		unlck      = unix.F_UNLCK
	)
	fds := make(map[string]int)
	for _, name := range []string{"private", "shared", "idle"} {
		fds[name] = p.Open(a.Path(name), unix.O_RDWR)
		p.Must(lab.Call{Op: "flock", FD: fds[name], Flags: ex})
	}
	p.Must(lab.Call{Op: "flock", FD: fds["idle"], Flags: un})
	p.Must(lab.Call{Op: "setlk", FD: fds["shared"], Flags: wrlck, Off: 2, N: 3})
	theirs := other.Open(b.Path("shared"), unix.O_RDWR)
	other.Must(lab.Call{Op: "ofd setlk", FD: theirs, Flags: wrlck, Off: 7, N: 1}) // has the table shared
	mine := make(map[string]int)
	for _, name := range []string{"private", "shared"} {
		mine[name] = local.Open(a.Path(name), unix.O_RDWR)
	}
	held := func() {
		t.Helper()
		for _, name := range []string{"private", "shared"} {
			local.Fails(lab.Call{Op: "flock", FD: mine[name], Flags: ex | no}, unix.EAGAIN)
		}
		other.Fails(lab.Call{Op: "flock", FD: theirs, Flags: ex | no}, unix.EAGAIN)
		other.Fails(lab.Call{Op: "setlk", FD: theirs, Flags: wrlck, Off: 4, N: 1}, unix.EAGAIN)
		p.Fails(lab.Call{Op: "setlk", FD: fds["shared"], Flags: wrlck, Off: 7, N: 1}, unix.EAGAIN)
		p.Must(lab.Call{Op: "pwrite", FD: fds["shared"], Off: 2, Data: "abc"})
		p.Must(lab.Call{Op: "fsync", FD: fds["private"]})
	}
	held()
	for i := range 3 {
		a = next(a)
		if i == 1 {
			b = next(b)
		}
		held()
	}
	if n := len(v.LS()); n < 4 {
		t.Errorf("%d locks are listed", n)
	}
	// Another mount wants what was private: it is published, with the lock.
	third := other.Open(b.Path("private"), unix.O_RDWR)
	other.Fails(lab.Call{Op: "flock", FD: third, Flags: ex | no}, unix.EAGAIN)

	p.Must(lab.Call{Op: "flock", FD: fds["shared"], Flags: un})
	other.Must(lab.Call{Op: "flock", FD: theirs, Flags: ex})
	p.Must(lab.Call{Op: "setlk", FD: fds["shared"], Flags: unlck, Off: 2, N: 3})
	other.Must(lab.Call{Op: "setlk", FD: theirs, Flags: wrlck, Off: 4, N: 1})
	p.Must(lab.Call{Op: "close", FD: fds["private"]})
	other.Must(lab.Call{Op: "flock", FD: third, Flags: ex})
	for _, agent := range []*lab.Agent{p, other, local} {
		agent.Kill()
	}
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}
