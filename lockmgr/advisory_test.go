package lockmgr_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/internal/journal"
	"github.com/lockfs/lockfs/internal/longtest"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/advisory"
	"github.com/lockfs/lockfs/renew"
)

// advisoryMount is a mount's advisory locks on one table of a fixture's service.
type advisoryMount struct {
	f    *fixture
	m    *lockmgr.Manager
	a    *lockmgr.Advisory
	lost chan *lockmgr.AdvisoryTable

	onLost, onShared func(*lockmgr.AdvisoryTable)

	service *adoptable
	calls   chan struct{} // has an element for each call under way, see within
	life    context.Context
	kill    func()
	read    func() *journal.Records
}

var table = tableOf(7)

func tableOf(n uint64) lockmgr.Key {
	k, err := lockmgr.InodeKey("", n)
	if err != nil {
		panic(err)
	}
	return k
}

func (f *fixture) advisory(n int) (mounts []*advisoryMount) {
	f.t.Helper()
	for i := range n {
		m := f.m
		if i > 0 {
			m, _ = f.manager()
		}
		am := &advisoryMount{f: f, m: m, lost: make(chan *lockmgr.AdvisoryTable, 100)}
		am.onLost = func(t *lockmgr.AdvisoryTable) { am.lost <- t }
		am.onShared = func(*lockmgr.AdvisoryTable) {}
		am.a = am.advisory(m)
		mounts = append(mounts, am)
	}
	return mounts
}

func (am *advisoryMount) advisory(m *lockmgr.Manager) *lockmgr.Advisory {
	am.f.t.Helper()
	a, err := m.NewAdvisory(lockmgr.AdvisoryConfig{
		OnLost:   func(t *lockmgr.AdvisoryTable) { am.onLost(t) },
		OnShared: func(t *lockmgr.AdvisoryTable) { am.onShared(t) },
	})
	if err != nil {
		am.f.t.Fatal(err)
	}
	return a
}

// privateFor is how long idle tables are private in these tests.
const privateFor = 2 * time.Second

// inBothTables runs a test with tables that are never private, and with such as may be.
func inBothTables(t *testing.T, test func(f *fixture)) {
	for name, keep := range map[string]time.Duration{"shared": 0, "private": privateFor} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f *fixture) {
				f.private = keep
				test(f)
			})
		})
	}
}

func (am *advisoryMount) close() {
	am.f.t.Helper()
	if err := am.m.Close(am.f.t.Context()); err != nil {
		am.f.t.Errorf("Close: %v", err)
	}
}

func (am *advisoryMount) posix(id, start, end uint64, exclusive bool) advisory.Lock {
	return advisory.Lock{Owner: am.a.Owner(advisory.Posix, id), Start: start, End: end, Exclusive: exclusive, Since: time.Now()}
}

func (am *advisoryMount) flock(id uint64, exclusive bool) advisory.Lock {
	return advisory.Lock{Owner: am.a.Owner(advisory.Flock, id), End: advisory.EOF, Exclusive: exclusive, Since: time.Now()}
}

func (am *advisoryMount) lock(l advisory.Lock) *lockmgr.AdvisoryTable {
	am.f.t.Helper()
	t := am.table(table)
	if _, err := t.Lock(am.f.t.Context(), l, true); err != nil {
		am.f.t.Fatal(err)
	}
	return t
}

func (am *advisoryMount) try(l advisory.Lock) error {
	t := am.table(table)
	defer t.Close()
	_, err := t.Lock(am.f.t.Context(), l, false)
	return err
}

func (am *advisoryMount) table(key lockmgr.Key) *lockmgr.AdvisoryTable {
	return am.a.Open(key, &am.f.private)
}

func (am *advisoryMount) unlock(l advisory.Lock) {
	t := am.table(table)
	t.Unlock(nil, l.Owner, l.Start, l.End)
	t.Close()
}

// waits asks for a lock that another has, and returns when the request waits.
func (am *advisoryMount) waits(ctx context.Context, key lockmgr.Key, l advisory.Lock) <-chan error {
	am.f.t.Helper()
	got := make(chan error, 1)
	go func() {
		_, err := am.table(key).Lock(ctx, l, true)
		got <- err
	}()
	synctest.Wait()
	select {
	case err := <-got:
		am.f.t.Fatalf("a request for what another has does not wait: %v", err)
	default:
	}
	return got
}

