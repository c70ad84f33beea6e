package lockmgr_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/internal/journal"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/advisory"
	"github.com/lockfs/lockfs/renew"
)

// Advisory locks outlive the process that has them, in tables of every kind: others are kept out
// until their owners unlock. A request that waited is nobody's.
func TestAdvisoryOutlivesTheProcess(t *testing.T) {
	inAllTables(t, func(f *fixture, open func(*advisoryMount, lockmgr.Key) *lockmgr.AdvisoryTable) {
		t := f.t
		ms := f.handingOn(2)
		a, b := ms[0], ms[1]
		defer func() { a.close() }()
		defer func() { b.close() }()
		has := []advisory.Lock{
			a.posix(1, 0, 4, true), a.posix(1, 5, 9, false), a.posix(2, 5, 7, false), a.flock(3, false), a.flock(4, false),
		}
		tab := open(a, table)
		for _, l := range has {
			if _, err := tab.Lock(t.Context(), l, true); err != nil {
				t.Fatal(err)
			}
		}
		go func() { _, _ = tab.Lock(a.life, a.posix(5, 0, 9, true), true) }()
		synctest.Wait()
		local, number := tab.Local(), tab.Record()
		a.dies()
		synctest.Wait()
		tab = open(a, table)
		if tab.Local() != local || tab.Record() == 0 || number == 0 {
			t.Errorf("the table is local: %v, %v before; record %d, then %d", tab.Local(), local, number, tab.Record())
		}
		if err := b.try(b.posix(1, 4, 4, false)); !local && !errors.Is(err, lockmgr.ErrContended) {
			t.Errorf("another mount locks it: %v", err)
		}
		for _, l := range has {
			if by, ok, err := tab.Test(t.Context(), advisory.Lock{Owner: a.a.Owner(l.Owner.Kind, 9), Start: l.Start, End: l.Start, Exclusive: true}); !ok || err != nil || !a.a.Mine(by.Owner) {
				t.Errorf("nobody has %+v: %+v, %v", l, by, err)
			}
			tab.Unlock(nil, l.Owner, l.Start, l.End)
		}
		if by, ok, err := tab.Test(t.Context(), a.posix(9, 0, advisory.EOF, true)); ok || err != nil {
			t.Errorf("a lock is left: %+v, %v", by, err)
		}
		for _, l := range []advisory.Lock{b.posix(1, 0, 9, true), b.flock(1, true)} {
			if err := b.try(l); err != nil {
				t.Errorf("unlocked there: %v", err)
			}
			b.unlock(l)
		}
		if tab.Close(); len(a.lost) > 0 {
			t.Error("a table is lost")
		}
		time.Sleep(privateFor + time.Second)
		if n := f.advisoryRows(); n != 0 {
			t.Errorf("%d rows are left", n)
		}
	})
}

// What the mount's row says by now is less than what is recorded: its process has died before it
// could record that. Others may have what the row does not say.
func TestAdvisoryRecordsAreLate(t *testing.T) {
	for what, then := range map[string]struct {
		before, after func(*advisoryMount) advisory.Lock
		others, not   func(*advisoryMount) advisory.Lock // what others may have then, and what not
	}{
		"a flock that becomes shared": {
			func(am *advisoryMount) advisory.Lock { return am.flock(1, true) }, func(am *advisoryMount) advisory.Lock { return am.flock(1, false) },
			func(am *advisoryMount) advisory.Lock { return am.flock(2, false) }, func(am *advisoryMount) advisory.Lock { return am.flock(2, true) },
		},
		"a flock that becomes exclusive": {
			func(am *advisoryMount) advisory.Lock { return am.flock(1, false) }, func(am *advisoryMount) advisory.Lock { return am.flock(1, true) },
			func(am *advisoryMount) advisory.Lock { return am.posix(2, 0, 0, true) }, func(am *advisoryMount) advisory.Lock { return am.flock(2, true) },
		},
		"a range that becomes shared in part": {
			func(am *advisoryMount) advisory.Lock { return am.posix(1, 0, 9, true) }, func(am *advisoryMount) advisory.Lock { return am.posix(1, 3, 5, false) },
			func(am *advisoryMount) advisory.Lock { return am.posix(2, 3, 5, false) }, func(am *advisoryMount) advisory.Lock { return am.posix(2, 2, 2, false) },
		},
	} {
		t.Run(what, func(t *testing.T) {
			inBothTables(t, func(f *fixture) {
				t := f.t
				ms := f.handingOn(2)
				a, b := ms[0], ms[1]
				defer func() { a.close() }()
				defer func() { b.close() }()
				tab := a.lock(then.before(a))
				records := a.read()
				if _, err := tab.Lock(t.Context(), then.after(a), true); err != nil {
					t.Fatal(err)
				}
				if err := b.try(then.others(b)); err != nil {
					t.Fatal(err)
				}
				a.read = func() *journal.Records { return records }
				a.dies()
				synctest.Wait()
				if err := b.try(then.not(b)); !errors.Is(err, lockmgr.ErrContended) {
					t.Errorf("what is left of it is not respected: %v", err)
				}
				mine := a.a.Owner(then.before(a).Owner.Kind, 9)
				other := then.others(b)
				if by, ok, err := a.table(table).Test(t.Context(), advisory.Lock{Owner: mine, Start: other.Start, End: other.End, Exclusive: true}); err != nil || !ok {
					t.Errorf("nobody has %+v: %v", other, err)
				} else if a.a.Mine(by.Owner) && by.Exclusive && other.Conflicts(by) {
					t.Errorf("%+v is had beside %+v", by, other)
				}
				b.unlock(then.others(b))
				a.unlock(then.before(a))
				if err := b.try(then.not(b)); err != nil {
					t.Errorf("unlocked: %v", err)
				}
				if len(a.lost) > 0 {
					t.Error("the table is lost")
				}
			})
		})
	}
}

