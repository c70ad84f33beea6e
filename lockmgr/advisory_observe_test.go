package lockmgr_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// Requests for flock and fcntl locks are counted by result, with how long they have waited, and a
// wait that is long is told with who is in the way, on whichever mount that is.
func TestAdvisoryIsTold(t *testing.T) {
	inObservedBubble(t, func(f *fixture, o *observer) {
		t := f.t
		ms := f.advisory(2)
		a, b, m := ms[0], ms[1], f.m
		defer b.close()

		b.lock(b.flock(1, true))
		if err := a.try(a.flock(1, true)); !errors.Is(err, lockmgr.ErrContended) {
			t.Fatal(err)
		}
		waiter := a.flock(2, false)
		waiter.Comm, waiter.PID = "waiter", 42
		got := a.waits(t.Context(), table, waiter)
		if s := m.Stats(); s.AdvisoryHeld != 0 || s.AdvisoryWaiting != 1 {
			t.Errorf("while one waits: %+v", s)
		}
		time.Sleep(slowWait + time.Second)
		b.unlock(b.flock(1, true))
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		if s := m.Stats(); s.AdvisoryHeld != 1 || s.AdvisoryWaiting != 0 {
			t.Errorf("when it has the lock: %+v", s)
		}

		t.Log("a circle of two on the mount, and one who is not in anybody's way")
		one, other := a.posix(1, 0, 0, true), a.posix(2, 1, 1, true)
		one.Comm = "one"
		a.lock(one)
		a.lock(other)
		first := a.waits(t.Context(), table, a.posix(1, 1, 1, true))
		if _, err := a.table(table).Lock(t.Context(), a.posix(2, 0, 0, true), true); !errors.Is(err, lockmgr.ErrDeadlock) {
			t.Fatalf("a circle: %v", err)
		}
		a.unlock(other)
		if err := <-first; err != nil {
			t.Fatal(err)
		}

		ended, waits := events[lockmgr.AdvisoryEnded](o), events[lockmgr.RequestWaits](o)
		if len(waits) != 1 || waits[0].Key != table || waits[0].Holder.PID != 42 || waits[0].Waited != slowWait || waits[0].For.Node == "" {
			t.Errorf("long waits: %+v", waits)
		}
		want := []struct {
			contended bool
			least     time.Duration
			err       error
		}{{true, 0, lockmgr.ErrContended}, {true, slowWait, nil}, {}, {}, {true, 0, lockmgr.ErrDeadlock}, {contended: true}}
		if len(ended) != len(want) {
			t.Fatalf("%d requests ended, want %d: %+v", len(ended), len(want), ended)
		}
		for i, w := range want {
			if e := ended[i]; e.Contended != w.contended || e.Waited < w.least || !errors.Is(e.Err, w.err) {
				t.Errorf("request %d: %+v, want %+v", i, e, w)
			}
		}
		for _, line := range []string{"flock or fcntl lock waited for", "pid=42", "command=waiter"} {
			if !strings.Contains(f.log.String(), line) {
				t.Errorf("the log lacks %q: %s", line, f.log)
			}
		}
	})
}

// What a mount looks at now and then are its own tables, however many others have.
func TestAdvisoryLooksAtItsOwn(t *testing.T) {
	inBubble(t, func(f *fixture) {
		ms := f.advisory(2)
		defer ms[1].close()
		const many = 100
		for i := range uint64(many) {
			own := ms[1].table(tableOf(100 + i))
			if _, err := own.Lock(f.t.Context(), ms[1].flock(i, true), true); err != nil {
				f.t.Fatal(err)
			}
			defer own.Close()
		}
		one := ms[0].flock(1, true)
		defer ms[0].lock(one).Close()
		time.Sleep(time.Second) // they are told of each other's rows
		before := f.svc.RowsRead()
		time.Sleep(11 * time.Second) // two looks of each mount, or three
		read := f.svc.RowsRead() - before
		if least, most := 2*(many+1), 3*(many+1); read < least || read > most {
			f.t.Errorf("%d rows were read, want %d to %d: each mount's own", read, least, most)
		}
	})
}