func TestAdvisoryExclusion(t *testing.T) {
	inBothTables(t, func(f *fixture) {
		t := f.t
		ms := f.advisory(2)
		a, b := ms[0], ms[1]
		defer b.close()
		a.lock(a.posix(1, 0, 9, true))
		steps := []struct {
			what string
			of   *advisoryMount
			l    advisory.Lock
			want error
		}{
			{"overlap, here", a, a.posix(2, 9, 20, true), lockmgr.ErrContended},
			{"overlap, there", b, b.posix(1, 9, 20, true), lockmgr.ErrContended},
			{"shared, there", b, b.posix(1, 5, 5, false), lockmgr.ErrContended},
			{"apart, there", b, b.posix(2, 10, 20, true), nil},
			{"a flock beside ranges", b, b.flock(1, true), nil},
			{"its own, downgraded", a, a.posix(1, 3, 4, false), nil},
			{"shared with that", b, b.posix(3, 3, 4, false), nil},
			{"beside that", b, b.posix(3, 2, 2, false), lockmgr.ErrContended},
			{"upgraded", a, a.posix(1, 3, 3, true), lockmgr.ErrContended},
			{"another flock", a, a.flock(1, false), lockmgr.ErrContended},
		}
		for _, s := range steps {
			if err := s.of.try(s.l); !errors.Is(err, s.want) {
				t.Errorf("%s: %v, want %v", s.what, err, s.want)
			}
		}
		by, ok, err := a.table(table).Test(t.Context(), a.posix(9, 15, 15, false))
		if err != nil || !ok || by.Start != 10 || by.End != 20 || a.a.Mine(by.Owner) {
			t.Errorf("the lock in the way: %+v, %v, %v; want the other mount's from 10 to 20", by, ok, err)
		}
		if by, ok, err = a.table(table).Test(t.Context(), a.posix(9, 21, 30, true)); ok || err != nil {
			t.Errorf("nobody has that: %+v, %v", by, err)
		}
		b.unlock(b.posix(2, 0, advisory.EOF, true))
		if err := a.try(a.posix(9, 15, 15, true)); err != nil {
			t.Errorf("unlocked there: %v", err)
		}
	})
}

// A try is not refused for a lock that is about to be granted: it may never be.
func TestAdvisoryRefusedForNothing(t *testing.T) {
	inBothTables(t, func(f *fixture) {
		t := f.t
		a := f.advisory(1)[0]
		f.svc.Expire(f.svc.last())
		f.svc.Disconnect()
		synctest.Wait()
		ctx, giveUp := context.WithCancel(t.Context())
		first := a.waits(ctx, table, a.posix(1, 0, 3, false))
		time.Sleep(ttl / 16)
		second := make(chan error, 1)
		go func() { second <- a.try(a.posix(2, 3, 3, true)) }()
		time.Sleep(ttl / 12) // ttl/8 after the first, what it needs of the service has failed
		giveUp()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("given up: %v", err)
		}
		if err := <-second; !errors.Is(err, lockmgr.ErrUnavailable) {
			t.Errorf("nobody has it: %v", err)
		}
	})
}

// A flock that is refused is lost in its former mode; a range is not. So it is on Linux.
func TestAdvisoryRefusedUpgrade(t *testing.T) {
	inBothTables(t, func(f *fixture) {
		t := f.t
		ms := f.advisory(2)
		a, b := ms[0], ms[1]
		defer b.close()
		a.lock(a.flock(1, false))
		b.lock(b.flock(1, false))
		if err := a.try(a.flock(1, true)); !errors.Is(err, lockmgr.ErrContended) {
			t.Fatalf("upgrade: %v", err)
		}
		if err := b.try(b.flock(1, true)); err != nil {
			t.Errorf("the other, whose upgrade was refused, still has its flock: %v", err)
		}
		a.lock(a.posix(1, 0, 0, false))
		b.lock(b.posix(1, 0, 0, false))
		if err := a.try(a.posix(1, 0, 0, true)); !errors.Is(err, lockmgr.ErrContended) {
			t.Fatalf("upgrade: %v", err)
		}
		if err := b.try(b.posix(1, 0, 0, true)); !errors.Is(err, lockmgr.ErrContended) {
			t.Errorf("the other, whose upgrade was refused, has lost its range: %v", err)
		}
	})
}

