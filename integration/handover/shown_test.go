package handover

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// The new daemon answers HTTP where the old one did. Metrics and 'lockfs status' say how often the
// view was taken over, and with what. The old daemon's log does not say that anything was lost.
func TestUpgradeIsShown(t *testing.T) { lab.Over(t, testUpgradeIsShown, lab.Local, lab.InLeases) }

func testUpgradeIsShown(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "-1")
	v.Write("f", "")
	a := v.MountWatched("a")
	holder, waiter := lab.NewAgent(t), lab.NewAgent(t)
	held := holder.Open(a.Path("f"), unix.O_WRONLY)
	opens := waiter.Start(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY})
	lab.Eventually(t, "the second waits", func() bool { return waiter.Within(unix.SYS_OPENAT) })
	a.Has(0, "lockfs_takeovers_total")
	const times = 3
	for i := range times {
		old := a.Mount
		next := upgrade(t, old, "--http", strings.TrimSuffix(strings.TrimPrefix(a.URL, "http://"), "/metrics"))
		if !old.Said("lock session handed on") || old.Said("lock session closed") {
			t.Errorf("the old daemon:\n%s", old.Log)
		}
		a.Mount = next
		lab.Eventually(t, "the new one answers HTTP", func() bool { return next.Said("answering HTTP") })
		a.Has(float64(i+1), "lockfs_takeovers_total")
	}
	a.Has(1, "lockfs_takeover_carried", `what="open_files"`)
	a.Has(1, "lockfs_takeover_carried", `what="locks"`)
	a.Has(1, "lockfs_takeover_carried", `what="waiting"`)
	if took := a.Metric("lockfs_takeover_seconds"); took <= 0 {
		t.Errorf("it took %v s", took)
	}
	lab.Eventually(t, "'lockfs status' shows it", func() bool { // a busy machine's daemon may not answer in time
		out, err := v.Command("status", "--state-dir", v.State, a.Dir).CombinedOutput()
		return err == nil && strings.Contains(string(out), "takeovers     3, the last ") &&
			strings.Contains(string(out), " and carried 1 open files, 1 locks, 1 waiting\n")
	})
	holder.Must(lab.Call{Op: "close", FD: held})
	if r := lab.Await(t, "the open", opens); r.Errno != 0 {
		t.Error(r.Err())
	}
}
