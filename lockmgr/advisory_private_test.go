package lockmgr_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/advisory"
)

func inPrivate(t *testing.T, mounts int, test func(t *testing.T, f *fixture, ms []*advisoryMount)) {
	inBubble(t, func(f *fixture) {
		f.private = privateFor
		ms := f.advisory(mounts)
		for _, am := range ms[1:] {
			defer am.close()
		}
		test(f.t, f, ms)
	})
}

func (f *fixture) revision() int64 {
	f.t.Helper()
	rows, err := f.svc.AdvisoryRows(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	return rows.Revision
}

// A table of one mount costs one commit, however often it is locked, and one when it is given back.
func TestAdvisoryPrivateCostsNoCommit(t *testing.T) {
	inPrivate(t, 1, func(t *testing.T, f *fixture, ms []*advisoryMount) {
		a := ms[0]
		before := f.revision()
		for i := range uint64(1000) {
			for _, l := range []advisory.Lock{a.posix(i, i, i+5, i%2 == 0), a.flock(i, true)} {
				a.lock(l).Close()
				a.unlock(l)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := f.revision() - before; n != 1 {
			t.Errorf("%d commits, want 1", n)
		}
		time.Sleep(privateFor)
		if n := f.advisoryRows(); n != 0 {
			t.Errorf("%d rows are left", n)
		}
		if n := f.revision() - before; n > 2 {
			t.Errorf("%d commits, want 2 at most", n)
		}
	})
}

// A private table is published for whoever wants to know, and what is free there is had at once.
func TestAdvisoryPrivateIsRecalled(t *testing.T) {
	inPrivate(t, 2, func(t *testing.T, f *fixture, ms []*advisoryMount) {
		a, b := ms[0], ms[1]
		private := func(at uint64) *lockmgr.AdvisoryTable {
			t.Helper()
			time.Sleep(time.Minute)  // tables that were recalled are private again
			a.lock(a.flock(1, true)) // which reads that nobody else is there
			a.unlock(a.flock(1, true))
			tab := a.lock(a.posix(1, at, at, true))
			if tab.Private() == 0 {
				t.Fatal("the table of one mount is not private")
			}
			return tab
		}
		tab := private(0)
		if err := b.try(b.posix(1, 0, 9, false)); !errors.Is(err, lockmgr.ErrContended) {
			t.Errorf("a try for what another has: %v", err)
		}
		if tab.Private() != 0 {
			t.Error("the table is still private")
		}
		if err := b.try(b.posix(1, 1, 9, false)); err != nil {
			t.Errorf("a try for what is free: %v", err)
		}
		b.unlock(b.posix(1, 0, advisory.EOF, true))
		a.unlock(a.posix(1, 0, advisory.EOF, true))

		private(5)
		by, ok, err := b.table(table).Test(t.Context(), b.posix(1, 0, 9, false))
		if err != nil || !ok || by.Start != 5 || by.End != 5 || b.a.Mine(by.Owner) {
			t.Errorf("what is in the way: %+v, %v, %v; want the other mount's from 5 to 5", by, ok, err)
		}
		a.unlock(a.posix(1, 0, advisory.EOF, true))

		private(7)
		got := b.waits(t.Context(), table, b.posix(1, 7, 7, true))
		a.unlock(a.posix(1, 7, 7, true))
		if err := <-got; err != nil {
			t.Errorf("who waited: %v", err)
		}
		b.unlock(b.posix(1, 7, 7, true))

		private(3)
		a.unlock(a.posix(1, 3, 3, true))
		began := time.Now()
		b.lock(b.posix(1, 3, 3, true))
		if d := time.Since(began); d > 0 {
			t.Errorf("an idle table is given back after %v", d)
		}
	})
}

// A table for which two mounts contend is not private for a while: each lock would be a recall.
func TestAdvisoryPrivateCoolsOff(t *testing.T) {
	inPrivate(t, 2, func(t *testing.T, f *fixture, ms []*advisoryMount) {
		recalls := 0
		for i := range 100 {
			am := ms[i%2]
			l := am.flock(1, true)
			tab := am.lock(l)
			if tab.Private() != 0 {
				recalls++
			}
			tab.Close()
			am.unlock(l)
			time.Sleep(50 * time.Millisecond)
		}
		if recalls > 2 {
			t.Errorf("private %d times in 5 s, want each mount once", recalls)
		}
	})
}

// Before another mount can know what is free, the view has brought to the volume what was written.
func TestAdvisoryPrivateIsFlushed(t *testing.T) {
	inPrivate(t, 2, func(t *testing.T, f *fixture, ms []*advisoryMount) {
		a, b := ms[0], ms[1]
		var flushed atomic.Int32
		a.onShared = func(tab *lockmgr.AdvisoryTable) {
			time.Sleep(time.Second)
			flushed.Add(1)
			if tab.Private() != 0 {
				t.Error("an unlock at this time would not flush")
			}
		}
		for range 10 {
			l := a.flock(1, true)
			a.lock(l)
			a.unlock(l)
		}
		if flushed.Load() != 0 {
			t.Errorf("flushed %d times before anybody asked", flushed.Load())
		}
		b.lock(b.flock(1, true))
		if flushed.Load() != 1 {
			t.Errorf("flushed %d times, want once", flushed.Load())
		}
		b.unlock(b.flock(1, true))
		a.lock(a.flock(1, true))
		a.unlock(a.flock(1, true))
		time.Sleep(time.Minute)
		l := a.flock(1, true)
		a.lock(l)
		a.unlock(l)
		time.Sleep(time.Minute)
		if flushed.Load() != 2 {
			t.Errorf("flushed %d times, want once more when the idle table is given back", flushed.Load())
		}
	})
}

// A flush may take longer than the service may take to answer. Then the table is published all the
// same, and no try is refused for want of an answer.
func TestAdvisoryPrivateIsFlushedSlowly(t *testing.T) {
	for name, away := range map[string]time.Duration{"the service is well": 0, "it was away for a moment": ttl / 16} {
		t.Run(name, func(t *testing.T) {
			inPrivate(t, 2, func(t *testing.T, f *fixture, ms []*advisoryMount) {
				a, b := ms[0], ms[1]
				begun := make(chan struct{})
				begin := sync.OnceFunc(func() { close(begun) })
				leave := sync.OnceFunc(func() {
					if away > 0 {
						f.svc.Disconnect()
						time.AfterFunc(away, f.svc.Connect)
					}
				})
				a.onShared = func(*lockmgr.AdvisoryTable) {
					begin()
					time.Sleep(ttl / 4) // twice as long as the service may take
					leave()
				}
				a.lock(a.posix(1, 0, 0, true))
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				var all sync.WaitGroup
				all.Go(func() {
					if _, err := b.table(table).Lock(ctx, b.posix(1, 5, 9, true), true); err != nil {
						t.Errorf("another mount, for what is free: %v", err)
					}
				})
				<-begun
				all.Go(func() {
					if err := a.try(a.posix(2, 20, 20, true)); err != nil {
						t.Errorf("a try for what is free: %v", err)
					}
				})
				all.Go(func() {
					if err := a.try(a.posix(2, 0, 0, true)); !errors.Is(err, lockmgr.ErrContended) {
						t.Errorf("a try for what another has: %v", err)
					}
				})
				all.Wait()
			})
		})
	}
}

// A mount whose watch hangs does not keep others waiting by what it grants itself.
func TestAdvisoryPrivateIsHeardWithoutAWatch(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		f.private, f.svc.deaf = time.Hour, true
		ms := f.advisory(2)
		a, b := ms[0], ms[1]
		defer b.close()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for ctx.Err() == nil {
				l := a.flock(1, true)
				a.lock(l).Close()
				time.Sleep(10 * time.Millisecond)
				a.unlock(l)
				time.Sleep(time.Millisecond)
			}
		}()
		time.Sleep(time.Second)
		began := time.Now()
		b.lock(b.flock(1, true))
		if d := time.Since(began); d > 30*time.Second {
			t.Errorf("waited %v for a mount that hears nothing", d)
		}
		b.unlock(b.flock(1, true))
		cancel()
		<-ended
	})
}