// Owners on one mount that want the same lock get it in order of arrival, and the mounts take turns.
func TestAdvisoryOrder(t *testing.T) {
	inBothTables(t, func(f *fixture) {
		t := f.t
		ms := f.advisory(3)
		defer ms[1].close()
		defer ms[2].close()
		first := ms[0].flock(99, true)
		ms[0].lock(first)
		order := make(chan int, 9)
		var all sync.WaitGroup
		for i := range 9 {
			am := ms[i%3]
			l := am.flock(uint64(i), true)
			all.Go(func() {
				if _, err := am.table(table).Lock(t.Context(), l, true); err != nil {
					t.Error(err)
				}
				order <- i
				am.unlock(l)
			})
			synctest.Wait()
		}
		ms[0].unlock(first)
		all.Wait()
		var got []int
		for range 9 {
			got = append(got, <-order)
		}
		last := map[int]int{0: -1, 1: -1, 2: -1}
		for _, i := range got {
			if i < last[i%3] {
				t.Errorf("of one mount %d came before %d: %v", last[i%3], i, got)
			}
			last[i%3] = i
		}
		for turn := range 3 {
			if i := got[3*turn : 3*turn+3]; i[0]%3 == i[1]%3 || i[1]%3 == i[2]%3 || i[2]%3 == i[0]%3 {
				t.Errorf("a mount has come twice before another came once: %v", got)
			}
		}
	})
}

// A request that is given up leaves nothing in line by the time its caller goes on.
func TestAdvisoryGivenUp(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		ms := f.advisory(2)
		a, b := ms[0], ms[1]
		defer b.close()
		l := a.posix(1, 0, 0, true)
		a.lock(l)
		ctx, cancel := context.WithCancel(t.Context())
		got := b.waits(ctx, table, b.posix(1, 0, 5, true))
		if n := f.advisoryRows(); n != 2 {
			t.Errorf("%d rows, want that of the holder and that of the one who waits", n)
		}
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Errorf("given up: %v", err)
		}
		if n := f.advisoryRows(); n != 1 {
			t.Errorf("%d rows, want that of the holder", n)
		}
		a.unlock(l)
		if n := f.advisoryRows(); n != 0 {
			t.Errorf("%d rows, want none", n)
		}
	})
}

func (f *fixture) advisoryRows() int {
	f.t.Helper()
	rows, err := f.svc.AdvisoryRows(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	return len(rows.Rows)
}

// Who is refused stands in nobody's way any more.
func TestAdvisoryRefusedLeavesTheLine(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		ms := f.advisory(2)
		a, b := ms[0], ms[1]
		defer b.close()
		a.lock(a.posix(1, 0, 0, true))
		if _, err := b.table(tableOf(8)).Lock(t.Context(), b.posix(1, 0, 0, true), true); err != nil {
			t.Fatal(err)
		}
		a.waits(t.Context(), tableOf(8), a.posix(1, 0, 0, true))
		f.svc.SlowReleases(time.Second)
		if _, err := b.table(table).Lock(t.Context(), b.posix(1, 0, 0, true), true); !errors.Is(err, lockmgr.ErrDeadlock) {
			t.Fatalf("got %v, want ErrDeadlock", err)
		}
		f.svc.SlowReleases(0)
		rows, err := f.svc.AdvisoryRows(t.Context(), table)
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows.Rows {
			if bytes.Contains(row.Value, []byte(`"waits":true`)) {
				t.Errorf("it is still in line: %s", row.Value)
			}
		}
	})
}

// Of a cycle of waits the last request is refused, and no other.
func TestAdvisoryDeadlock(t *testing.T) {
	inBothTables(t, func(f *fixture) {
		t := f.t
		ms := f.advisory(3)
		for _, am := range ms[1:] {
			defer am.close()
		}
		for i, am := range ms {
			if _, err := am.table(tableOf(uint64(i))).Lock(t.Context(), am.posix(1, 0, 0, true), true); err != nil {
				t.Fatal(err)
			}
		}
		first := ms[0].waits(t.Context(), tableOf(1), ms[0].posix(1, 0, 0, true))
		second := ms[1].waits(t.Context(), tableOf(2), ms[1].posix(1, 0, 0, true))
		if _, err := ms[2].table(tableOf(0)).Lock(t.Context(), ms[2].posix(1, 0, 0, true), true); !errors.Is(err, lockmgr.ErrDeadlock) {
			t.Errorf("who closes the cycle: %v, want ErrDeadlock", err)
		}
		// It has still what it had.
		select {
		case err := <-first:
			t.Errorf("the first: %v", err)
		case err := <-second:
			t.Errorf("the second: %v", err)
		default:
		}
		ms[2].table(tableOf(2)).Unlock(nil, ms[2].a.Owner(advisory.Posix, 1), 0, advisory.EOF)
		if err := <-second; err != nil {
			t.Errorf("the second: %v", err)
		}
		ms[1].table(tableOf(1)).Unlock(nil, ms[1].a.Owner(advisory.Posix, 1), 0, advisory.EOF)
		if err := <-first; err != nil {
			t.Errorf("the first: %v", err)
		}
	})
}

