package faults

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/history"
	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
)

// Programs on two mounts lock ranges of one file by fcntl(2), and count in them, while mounts are
// killed and frozen for longer than the TTL, and in a long run while the lock service is away. No two have a unit at once, none is refused
// without a reason, and each reads what the last one wrote. (docs/SEMANTICS.md, rule 32.)
func TestRangesUnderFaults(t *testing.T) {
	lab.Over(t, testRangesUnderFaults, lab.Local, lab.Releasing.ForLong(), lab.InLeases.Alone().ForLong())
}

func testRangesUnderFaults(t *testing.T, on lab.Setup) {
	c := on.NewService(t)
	tr := history.New(t, c, append(on.Flags, "--rule", history.RangesRule, "--ttl", lab.ShortTTL.String())...)
	a, b := tr.Mount("a"), tr.Mount("b")
	work := func(m *lab.Mount) { tr.WorkOnRanges(m, 2) }
	work(a)
	tr.GoesOn("on one mount")
	work(b)
	tr.GoesOn("on two mounts")
	for round, end := 0, time.Now().Add(longtest.For(t)); round < 1 || time.Now().Before(end); round++ {
		a.Kill()
		for _, w := range writersOn(tr, a) {
			w.Kill() // hangs if it cannot die
			w.Ended = true
		}
		tr.GoesOn("without the killed one")
		a = tr.Mount("a")
		work(a)
		tr.GoesOn("with its successor")

		lab.Freeze(t, a.Cmd.Process.Pid)
		frozen := writersOn(tr, a)
		for _, w := range frozen {
			w.Ended = true
		}
		tr.GoesOn("without the frozen one")
		for _, w := range frozen {
			w.Ended = false
		}
		if err := a.Cmd.Process.Signal(unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		tr.GoesOn("with the thawed one")
		if longtest.For(t) == 0 {
			continue
		}
		for name, outage := range c.Outages() {
			outage(tr.GoesOn)
			tr.GoesOn("after: " + name)
		}
	}
	tr.Finish()
}