// The service is told, for people, what a mount has in a private table for longer than a moment.
func TestAdvisoryPrivateIsDescribed(t *testing.T) {
	inPrivate(t, 1, func(t *testing.T, f *fixture, ms []*advisoryMount) {
		a := ms[0]
		list := func() []lockmgr.Entry {
			rows, err := f.svc.AdvisoryRows(t.Context(), table)
			if err != nil {
				t.Fatal(err)
			}
			entries, err := rows.Entries()
			if err != nil {
				t.Fatal(err)
			}
			return entries
		}
		a.lock(a.posix(1, 0, 5, true))
		a.lock(a.posix(2, 7, 8, false))
		time.Sleep(2 * time.Second)
		if e := list(); len(e) != 2 || !e[0].Held || e[1].Range.Start != 7 {
			t.Errorf("%+v, want both ranges", e)
		}
		before := f.revision()
		time.Sleep(time.Minute)
		if n := f.revision() - before; n != 0 {
			t.Errorf("%d commits for what has not changed", n)
		}
		a.unlock(a.posix(1, 0, 5, true))
		a.unlock(a.posix(2, 7, 8, true))
		time.Sleep(1300 * time.Millisecond)
		if e := list(); len(e) != 1 || !e[0].Holder.Kept || e[0].Holder.Node != "node" {
			t.Errorf("%+v, want a table that is kept", e)
		}
	})
}