// Two owners on one mount who have each what the other wants.
func TestAdvisoryLocalDeadlock(t *testing.T) {
	inBothTables(t, func(f *fixture) {
		t := f.t
		a := f.advisory(1)[0]
		a.lock(a.posix(1, 1, 1, false))
		a.lock(a.posix(2, 1, 1, false))
		ctx, cancel := context.WithCancel(t.Context())
		got := a.waits(ctx, table, a.posix(1, 1, 1, true))
		if _, err := a.table(table).Lock(t.Context(), a.posix(2, 1, 1, true), true); !errors.Is(err, lockmgr.ErrDeadlock) {
			t.Errorf("who closes the cycle: %v, want ErrDeadlock", err)
		}
		cancel()
		<-got
	})
}

// With the session go the locks: Check says so, the view is told, and others get them.
func TestAdvisoryLoss(t *testing.T) {
	inBothTables(t, func(f *fixture) {
		t := f.t
		ms := f.advisory(2)
		a, b := ms[0], ms[1]
		defer b.close()
		session := f.svc.sessions[0]
		tab := a.lock(a.flock(1, true))
		if err := tab.Check(); err != nil {
			t.Fatal(err)
		}
		got := b.waits(t.Context(), table, b.flock(1, true))
		f.svc.Expire(session)
		if err := <-got; err != nil {
			t.Errorf("the next: %v", err)
		}
		if lost := <-a.lost; lost != tab {
			t.Error("another table was lost")
		}
		a.unlock(a.flock(1, true)) // it has nothing
		if err := b.try(b.flock(2, true)); !errors.Is(err, lockmgr.ErrContended) {
			t.Errorf("an unlock without a lock has released another's: %v", err)
		}
		if err := a.try(a.flock(1, true)); !errors.Is(err, lockmgr.ErrContended) {
			t.Errorf("after the loss: %v", err)
		}
	})
}

// A mount that hears nothing from the service says so as soon as the deadline has passed.
func TestAdvisorySuspended(t *testing.T) {
	inBothTables(t, func(f *fixture) {
		t := f.t
		a := f.advisory(1)[0]
		tab := a.lock(a.flock(1, true))
		f.svc.Disconnect()
		time.Sleep(ttl - ttl/3 + time.Second)
		if err := tab.Check(); !errors.Is(err, lockmgr.ErrSuspended) {
			t.Errorf("without an answer: %v, want ErrSuspended", err)
		}
		if err := a.try(a.flock(2, true)); !errors.Is(err, lockmgr.ErrContended) {
			t.Errorf("what is another's here needs no answer: %v", err)
		}
		if _, err := a.table(tableOf(8)).Lock(t.Context(), a.flock(1, true), false); !errors.Is(err, lockmgr.ErrUnavailable) {
			t.Errorf("without an answer: %v, want ErrUnavailable", err)
		}
		f.svc.Connect()
		if err := tab.Await(t.Context()); err != nil {
			t.Errorf("the session lived: %v", err)
		}
	})
}

// A row is put whole for each change: thousands of ranges fit well into what etcd takes at once,
// and do not fill its history.
func TestAdvisoryRowIsShort(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		a := f.advisory(1)[0]
		const n = 300
		for i := range uint64(n) {
			l := a.posix(1, 10*i, 10*i+1, i%2 == 0)
			l.PID, l.Comm = 4194303, "fifteen letters"
			if err := a.try(l); err != nil {
				t.Fatal(err)
			}
		}
		rows, err := f.svc.AdvisoryRows(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if size := len(rows.Rows[0].Value); size > 40*n {
			t.Errorf("a row of %d ranges has %d bytes, want at most 40 for each", n, size)
		}
		if entries, err := rows.Entries(); err != nil || len(entries) != n {
			t.Errorf("%d entries, %v; want %d", len(entries), err, n)
		}
		a.close()
	})
}

