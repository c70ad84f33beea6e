package handover

import (
	"regexp"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/history"
	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
)

// tooSlow are why an upgrade fails on a slow machine, and may be tried again: the pause or a time-out
// was too short, the lock service has not answered in time, a successor that has given up was still in
// the way, or the daemon did not offer the mount yet.
var tooSlow = regexp.MustCompile("requests are under way in the volume|" + isHandedOn + "|context deadline exceeded|i/o timeout|has waited for too long, and goes on|" +
	"its renewal is late|flock and fcntl locks are being taken or given back|is already a lockfs view of")

// upgrade replaces the daemon of a mount by another one, which it returns.
func upgrade(t *testing.T, m *lab.Mount, args ...string) *lab.Mount {
	t.Helper()
	start := func() *lab.Mount { return m.Vol.Start(m.Name, append(args, "--take-over")...) }
	next := start()
	lab.Eventually(t, "the old daemon of "+m.Name+" ends", func() bool {
		select {
		case <-m.Done:
			return true
		case <-next.Done:
			if tooSlow.MatchString(next.Log.String()) {
				next = start()
				return false
			}
			t.Fatalf("the new daemon ended: %v\n%s\nthe old one:\n%s", next.Err, next.Log, m.Log)
		default:
		}
		return false
	})
	if m.Err != nil {
		t.Fatalf("the old daemon of %s: %v\n%s", m.Name, m.Err, m.Log)
	}
	lab.Eventually(t, "the new daemon serves "+m.Name, func() bool { return next.Said("took the mount over") })
	m.Vol.AwaitTakeover()
	return next
}

// Programs that write, wait, try, rotate and hold on two mounts notice no upgrade but a pause.
// (docs/SEMANTICS.md, rule 27.)
func TestUpgradesUnderLoad(t *testing.T) {
	lab.Over(t, testUpgradesUnderLoad, lab.Local, lab.InLeases.ForLong())
}

func testUpgradesUnderLoad(t *testing.T, on lab.Setup) {
	tr := history.New(t, on.NewService(t), append([]string{"--wait", "-1", "--suspend-wait", "10m"}, on.Flags...)...)
	a, b := tr.Mount("a"), tr.Mount("b")
	tr.Load(a)
	tr.Load(b)
	tr.WorkAlone(a, b)
	tr.WorkBelow(b, a)
	tr.GoesOn("before the upgrades")
	began := history.Monotonic()
	upgrades := 0
	for i := range longtest.Seeds(t, 2, 20) {
		upgrades++
		if i%2 == 0 {
			a = upgrade(t, a)
		} else {
			b = upgrade(t, b)
		}
		tr.GoesOn("after an upgrade")
	}
	tr.Finish()
	tr.Spared()
	var writes []time.Duration
	for _, w := range tr.Writers {
		for _, o := range w.History() {
			if o.Return < began {
				continue
			}
			// Opens and renames of names that others use and replace are refused now and then, as ever.
			asEver := o.Kind != history.Wrote && o.Kind != history.Closed && slices.Contains([]syscall.Errno{unix.EAGAIN, unix.EBUSY, unix.ESTALE}, o.Errno)
			if o.Errno != 0 && !asEver && !tr.Unanswered(o) {
				t.Errorf("%s of %s: %v", o.Kind, o.Hold, o.Errno)
			}
			if o.Kind == history.Wrote {
				writes = append(writes, time.Duration(o.Return-o.Call))
			}
		}
	}
	slices.Sort(writes)
	if len(writes) > 0 {
		t.Logf("%d writes in %d upgrades: median %v, longest %v", len(writes), upgrades, writes[len(writes)/2], writes[len(writes)-1])
	}
}