// A cycle of waits goes through a private table and one that two mounts use.
func TestAdvisoryPrivateDeadlock(t *testing.T) {
	inPrivate(t, 2, func(t *testing.T, f *fixture, ms []*advisoryMount) {
		a, b := ms[0], ms[1]
		lock := func(am *advisoryMount, n, owner uint64) {
			t.Helper()
			if _, err := am.table(tableOf(n)).Lock(t.Context(), am.posix(owner, 0, 0, true), true); err != nil {
				t.Fatal(err)
			}
		}
		lock(a, 1, 1)
		lock(a, 2, 2)
		lock(b, 3, 1)
		if a.table(tableOf(1)).Private() == 0 {
			t.Fatal("the table of one mount is not private")
		}
		// On a: 2 waits for 1, and 1 waits for b's 1, which waits for 2.
		second := a.waits(t.Context(), tableOf(1), a.posix(2, 0, 0, true))
		other := b.waits(t.Context(), tableOf(2), b.posix(1, 0, 0, true))
		first := make(chan error, 1)
		go func() {
			_, err := a.table(tableOf(3)).Lock(t.Context(), a.posix(1, 0, 0, true), true)
			first <- err
		}()
		synctest.Wait()
		select {
		case err := <-first:
			if !errors.Is(err, lockmgr.ErrDeadlock) {
				t.Fatal(err)
			}
			first <- err
		case err := <-second:
			if !errors.Is(err, lockmgr.ErrDeadlock) {
				t.Fatal(err)
			}
			second = nil
		case err := <-other:
			t.Fatalf("the first of the other mount: %v", err)
		default:
			t.Fatal("nobody is told of the cycle")
		}
		unlock := func(am *advisoryMount, owner uint64) {
			for n := range uint64(4) {
				tab := am.table(tableOf(n))
				tab.Unlock(nil, am.a.Owner(advisory.Posix, owner), 0, advisory.EOF)
				tab.Close()
			}
		}
		if second == nil {
			unlock(a, 2)
			if err := <-other; err != nil {
				t.Error(err)
			}
			unlock(b, 1)
			if err := <-first; err != nil {
				t.Error(err)
			}
			return
		}
		<-first
		unlock(a, 1)
		if err := <-second; err != nil {
			t.Error(err)
		}
		unlock(a, 2)
		if err := <-other; err != nil {
			t.Error(err)
		}
	})
}

// A mount whose row somebody has deleted does not overlook that another has the table to itself by
// now.
func TestAdvisoryDeletedPrivateRow(t *testing.T) {
	inPrivate(t, 2, func(t *testing.T, f *fixture, ms []*advisoryMount) {
		a, b := ms[0], ms[1]
		f.svc.deaf = true
		l := a.flock(1, true)
		tab := a.lock(l)
		a.unlock(l)
		f.svc.DeleteAdvisory(table)
		b.lock(b.flock(1, true))
		for tab.Private() != 0 { // until a has found it
			time.Sleep(time.Second)
		}
		if err := a.try(l); !errors.Is(err, lockmgr.ErrContended) {
			t.Errorf("beside the next: %v", err)
		}
	})
}

// A private table that is lost without locks takes nothing from anybody.
func TestAdvisoryPrivateIsLostIdle(t *testing.T) {
	inPrivate(t, 2, func(t *testing.T, f *fixture, ms []*advisoryMount) {
		a, b := ms[0], ms[1]
		l := a.flock(1, true)
		tab := a.lock(l)
		a.unlock(l)
		f.svc.Expire(f.svc.sessions[0])
		b.lock(b.flock(1, true))
		synctest.Wait()
		if len(a.lost) > 0 || tab.Private() != 0 {
			t.Errorf("%d tables are lost, private %d", len(a.lost), tab.Private())
		}
		if err := a.try(l); !errors.Is(err, lockmgr.ErrContended) {
			t.Errorf("beside the next: %v", err)
		}
	})
}

