package integration

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/lockfs/lockfs/internal/longtest"
)

// Faults of the lock service, one after the other, as chance has it, when there is time.
func TestFaultsAtRandom(t *testing.T) { over(t, testFaultsAtRandom, local, inLeases.forLong()) }

func testFaultsAtRandom(t *testing.T, on setup) {
	longtest.Only(t)
	end := time.Now().Add(longtest.For(t))
	var c service
	faults := map[string]func(*trial, *wire){
		"stopped": func(*trial, *wire) {
			back := c.stop()
			between(0, 10*time.Second)
			back()
		},
	}
	if on.leases {
		c = on.newLeases(t)
	} else {
		disks := make(map[string]*disk)
		etcd := newCluster(t, onDisks(t, disks))
		c = etcd
		faults["slow disk"] = func(tr *trial, _ *wire) {
			leader, _ := etcd.leader()
			d := disks[leader.config.Name]
			d.takes(3 * time.Second)
			defer d.takes(0)
			tr.goesOn("without the leader's disk")
		}
	}
	for name, outage := range c.outages() {
		faults[name] = func(tr *trial, _ *wire) { outage(tr.goesOn) }
	}
	for name, s := range severances {
		faults["mount cut off: "+name] = func(_ *trial, w *wire) {
			s.sever(w)
			between(0, 10*time.Second)
			s.mend(w)
		}
	}
	names := slices.Sorted(maps.Keys(faults))
	for round := 0; time.Now().Before(end) && !t.Failed(); round++ {
		t.Run("", func(t *testing.T) {
			tr, w := newTrial(t, c, "--wait", "-1", "--ttl", "6s", "--suspend-wait", "2s"), newWire(t, c)
			for _, m := range []*mount{tr.mount("a"), tr.mount("b", w.flag), tr.mount("c", "--wait", "5s")} {
				tr.load(m)
			}
			tr.goesOn("before the faults")
			for range 3 {
				name := names[rand.IntN(len(names))]
				t.Log(name)
				faults[name](tr, w)
				c.healthy()
				tr.goesOn("after: " + name)
			}
			tr.finish()
		})
	}
}
