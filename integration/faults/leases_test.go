package faults

import (
	"testing"
	"time"

	"github.com/lockfs/lockfs/integration/history"
	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
)

// API servers of one etcd have a cache each, and one may be behind. Mounts are
// on either, and one moves to and fro.
func TestServersOfOneStore(t *testing.T) { lab.Over(t, testServersOfOneStore, lab.InLeases.Alone()) }

func testServersOfOneStore(t *testing.T, on lab.Setup) {
	l := on.NewLeases(t)
	elsewhere := l.Beside()
	tr, w := history.New(t, l, "--wait", "-1", "--suspend-wait", "10m"), lab.NewWire(t, l)
	for _, m := range []*lab.Mount{tr.Mount("a"), tr.Mount("b", w.Flag), tr.Mount("c", elsewhere.Flag(elsewhere.Addresses()))} {
		tr.Work(m, 2)
	}
	tr.GoesOn("on two servers")
	for round, end := 0, time.Now().Add(longtest.For(t)); round < 2 || time.Now().Before(end); round++ {
		w.Cut()
		w.Move([]*lab.Leases{elsewhere, l}[round%2].Addresses())
		w.Mend()
		tr.GoesOn("moved to the other")
	}
	tr.Finish()
	tr.Spared()
}