// A lock that is lost before its caller hears that it was granted takes with it what its owner had
// there, and goes on to believe that it has. So the view is told, whoever finds out first.
func TestAdvisoryLossWhileGranted(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		f.private, f.svc.deaf = time.Hour, true
		m, _ := f.manager(func(cfg *lockmgr.Config) { cfg.Renew.TTL = 3 * time.Second })
		a := &advisoryMount{f: f, m: m, lost: make(chan *lockmgr.AdvisoryTable, 1)}
		a.onLost = func(t *lockmgr.AdvisoryTable) { a.lost <- t }
		a.a = a.advisory(m)
		defer a.close()
		tab := a.table(table)
		for range 50 { // the caller is first in some, the table's worker in others
			if _, err := tab.Lock(t.Context(), a.posix(1, 2, 2, true), false); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second) // by then the table's row is described
			f.svc.Disconnect()
			for tab.Check() == nil {
				time.Sleep(10 * time.Millisecond)
			}
			wider := a.waits(t.Context(), table, a.posix(1, 1, 3, true)) // granted, as the table is private
			f.svc.Expire(f.svc.last())
			f.svc.Connect()
			if err := <-wider; !errors.Is(err, lockmgr.ErrSessionLost) {
				t.Fatalf("granted, and lost: %v", err)
			}
			synctest.Wait()
			select {
			case <-a.lost:
			default:
				t.Fatal("the view was not told")
			}
		}
	})
}

// A row that somebody deletes is a lock that is lost.
func TestAdvisoryDeletedRow(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		a := f.advisory(1)[0]
		tab := a.lock(a.flock(1, true))
		f.svc.DeleteAdvisory(table)
		if lost := <-a.lost; lost != tab {
			t.Error("another table was lost")
		}
		a.lock(a.flock(2, true))
	})
}

// A row of the mount that somebody has written by hand is a lock that is lost, and keeps nobody out.
func TestAdvisoryRewrittenRow(t *testing.T) {
	inBothTables(t, func(f *fixture) {
		t := f.t
		ms := f.advisory(2)
		a, b := ms[0], ms[1]
		defer b.close()
		tab := a.lock(a.flock(1, true))
		a.rewrite(a.row())
		if lost := <-a.lost; lost != tab {
			t.Error("another table was lost")
		}
		time.Sleep(renew.CheckToIssue + renew.WriteInFlight)
		synctest.Wait()
		if n := f.advisoryRows(); n != 0 {
			t.Errorf("%d rows of nobody", n)
		}
		if err := b.try(b.flock(1, true)); err != nil {
			t.Errorf("the next: %v", err)
		}
	})
}

// Nor does a row keep anybody out that the mount has deleted and that comes back: the mount deletes
// it again when it reads the table.
func TestAdvisoryRowComesBack(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		ms := f.advisory(2)
		a, b := ms[0], ms[1]
		defer b.close()
		l := a.flock(1, true)
		a.lock(l)
		row := a.row()
		a.unlock(l)
		held := b.flock(1, true)
		b.lock(held)
		a.rewrite(row)
		if err := a.try(l); !errors.Is(err, lockmgr.ErrContended) {
			t.Errorf("beside the other: %v", err)
		}
		synctest.Wait()
		b.unlock(held)
		if err := b.try(held); err != nil {
			t.Errorf("nobody has it: %v", err)
		}
		if len(a.lost) > 0 {
			t.Error("a table without locks is lost")
		}
	})
}

// row returns the only row of the table.
func (am *advisoryMount) row() lockmgr.AdvisoryRow {
	am.f.t.Helper()
	rows, err := am.f.svc.AdvisoryRows(am.f.t.Context(), table)
	if err != nil || len(rows.Rows) != 1 {
		am.f.t.Fatalf("%d rows, %v; want one", len(rows.Rows), err)
	}
	return rows.Rows[0]
}