// The records of a table are what its owners have, whatever is cut and merged.
func TestRecordsFollowRanges(t *testing.T) {
	inBubble(t, func(f *fixture) {
		a := f.handingOn(1)[0]
		defer a.close()
		tab := a.a.OpenLocal(table)
		random := rand.New(rand.NewPCG(1, 2))
		var want advisory.Locks
		for step := range 2000 {
			start := random.Uint64N(12)
			l := a.posix(random.Uint64N(2), start, start+random.Uint64N(12-start), random.IntN(2) == 0)
			if random.IntN(3) == 0 {
				tab.Unlock(nil, l.Owner, l.Start, l.End)
				want.Clear(l.Owner, l.Start, l.End)
			} else if _, err := tab.Lock(f.t.Context(), l, false); err == nil {
				want.Set(l)
			}
			st, err := lockmgr.Recovered(a.read(), nil, nil)
			if err != nil {
				f.t.Fatal(err)
			}
			var got advisory.Locks
			n := 0
			for _, l := range st.Advisory.Tables[0].Locks {
				got.Set(l)
				n++
			}
			if !slices.EqualFunc(got.All(), want.All(), advisory.Lock.Same) || n != want.Len() {
				f.t.Fatalf("step %d, %+v: %d records: %v, want %v", step, l, n, got.All(), want.All())
			}
		}
		tab.Close()
	})
}

// The locks of a row that was deleted are lost, also if another row has its name by now, and those
// of a session that has ended.
func TestAdvisoryLossOverADeath(t *testing.T) {
	for what, lose := range map[string]func(f *fixture, a *advisoryMount, id string){
		"deleted":       func(f *fixture, _ *advisoryMount, _ string) { f.svc.DeleteAdvisory(table) },
		"session ended": func(_ *fixture, a *advisoryMount, id string) { a.service.gone = map[string]bool{id: true} },
	} {
		t.Run(what, func(t *testing.T) {
			inBothTables(t, func(f *fixture) {
				t := f.t
				a := f.handingOn(1)[0]
				defer func() { a.close() }()
				tab := a.lock(a.posix(1, 0, 9, true))
				st, err := lockmgr.Recovered(a.read(), nil, []uint64{tab.Record()})
				if err != nil {
					t.Fatal(err)
				}
				lose(f, a, st.Sessions[0].ID)
				a.kill()
				a.service.next()
				if err := a.succeed(st); err != nil {
					t.Fatal(err)
				}
				_, lost := a.a.Adopted(0)
				wrote := time.Now() // what the table's programs do until they are told
				a.m.Begin()
				a.lock(a.posix(2, 0, 9, true))
				if after := time.Since(wrote); what == "deleted" && after < renew.CheckToIssue+renew.WriteInFlight {
					t.Errorf("granted %v after a write was checked", after)
				}
				if lost == (what == "deleted") || len(a.lost) != 0 == lost {
					t.Errorf("told at once: %v, and %d times later", lost, len(a.lost))
				}
				if a.table(table).Has(a.posix(1, 0, 9, true).Owner) {
					t.Error("the owner still has it")
				}
			})
		})
	}
}
