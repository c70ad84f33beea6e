package faults

import (
	"testing"
	"time"

	"github.com/lockfs/lockfs/integration/history"
	"github.com/lockfs/lockfs/integration/lab"
)

// A short outage costs programs a pause, and no lock. (docs/SEMANTICS.md, rule 11.)
func TestShortOutages(t *testing.T) { lab.Over(t, testShortOutages, lab.Local, lab.InLeases.Alone()) }

func testShortOutages(t *testing.T, on lab.Setup) {
	c := on.NewService(t)
	for name, outage := range c.Outages() {
		t.Run(name, func(t *testing.T) {
			tr := history.New(t, c, "--wait", "-1", "--suspend-wait", "10m")
			tr.Load(tr.Mount("a"))
			tr.Load(tr.Mount("b"))
			tr.GoesOn("before the fault")
			began := time.Now()
			outage(tr.GoesOn)
			lasted := time.Since(began)
			tr.GoesOn("after the fault")
			tr.Finish()
			tr.SparedBy(lasted)
			tr.WaitedOut()
		})
	}
}