// rewrite puts a row of the first mount behind its back.
func (am *advisoryMount) rewrite(r lockmgr.AdvisoryRow) {
	am.f.t.Helper()
	s := am.f.svc.sessions[0].(lockmgr.AdvisorySession)
	_, done, err := s.PutAdvisory(am.f.t.Context(), lockmgr.AdvisoryPut{
		Table: r.Table, Since: lockmgr.AnyRevision, Put: map[string][]byte{r.Name: r.Value},
	})
	if err != nil || !done {
		am.f.t.Fatalf("done %v, %v", done, err)
	}
}

// An answer that is lost grants nothing that nobody has, and keeps nobody out.
func TestAdvisoryLostAnswers(t *testing.T) {
	inBothTables(t, func(f *fixture) {
		t := f.t
		ms := f.advisory(2)
		a, b := ms[0], ms[1]
		defer b.close()
		f.svc.LoseAnswers(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := a.table(table).Lock(ctx, a.flock(1, true), true); err == nil {
			t.Log("granted by the second answer")
			a.unlock(a.flock(1, true))
		}
		f.svc.LoseAnswers(0)
		time.Sleep(5 * time.Second)
		if n := f.advisoryRows(); n != 0 {
			t.Errorf("%d rows of nobody", n)
		}
		b.lock(b.flock(1, true))
		if n := f.advisoryRows(); n != 1 {
			t.Errorf("%d rows, want one", n)
		}
	})
}

// Readers of one mount share its row.
func TestAdvisoryReadersCostOneCommit(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		a := f.advisory(1)[0]
		a.lock(a.flock(1, false))
		before, err := f.svc.AdvisoryRows(t.Context(), table)
		if err != nil {
			t.Fatal(err)
		}
		a.lock(a.flock(2, false))
		a.lock(a.flock(3, false))
		a.unlock(a.flock(3, false))
		if after, _ := f.svc.AdvisoryRows(t.Context(), table); after.Revision != before.Revision {
			t.Errorf("two more readers took %d commits", after.Revision-before.Revision)
		}
	})
}

// A crowd waits, and one at a time has the lock. Few of them stand in the service.
func TestAdvisoryCrowd(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		ms := f.advisory(2)
		a, b := ms[0], ms[1]
		defer b.close()
		const crowd = 500
		first := b.flock(1, true)
		b.lock(first)
		var all sync.WaitGroup
		holders := 0
		for i := range crowd {
			l := a.flock(uint64(i), true)
			all.Go(func() {
				if _, err := a.table(table).Lock(t.Context(), l, true); err != nil {
					t.Error(err)
					return
				}
				holders++
				a.unlock(l)
			})
		}
		synctest.Wait()
		if n := f.advisoryRows(); n > 2 {
			t.Errorf("%d rows for %d requests of one mount", n, crowd)
		}
		b.unlock(first)
		all.Wait()
		if holders != crowd {
			t.Errorf("%d had the lock, of %d", holders, crowd)
		}
	})
}

// Random owners of three mounts lock, wait, give up and lose their sessions. No two have at a
// time what conflicts, by what each believes while it may.
func TestAdvisoryAtRandom(t *testing.T) {
	for seed := range longtest.Seeds(t, 1, 100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBothTables(t, func(f *fixture) { advisoryAtRandom(f.t, f, rand.New(rand.NewPCG(seed, 3))) })
		})
	}
}

