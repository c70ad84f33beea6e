package faults

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/lockfs/lockfs/integration/history"
	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
)

// Random faults of the lock service, one after the other, in a long run.
func TestFaultsAtRandom(t *testing.T) {
	lab.Over(t, testFaultsAtRandom, lab.Local, lab.Releasing, lab.InLeases.Alone().ForLong())
}

func testFaultsAtRandom(t *testing.T, on lab.Setup) {
	longtest.Only(t)
	end := time.Now().Add(longtest.For(t))
	var c lab.Service
	faults := map[string]func(*history.Trial, *lab.Wire){
		"stopped": func(*history.Trial, *lab.Wire) {
			back := c.Stop()
			lab.Between(0, 10*time.Second)
			back()
		},
	}
	if on.Leases {
		c = on.NewLeases(t)
	} else {
		disks := make(map[string]*disk)
		etcd := lab.NewCluster(t, onDisks(t, disks))
		c = etcd
		faults["slow disk"] = func(tr *history.Trial, _ *lab.Wire) {
			leader, _ := etcd.Leader()
			d := disks[leader.Config.Name]
			d.takes(3 * time.Second)
			defer d.takes(0)
			tr.GoesOn("without the leader's disk")
		}
	}
	for name, outage := range c.Outages() {
		faults[name] = func(tr *history.Trial, _ *lab.Wire) { outage(tr.GoesOn) }
	}
	for name, s := range severances {
		faults["mount cut off: "+name] = func(_ *history.Trial, w *lab.Wire) {
			s.sever(w)
			lab.Between(0, 10*time.Second)
			s.mend(w)
		}
	}
	names := slices.Sorted(maps.Keys(faults))
	for round := 0; time.Now().Before(end) && !t.Failed(); round++ {
		t.Run("", func(t *testing.T) {
			tr, w := history.New(t, c, append(on.Flags, "--wait", "-1", "--ttl", "6s", "--suspend-wait", "2s")...), lab.NewWire(t, c)
			a, b := tr.Mount("a"), tr.Mount("b", w.Flag)
			for _, m := range []*lab.Mount{a, b, tr.Mount("c", "--wait", "5s")} {
				tr.Load(m)
			}
			tr.WorkAlone(b, a)
			tr.WorkBelow(b, a)
			tr.GoesOn("before the faults")
			for range 3 {
				name := names[rand.IntN(len(names))]
				t.Log(name)
				faults[name](tr, w)
				c.Healthy()
				tr.GoesOn("after: " + name)
			}
			tr.Finish()
		})
	}
}
