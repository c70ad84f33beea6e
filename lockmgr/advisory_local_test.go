package lockmgr_test

import (
	"errors"
	"testing"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/advisory"
)

// A table of one mount only excludes owners of that mount, finds their circles, and asks the service
// for nothing: it may be away.
func TestAdvisoryLocal(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		ms := f.advisory(2)
		a, b := ms[0], ms[1]
		defer b.close()
		f.svc.Disconnect()
		open := func(am *advisoryMount, n uint64) *lockmgr.AdvisoryTable { return am.a.OpenLocal(tableOf(n)) }
		try := func(am *advisoryMount, n uint64, l advisory.Lock) error {
			table := open(am, n)
			defer table.Close()
			_, err := table.Lock(t.Context(), l, false)
			return err
		}
		for _, am := range ms {
			if err := try(am, 1, am.flock(1, true)); err != nil {
				t.Fatalf("beside another mount: %v", err)
			}
		}
		if err := try(a, 1, a.flock(2, false)); !errors.Is(err, lockmgr.ErrContended) {
			t.Errorf("beside an owner of the mount: %v", err)
		}
		by, ok, err := open(a, 1).Test(t.Context(), a.flock(2, false))
		if err != nil || !ok || by.Owner != a.a.Owner(advisory.Flock, 1) {
			t.Errorf("in the way: %+v, %v, %v", by, ok, err)
		}
		if _, ok, err := open(a, 1).Test(t.Context(), a.posix(2, 0, 0, true)); ok || err != nil {
			t.Errorf("in nobody's way: %v, %v", ok, err)
		}

		t.Log("three owners in a circle: the last is refused")
		for i := range uint64(3) {
			if err := try(a, i, a.posix(i, 0, 0, true)); err != nil {
				t.Fatal(err)
			}
		}
		got := make([]chan error, 2)
		for i := range got {
			got[i] = make(chan error, 1)
			go func() {
				_, err := open(a, uint64(i)+1).Lock(t.Context(), a.posix(uint64(i), 0, 0, true), true)
				got[i] <- err
			}()
			time.Sleep(time.Second)
		}
		if _, err := open(a, 0).Lock(t.Context(), a.posix(2, 0, 0, true), true); !errors.Is(err, lockmgr.ErrDeadlock) {
			t.Errorf("a circle: %v", err)
		}
		open(a, 2).Unlock(nil, a.a.Owner(advisory.Posix, 2), 0, 0)
		if err := <-got[1]; err != nil {
			t.Errorf("after the last has given up: %v", err)
		}
		open(a, 1).Unlock(nil, a.a.Owner(advisory.Posix, 1), 0, 0)
		if err := <-got[0]; err != nil {
			t.Errorf("after the second has given up: %v", err)
		}
		f.svc.Connect()
		if n := f.advisoryRows(); n != 0 {
			t.Errorf("%d rows in the service", n)
		}
	})
}