func advisoryAtRandom(t *testing.T, f *fixture, random *rand.Rand) {
	ms := f.handingOn(3)
	for _, am := range ms {
		defer func() { am.close() }()
	}
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	had := make(map[advisory.Lock]*advisoryMount) // what its owner may rely on, while Check is nil
	losses := make(map[*advisoryMount]int)
	for _, am := range ms {
		am.onLost = func(*lockmgr.AdvisoryTable) {
			mu.Lock()
			defer mu.Unlock()
			losses[am]++
			for l := range had {
				if am.a.Mine(l.Owner) {
					delete(had, l)
				}
			}
		}
	}
	granted, handedOn, died := 0, 0, 0
	var all sync.WaitGroup
	for i := range 9 {
		am, random := ms[i%3], rand.New(rand.NewPCG(random.Uint64(), 5))
		all.Go(func() {
			for ctx.Err() == nil {
				start := random.Uint64N(6)
				var l advisory.Lock
				am.within(func() {
					l = am.posix(uint64(i), start, start+random.Uint64N(6-start), random.IntN(2) == 0)
					if random.IntN(4) == 0 {
						l = am.flock(uint64(i), random.IntN(2) == 0)
					}
				})
				mu.Lock()
				before := losses[am]
				mu.Unlock()
				wctx, stop := context.WithTimeout(ctx, time.Duration(random.IntN(300))*time.Millisecond)
				err := am.lockOn(wctx, table, l, random.IntN(2) == 0)
				stop()
				if err != nil {
					am.unlockOn(table, l) // it may have been granted before a death
					time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
					continue
				}
				mu.Lock()
				if losses[am] != before {
					mu.Unlock()
					continue
				}
				for o, of := range had {
					if o.Conflicts(l) && of.table(table).Check() == nil {
						t.Errorf("%+v is granted beside %+v", l, o)
					}
				}
				had[l] = am
				granted++
				mu.Unlock()
				time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
				mu.Lock()
				delete(had, l)
				mu.Unlock()
				am.unlockOn(table, l)
			}
		})
	}
	for range 16 {
		time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
		switch random.IntN(5) {
		case 0:
			f.svc.Disconnect()
			time.Sleep(time.Duration(random.IntN(3000)) * time.Millisecond)
			f.svc.Connect()
		case 1:
			f.svc.LoseAnswers(time.Second)
			time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
			f.svc.LoseAnswers(0)
		case 2: // as if nobody had heard of the mounts for the TTL
			f.svc.Disconnect()
			time.Sleep(ttl)
			f.svc.mu.Lock()
			sessions := f.svc.sessions
			f.svc.sessions = nil
			f.svc.mu.Unlock()
			for _, s := range sessions {
				f.svc.Expire(s)
			}
			f.svc.Connect()
		case 3:
			if ms[random.IntN(3)].handOn(random) {
				handedOn++
			}
		case 4:
			ms[random.IntN(3)].dies()
			died++
		}
	}
	cancel()
	all.Wait()
	time.Sleep(10 * time.Second)
	if granted == 0 {
		t.Error("nothing was granted")
	}
	t.Log(granted, "granted,", handedOn, "handed on,", died, "deaths")
	time.Sleep(privateFor)
	if n := f.advisoryRows(); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// Owners that take several files in one order never wait in a circle, and none is told so. In any
// order some do. An owner that gets EDEADLK gives up what it has, and all go on.
func TestAdvisoryDeadlocksAtRandom(t *testing.T) {
	for seed := range longtest.Seeds(t, 1, 100) {
		for _, ordered := range []bool{true, false} {
			t.Run(fmt.Sprint(seed, ordered), func(t *testing.T) {
				inBothTables(t, func(f *fixture) { advisoryDeadlocks(f, rand.New(rand.NewPCG(seed, 7)), ordered) })
			})
		}
	}
}

func advisoryDeadlocks(f *fixture, random *rand.Rand, ordered bool) {
	t := f.t
	ms := f.handingOn(3)
	for _, am := range ms {
		defer func() { am.close() }()
	}
	const files, owners, rounds = 4, 9, 15
	circles := make(chan struct{}, owners*rounds)
	var all sync.WaitGroup
	for i := range owners {
		am, random := ms[i%3], rand.New(rand.NewPCG(random.Uint64(), 5))
		all.Go(func() {
			for range rounds {
				wanted := random.Perm(files)[:2+random.IntN(files-1)]
				if ordered {
					slices.Sort(wanted)
				}
				for _, n := range wanted {
					var l advisory.Lock
					am.within(func() { l = am.posix(uint64(i), 0, random.Uint64N(3), random.IntN(3) > 0) })
					err := am.lockOn(t.Context(), tableOf(uint64(n)), l, true)
					if errors.Is(err, lockmgr.ErrDeadlock) && !ordered {
						circles <- struct{}{}
						break
					}
					if err != nil {
						t.Errorf("owner %d, file %d of %v: %v", i, n, wanted, err)
						break
					}
					time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
				}
				var all advisory.Lock
				am.within(func() { all = am.posix(uint64(i), 0, advisory.EOF, true) })
				for _, n := range wanted {
					am.unlockOn(tableOf(uint64(n)), all)
				}
			}
		})
	}
	over := make(chan struct{})
	upgrades := make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-over:
				upgrades <- n
				return
			case <-time.After(time.Duration(random.IntN(200)) * time.Millisecond):
				if am := ms[random.IntN(3)]; random.IntN(4) == 0 {
					am.dies()
				} else if am.handOn(random) {
					n++
				}
			}
		}
	}()
	all.Wait() // in a bubble, a circle that nobody is told of ends the test
	close(over)
	t.Log("handed on:", <-upgrades)
	if !ordered && len(circles) == 0 {
		t.Error("no circle was found: the test tries nothing")
	}
	time.Sleep(privateFor)
	if n := f.advisoryRows(); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}