// A mount has no more locks on a file than its row can name, however they come about: an unlock cuts
// a range in two. What does so is refused then, and the table goes on.
func TestAdvisoryPrivateUnlocksAreBounded(t *testing.T) {
	inPrivate(t, 2, func(t *testing.T, f *fixture, ms []*advisoryMount) {
		a, b := ms[0], ms[1]
		const most = 4096
		tab := a.lock(a.posix(1, 0, advisory.EOF, false))
		o := a.a.Owner(advisory.Posix, 1)
		refused := 0
		for at := uint64(1); at < 2*(most+100); at += 2 {
			switch err := tab.Unlock(nil, o, at, at); {
			case errors.Is(err, lockmgr.ErrTooMany):
				refused++
			case err != nil:
				t.Fatal(err)
			}
		}
		if held := a.m.Stats().AdvisoryHeld; held != most || refused != 101 {
			t.Errorf("%d locks, %d unlocks refused", held, refused)
		}
		if err := b.try(b.posix(1, 1, 1, true)); err != nil {
			t.Errorf("what was unlocked: %v", err)
		}
		if err := tab.Unlock(nil, o, 0, most); err != nil {
			t.Errorf("unlock of many: %v", err)
		}
		if err := tab.Unlock(nil, o, 0, advisory.EOF); err != nil {
			t.Errorf("unlock of all: %v", err)
		}
	})
}

// A crowd that asks what is in its way in another mount's private table asks that mount once to
// publish: a Txn of etcd has at most 128 operations.
func TestAdvisoryPrivateProbesOfACrowd(t *testing.T) {
	inPrivate(t, 2, func(t *testing.T, f *fixture, ms []*advisoryMount) {
		a, b := ms[0], ms[1]
		flushes := make(chan struct{})
		a.onShared = func(*lockmgr.AdvisoryTable) { <-flushes }
		held := a.posix(1, 5, 9, true)
		a.lock(held)
		tab := b.table(table)
		found := make(chan error, 200)
		for i := range cap(found) {
			go func() {
				by, ok, err := tab.Test(t.Context(), b.posix(uint64(i), 0, advisory.EOF, false))
				if err == nil && (!ok || by.Owner != held.Owner) {
					err = fmt.Errorf("%+v, %v", by, ok)
				}
				found <- err
			}()
		}
		synctest.Wait()
		if n := f.advisoryRows(); n > 2 {
			t.Errorf("%d rows", n)
		}
		close(flushes)
		for range cap(found) {
			if err := <-found; err != nil {
				t.Fatal(err)
			}
		}
	})
}

// When the request that asks another mount to publish goes, or gives up, another one asks.
func TestAdvisoryPrivateProbeThatGoes(t *testing.T) {
	inPrivate(t, 2, func(t *testing.T, f *fixture, ms []*advisoryMount) {
		a, b := ms[0], ms[1]
		flushes := make(chan struct{})
		a.onShared = func(*lockmgr.AdvisoryTable) { <-flushes }
		held := a.posix(1, 5, 9, true)
		a.lock(held)
		tab := b.table(table)
		ctx, cancel := context.WithCancel(t.Context())
		found := make(chan error, 4)
		test := func(ctx context.Context, id uint64) {
			by, ok, err := tab.Test(ctx, b.posix(id, 0, advisory.EOF, false))
			if err == nil && (!ok || by.Owner != held.Owner) {
				err = fmt.Errorf("%+v, %v", by, ok)
			}
			found <- err
		}
		go test(ctx, 1)
		synctest.Wait()
		first := f.advisoryRows()
		go test(t.Context(), 2)
		go test(t.Context(), 3)
		synctest.Wait()
		cancel()
		if err := <-found; !errors.Is(err, context.Canceled) {
			t.Errorf("the first: %v", err)
		}
		synctest.Wait()
		if n := f.advisoryRows(); n != first {
			t.Errorf("%d rows, and %d before the first one has gone", n, first)
		}
		close(flushes)
		for range 2 {
			if err := <-found; err != nil {
				t.Error(err)
			}
		}
		if n := f.advisoryRows(); n != 1 {
			t.Errorf("%d rows are left", n)
		}
	})
}
