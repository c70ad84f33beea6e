package lockmgr_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/internal/journal/journaltest"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/advisory"
	"github.com/lockfs/lockfs/renew"
)

// hangs begins a change that hangs in the volume until land is called.
func hangs(h *lockmgr.Hold) (land func()) {
	landing, begun := make(chan struct{}), make(chan struct{})
	go func() {
		_ = h.Change(func() error {
			close(begun)
			<-landing
			return nil
		})
	}()
	<-begun
	return func() { close(landing) }
}

// A change that hangs keeps the lock of its own file, and of no other that is given up with it.
func TestAbandonEachFileByItself(t *testing.T) {
	inBubble(t, func(f *fixture) {
		holds := []*lockmgr.Hold{f.must(open("x", 0, "f")), f.must(open("x", 0, "g"))}
		land := hangs(holds[0])
		f.m.Abandon(holds, errors.New("gone"))
		f.must(open("y", 2*time.Second, "g")).Release()
		f.fails(open("y", time.Minute, "f"), lockmgr.ErrContended, time.Minute)
		land()
		f.must(open("y", time.Second, "f")).Release()
		for _, h := range holds {
			h.Release()
		}
	})
}

// What is lost already is not given up again.
func TestAbandonOfALostHold(t *testing.T) {
	inObservedBubble(t, func(f *fixture, o *observer) {
		h := f.must(open("x", 0, "f"))
		f.svc.Delete(h.Grant(file("f")))
		eventuallyLost(f, h)
		f.m.Abandon([]*lockmgr.Hold{h}, errors.New("gone"))
		time.Sleep(2 * time.Second)
		if n := len(events[lockmgr.LockLost](o)); n != 1 {
			f.t.Errorf("the loss was observed %d times", n)
		}
		h.Release()
	})
}

// A lock below a delegated directory that is given up while a change hangs has an entry of its own by
// then, so that others can have the rest of the directory.
func TestAbandonBelowADelegation(t *testing.T) {
	keeping(t, func(f, other *fixture) {
		f.delegated("d")
		h := f.must(open("x", 0, "d/f"))
		land := hangs(h)
		f.m.Abandon([]*lockmgr.Hold{h}, errors.New("gone"))
		other.must(open("y", 2*time.Second, "d/g")).Release()
		other.fails(open("y", time.Minute, "d/f"), lockmgr.ErrContended, time.Minute)
		land()
		other.must(open("y", time.Second, "d/f")).Release()
		h.Release()
	})
}

// While a change hangs, a broken lock is its holder's, also for requests on the same mount.
func TestContendedByABrokenLock(t *testing.T) {
	inBubble(t, func(f *fixture) {
		h := f.must(open("x", 0, "f"))
		id := h.Grant(file("f")).AcquisitionID
		land := hangs(h)
		f.breakLock(file("f"))
		synctest.Wait()
		begun := time.Now()
		_, err := f.m.Acquire(f.t.Context(), try("y", file("f")))
		var contended *lockmgr.ContendedError
		if !errors.As(err, &contended) || contended.Holder.AcquisitionID != id || time.Since(begun) > time.Second {
			f.t.Errorf("after %v: %v", time.Since(begun), err)
		}
		land()
		f.must(open("y", 2*time.Second, "f")).Release()
		h.Release()
	})
}

