package faults

import (
	"testing"

	"github.com/lockfs/lockfs/integration/history"
	"github.com/lockfs/lockfs/integration/lab"
)

// A short outage costs programs a pause, and no lock. (docs/SEMANTICS.md, rule 11.)
func TestShortOutages(t *testing.T) { lab.Over(t, testShortOutages, lab.Local, lab.InLeases) }

func testShortOutages(t *testing.T, on lab.Setup) {
	c := on.NewService(t)
	for name, outage := range c.Outages() {
		t.Run(name, func(t *testing.T) {
			tr := history.New(t, c, "--wait", "-1")
			tr.Load(tr.Mount("a"))
			tr.Load(tr.Mount("b"))
			tr.GoesOn("before the fault")
			began := history.Monotonic()
			outage(tr.GoesOn)
			tr.GoesOn("after the fault")
			tr.Finish()
			tr.Spared()
			tr.WaitedOut(began)
		})
	}
}
