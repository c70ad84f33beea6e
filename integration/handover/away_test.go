package handover

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// While the lock service does not answer, an upgrade fails. The old daemon goes on as ever, with its
// locks when the outage is over. (docs/SEMANTICS.md, rule 27.)
func TestUpgradeInAnOutage(t *testing.T) {
	lab.Over(t, testUpgradeInAnOutage, lab.Local, lab.InLeases.Alone().ForLong())
}

func testUpgradeInAnOutage(t *testing.T, on lab.Setup) {
	service := on.NewService(t)
	service.Healthy()
	v := on.NewVolume(t, "--ttl", "3m")
	v.Env = append(v.Env, append(service.Env(), "LOCKFS_NAMESPACE="+v.Namespace())...)
	v.Write("log", "")
	a := v.Mount("a")
	p := lab.NewAgent(t)
	log := p.Open(a.Path("log"), unix.O_WRONLY|unix.O_APPEND)
	back := service.Stop()
	next := v.Start("a", "--take-over")
	began := time.Now()
	p.Must(lab.Call{Op: "write", FD: log, Data: "in the outage\n"})
	lab.Eventually(t, "the new daemon gives up", func() bool { return ended(next) })
	if ended(a) || next.Said("took the mount over") {
		t.Fatalf("the old daemon has ended: %v\n%s\n%s", a.Err, a.Log, next.Log)
	}
	t.Logf("the new daemon gave up after %v: %s", time.Since(began), last(next.Log.String()))
	p.Must(lab.Call{Op: "write", FD: log, Data: "after it\n"})
	back()
	upgrade(t, a)
	p.Must(lab.Call{Op: "write", FD: log, Data: "upgraded\n"})
	p.Must(lab.Call{Op: "close", FD: log})
	if got := v.Read("log"); got != "in the outage\nafter it\nupgraded\n" {
		t.Errorf("the log is %q", got)
	}
}

// A daemon that dies in an outage of the lock service leaves its view to the next one, which waits for
// the service.
func TestDeathInAnOutage(t *testing.T) {
	lab.InTurn(t, testDeathInAnOutage, lab.Local, lab.InLeases.Alone().ForLong())
}

func testDeathInAnOutage(t *testing.T, on lab.Setup) {
	service := on.NewService(t)
	service.Healthy()
	v := on.NewVolume(t, "--ttl", "60s", "--supervise")
	v.Env = append(v.Env, append(service.Env(), "LOCKFS_NAMESPACE="+v.Namespace())...)
	v.Write("log", "")
	a, b := lab.Supervise(v.Mount("a")), v.Mount("b")
	p, other := lab.NewAgent(t), lab.NewAgent(t)
	log := p.Open(a.Path("log"), unix.O_WRONLY|unix.O_APPEND)
	a.BecomesSteady()
	was := a.Serving()
	back := service.Stop()
	a.Dies(func() {
		if err := unix.Kill(was, unix.SIGKILL); err != nil {
			t.Error(err)
		}
		lab.Eventually(t, "another worker begins", func() bool {
			next := a.Worker()
			return next != 0 && next != was
		})
		back()
	})
	p.Must(lab.Call{Op: "write", FD: log, Data: "after it\n"})
	p.Must(lab.Call{Op: "close", FD: log})
	theirs := other.Open(b.Path("log"), unix.O_WRONLY)
	other.Must(lab.Call{Op: "close", FD: theirs})
	if got := v.Read("log"); got != "after it\n" {
		t.Errorf("the log is %q", got)
	}
}

func last(log string) string {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	return lines[len(lines)-1]
}