// What an owner gives up when it goes on with a shared lock, others have at once.
func TestAdvisoryDowngrade(t *testing.T) {
	inAllTables(t, func(f *fixture, open func(*advisoryMount, lockmgr.Key) *lockmgr.AdvisoryTable) {
		t := f.t
		a := f.advisory(1)[0]
		for _, lock := range []func(id uint64, exclusive bool) advisory.Lock{
			a.flock, func(id uint64, exclusive bool) advisory.Lock { return a.posix(id, 3, 5, exclusive) },
		} {
			table := open(a, table)
			if _, err := table.Lock(t.Context(), lock(1, true), true); err != nil {
				t.Fatal(err)
			}
			got := make(chan error, 1)
			go func() {
				_, err := table.Lock(t.Context(), lock(2, false), true)
				got <- err
			}()
			synctest.Wait()
			if _, err := table.Lock(t.Context(), lock(1, false), true); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			select {
			case err := <-got:
				if err != nil {
					t.Error(err)
				}
			default:
				t.Error("a reader waits for another")
			}
		}
	})
}

// inAllTables is inBothTables, and with tables of one mount only.
func inAllTables(t *testing.T, test func(f *fixture, open func(*advisoryMount, lockmgr.Key) *lockmgr.AdvisoryTable)) {
	inBothTables(t, func(f *fixture) { test(f, (*advisoryMount).table) })
	t.Run("local", func(t *testing.T) {
		inBubble(t, func(f *fixture) {
			test(f, func(am *advisoryMount, key lockmgr.Key) *lockmgr.AdvisoryTable { return am.a.OpenLocal(key) })
		})
	})
}

// Who gets a lock that another owner of the mount has lost with its session gets it when the writes
// that were checked before have landed, also if the other one has closed its file by then.
func TestAdvisoryLostWithWritesUnderWay(t *testing.T) {
	for name, closes := range map[string]bool{"stays": false, "closes": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f *fixture) {
				t := f.t
				m, _ := f.manager(func(c *lockmgr.Config) { c.Renew.SuspendWait = 10 * time.Millisecond })
				am := &advisoryMount{f: f, m: m, onShared: func(*lockmgr.AdvisoryTable) {}}
				am.onLost = func(tab *lockmgr.AdvisoryTable) {
					f.svc.Connect()
					if closes {
						over := make(chan struct{})
						close(over)
						_ = tab.Unlock(over, am.flock(1, true).Owner, 0, advisory.EOF)
					}
				}
				am.a = am.advisory(m)
				defer am.close()
				tab := am.lock(am.flock(1, true))
				next := am.waits(t.Context(), table, am.flock(2, true))
				f.svc.Disconnect()
				var good time.Time // when a write was last allowed
				for tab.Check() == nil && tab.Has(am.flock(1, true).Owner) {
					good = time.Now()
					time.Sleep(time.Millisecond)
				}
				if err := <-next; err != nil {
					t.Fatal(err)
				}
				if after := time.Since(good); after < renew.CheckToIssue+renew.WriteInFlight {
					t.Errorf("granted %v after a write was checked", after)
				}
			})
		})
	}
}

// What a mount has read of a table is worth nothing when the service was set back since: the revisions
// of the rows that others put are smaller then.
func TestAdvisoryAfterTheServiceWasSetBack(t *testing.T) {
	inBothTables(t, func(f *fixture) {
		t := f.t
		ms := f.advisory(2)
		a, b := ms[0], ms[1]
		defer b.close()
		ta := a.lock(a.flock(1, true)) // and keeps the file open
		a.unlock(a.flock(1, true))
		time.Sleep(time.Minute)
		if n := f.advisoryRows(); n != 0 {
			t.Fatalf("%d rows are left", n)
		}
		f.svc.StartEmpty()
		time.Sleep(time.Minute)
		b.lock(b.flock(2, true))
		if err := a.try(a.flock(1, true)); !errors.Is(err, lockmgr.ErrContended) {
			t.Errorf("a lock that another mount has: %v", err)
		}
		ta.Close()
		b.unlock(b.flock(2, true))
	})
}