// The lock of a broken hold waits for its last changes through the deaths of several processes.
func TestBrokenHoldOfTwoDead(t *testing.T) {
	dying(t, func(t *testing.T, m *mortal) {
		h := m.take("a", "f")
		number := h.Record()
		h.OnLost(func() { time.Sleep(time.Hour) })
		m.f.breakLock(file("f"))
		time.Sleep(time.Millisecond)
		st, err := lockmgr.Recovered(m.read(), []uint64{number}, nil)
		if err != nil {
			t.Fatal(err)
		}
		part, read := journaltest.Part(t)
		cfg := lockmgr.Config{Backend: m.service, Record: part, Renew: renew.Config{TTL: ttl, Clock: bubbleClock{}}}
		second, holds, err := lockmgr.Adopt(m.f.t.Context(), cfg, st)
		if err != nil {
			t.Fatal(err)
		}
		if was, is := h.Check().Error(), holds[0].Check().Error(); is != was {
			t.Errorf("the loss is told as %q, and was %q", is, was)
		}
		number = holds[0].Record()
		die := make(chan struct{})
		holds[0].OnLost(func() { <-die })
		second.Begin()
		time.Sleep(2 * time.Second)
		st, err = lockmgr.Recovered(read(), []uint64{number}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(st.Locks) != 1 || len(st.Holds) != 1 || st.Holds[0].Lost == "" || len(st.Holds[0].Locks) != 1 {
			t.Errorf("the second process leaves %+v", st)
		}
		close(die)
		time.Sleep(time.Second)
		if st, err = lockmgr.Recovered(read(), []uint64{number}, nil); err != nil || len(st.Locks) != 0 {
			t.Errorf("what was given back is still recorded: %+v, %v", st.Locks, err)
		}
		holds[0].Release()
		if err := second.Close(m.f.t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A lock that is lost by itself is not recorded as one to give back; the others of its hold are.
func TestRecordOfALostLock(t *testing.T) {
	dying(t, func(t *testing.T, m *mortal) {
		h := m.take("a", "f", "g")
		number := h.Record()
		m.f.svc.Delete(h.Grant(file("f")))
		eventuallyLost(m.f, h)
		synctest.Wait()
		st, err := lockmgr.Recovered(m.read(), []uint64{number}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(st.Locks) != 1 || st.Locks[0].Grant.Key != file("g") {
			t.Errorf("recorded: %+v", st.Locks)
		}
		h.Release()
	})
}

// The next process keeps the other locks of a hold that has lost one until what was written under them
// is on the volume.
func TestLostHoldIsHandedOn(t *testing.T) {
	inBubble(t, func(f *fixture) {
		service := &adoptable{Backend: f.svc, sessions: make(map[string]lockmgr.Session)}
		old, _ := f.manager(func(c *lockmgr.Config) { c.Backend = service })
		h, err := old.Acquire(f.t.Context(), open("a", 0, "f", "g"))
		if err != nil {
			f.t.Fatal(err)
		}
		f.svc.Delete(h.Grant(file("f")))
		eventuallyLost(f, h)
		old.HandOn()
		st, err := old.Export([]*lockmgr.Hold{h}, nil)
		if err != nil {
			f.t.Fatal(err)
		}
		next, holds, err := lockmgr.Adopt(f.t.Context(), lockmgr.Config{Backend: service, Renew: renew.Config{TTL: ttl, Clock: bubbleClock{}}}, st)
		if err != nil {
			f.t.Fatal(err)
		}
		old.LetGo()
		flushed := false
		holds[0].OnLost(func() { time.Sleep(3 * time.Second); flushed = true })
		next.Begin()
		f.must(open("b", 0, "f")).Release()
		f.must(open("b", time.Minute, "g")).Release()
		if !flushed {
			f.t.Error("granted before what was written is on the volume")
		}
		holds[0].Release()
		if err := next.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	})
}

// Close keeps locks until the changes under them have landed. If they do not, the locks end with the
// session.
func TestCloseAwaitsChanges(t *testing.T) {
	inBubble(t, func(f *fixture) {
		for name, patience := range map[string]time.Duration{"it lands": time.Minute, "it hangs": time.Second} {
			m, _ := f.manager()
			h, err := m.Acquire(f.t.Context(), open("a", 0, name))
			if err != nil {
				f.t.Fatal(err)
			}
			land := hangs(h)
			ctx, cancel := context.WithTimeout(f.t.Context(), patience)
			closed := make(chan error, 1)
			go func() { closed <- m.Close(ctx) }()
			time.Sleep(2 * time.Second)
			if f.svc.Count() != 1 {
				f.t.Errorf("%s: the lock was released beside the change", name)
			}
			if name == "it lands" {
				land()
				if err := <-closed; err != nil || f.svc.Count() != 0 {
					f.t.Errorf("%s: %v, and %d entries are left", name, err, f.svc.Count())
				}
			} else {
				if err := <-closed; !errors.Is(err, lockmgr.ErrUnderWay) {
					f.t.Errorf("%s: %v", name, err)
				}
				f.svc.Expire(f.svc.last())
				land()
			}
			cancel()
		}
	})
}

// A session that is given up early keeps its lease also for changes under locks that were broken before.
func TestLostSessionIsRevokedAfterTheBroken(t *testing.T) {
	const lands = 2 * time.Second
	inBubble(t, func(f *fixture) {
		m, _ := f.manager(func(c *lockmgr.Config) {
			c.Backend, c.Renew.SuspendWait = unrenewed{f.svc, lockmgr.ErrUnavailable}, 1
		})
		held, err := m.Acquire(f.t.Context(), open("x", 0, "f"))
		if err != nil {
			f.t.Fatal(err)
		}
		land := hangs(held)
		time.Sleep(held.Deadline().Sub(bubbleClock{}.Now()) - time.Millisecond)
		f.breakLock(file("f"))
		time.AfterFunc(lands, land)
		begun := time.Now()
		f.must(open("y", time.Minute, "f")).Release()
		if d := time.Since(begun); d < lands {
			f.t.Errorf("another was granted the lock %v after the break, and the change landed after %v", d, lands)
		}
		held.Release()
		if err := m.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	})
}

// The same for advisory locks, on whose loss the view waits for the changes under way.
func TestLostSessionIsRevokedAfterAdvisoryLosses(t *testing.T) {
	const lands = 2 * time.Second
	inBubble(t, func(f *fixture) {
		am := f.advisory(1)[0]
		am.onLost = func(t *lockmgr.AdvisoryTable) { am.lost <- t; time.Sleep(lands) }
		am.lock(am.flock(1, true))
		f.svc.Disconnect()
		<-am.lost
		told := time.Now()
		f.svc.Connect()
		stands := func() bool {
			rows, err := f.svc.AdvisoryRows(f.t.Context(), table)
			return err == nil && len(rows.Rows) > 0
		}
		if !stands() {
			f.t.Fatal("the row is gone before the loss")
		}
		for stands() {
			time.Sleep(time.Millisecond)
		}
		if d := time.Since(told); d < lands {
			f.t.Errorf("the session was revoked %v after the loss was told", d)
		}
	})
}

// While the view follows the loss of a table's locks, which can hang with the volume, tries are refused
// in time, and whoever asks is told of the lock that still stands.
func TestTriesWhileALossIsTold(t *testing.T) {
	inBubble(t, func(f *fixture) {
		ms := f.advisory(2)
		a, b := ms[0], ms[1]
		defer b.close()
		landed := make(chan struct{})
		a.onLost = func(*lockmgr.AdvisoryTable) { <-landed }
		a.lock(a.posix(1, 0, 9, true))
		f.breakAdvisory(table)
		synctest.Wait()
		begun := time.Now()
		if err := a.try(a.posix(2, 0, 9, true)); !errors.Is(err, lockmgr.ErrContended) || time.Since(begun) > ttl/4 {
			f.t.Errorf("a try: %v after %v", err, time.Since(begun))
		}
		tb := a.table(table)
		if by, ok, err := tb.Test(f.t.Context(), a.posix(2, 0, 9, true)); err != nil || !ok || by.Owner != a.a.Owner(advisory.Posix, 1) {
			f.t.Errorf("F_GETLK: %v, %t, %v", by.Owner, ok, err)
		}
		if _, _, err := tb.Test(f.t.Context(), a.posix(2, 20, 29, true)); !errors.Is(err, lockmgr.ErrUnavailable) {
			f.t.Errorf("F_GETLK of another range: %v", err)
		}
		tb.Close()
		close(landed)
		a.lock(a.posix(3, 0, 9, true))
		a.unlock(a.posix(3, 0, 9, true))
	})
}

// A flush that hangs before a table is published does not keep tries waiting.
func TestTriesWhileATableIsFlushed(t *testing.T) {
	inPrivate(t, 2, func(t *testing.T, f *fixture, ms []*advisoryMount) {
		a, b := ms[0], ms[1]
		begun, landed := make(chan struct{}), make(chan struct{})
		a.onShared = func(*lockmgr.AdvisoryTable) { close(begun); <-landed }
		a.lock(a.flock(1, true))
		ctx, cancel := context.WithCancel(t.Context())
		asks := make(chan error, 1)
		go func() {
			_, err := b.table(table).Lock(ctx, b.flock(1, true), true)
			asks <- err
		}()
		<-begun
		since := time.Now()
		if err := a.try(a.flock(2, true)); !errors.Is(err, lockmgr.ErrContended) || time.Since(since) > ttl+ttl/4 {
			t.Errorf("a try: %v after %v", err, time.Since(since))
		}
		cancel()
		<-asks
		close(landed)
		a.unlock(a.flock(1, true))
	})
}

// A lock that was broken, and whose session is lost before its last change has landed, is in nobody's way
// on its own mount either.
func TestBrokenLockOfALostSession(t *testing.T) {
	inBubble(t, func(f *fixture) {
		h := f.must(open("x", 0, "f"))
		land := hangs(h)
		f.breakLock(file("f"))
		synctest.Wait()
		f.svc.Expire(f.svc.last())
		f.must(open("y", time.Minute, "f")).Release()
		land()
		h.Release()
	})
}

// What was lost with the entry of its directory is told once, also if it was being given up.
func TestBrokenBelowALostDelegation(t *testing.T) {
	inObservedBubble(t, func(f *fixture, o *observer) {
		one := f.m
		f.m, f.log = f.manager(func(c *lockmgr.Config) { c.Keep, c.Observe = keepFor, o.add })
		f.delegated("d")
		h := f.must(open("x", 0, "d/f"))
		land := hangs(h)
		f.m.Abandon([]*lockmgr.Hold{h}, errors.New("gone"))
		entries, err := f.svc.Entries(f.t.Context(), "")
		if err != nil || len(entries) != 1 {
			f.t.Fatalf("%v, %v", entries, err)
		}
		f.svc.Delete(entries[0].Grant())
		time.Sleep(time.Second)
		land()
		time.Sleep(time.Second)
		if n := len(events[lockmgr.LockLost](o)); n != 1 {
			f.t.Errorf("the loss was observed %d times", n)
		}
		h.Release()
		if err := one.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	})
}

// A hold that was lost with one of its sessions leaves its locks on another to the next process, which
// gives them back when what was written is on the volume.
func TestHoldOfTwoSessionsOfTheDead(t *testing.T) {
	dying(t, func(t *testing.T, m *mortal) {
		part, read := journaltest.Part(t)
		many, _ := m.f.manager(func(c *lockmgr.Config) { c.Backend, c.Record, c.KeysPerSession = m.service, part, 1 })
		if err := m.Close(m.f.t.Context()); err != nil {
			t.Error(err)
		}
		m.Manager, m.read = many, read
		h := m.take("a", "f")
		first := m.f.svc.last()
		via := m.take("a", "g")
		if m.f.svc.last() == first || !h.Share(file("g"), via) {
			t.Fatal("they do not share a lock of another session")
		}
		via.Release()
		h.Drop(file("f"))
		number := h.Record()
		m.f.svc.Expire(first)
		eventuallyLost(m.f, h)
		time.Sleep(time.Second)
		next, holds, st := m.heirs(number)
		if len(st.Locks) != 1 || st.Locks[0].Grant.Key != file("g") {
			t.Fatalf("the dead process leaves %+v", st.Locks)
		}
		flushed := false
		holds[0].OnLost(func() { time.Sleep(3 * time.Second); flushed = true })
		next.Begin()
		m.f.must(open("b", time.Minute, "g")).Release()
		if !flushed {
			t.Error("granted before what was written is on the volume")
		}
		holds[0].Release()
		if err := next.Close(m.f.t.Context()); err != nil {
			t.Error(err)
		}
	})
}
