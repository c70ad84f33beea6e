package lockmgr_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/advisory"
	"github.com/lockfs/lockfs/renew"
)

// breakLock asks for the lock of k to be broken, as lockfs break does.
func (f *fixture) breakLock(k lockmgr.Key) lockmgr.Break {
	f.t.Helper()
	entries, err := f.svc.Entries(f.t.Context(), k.Path)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, e := range entries {
		if e.Key == k && e.Held {
			b := lockmgr.Break{ID: uuid.New(), Path: k.String(), AcquisitionID: e.Holder.AcquisitionID, Token: e.Token, By: "alice", Reason: "it hangs"}
			if err := f.svc.PutBreak(f.t.Context(), b); err != nil {
				f.t.Fatal(err)
			}
			return b
		}
	}
	f.t.Fatalf("nobody holds %v", k)
	panic("unreachable")
}

// Breaking what a mount has by flock and fcntl takes all of it, and nothing that was granted later.
// Others get it when the writes that were checked before have landed.
func TestAdvisoryBreak(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		ms := f.advisory(2)
		a, b := ms[0], ms[1]
		defer b.close()
		held := a.lock(a.flock(1, true))
		if err := a.try(a.posix(1, 5, 9, true)); err != nil {
			t.Fatal(err)
		}
		elsewhere := a.table(tableOf(8))
		bystander := a.flock(2, true)
		if _, err := elsewhere.Lock(t.Context(), bystander, false); err != nil {
			t.Fatal(err)
		}
		next := make(chan time.Time, 1)
		go func() {
			b.lock(b.flock(1, true))
			next <- time.Now()
		}()
		synctest.Wait()
		local := a.waits(t.Context(), table, a.flock(3, true))

		began := time.Now()
		broken := f.breakAdvisory(table)
		if lost := <-a.lost; lost != held {
			t.Errorf("lost: %v", lost.Key())
		}
		if at := <-next; at.Sub(began) < renew.CheckToIssue+renew.WriteInFlight {
			t.Errorf("granted after %v, while writes were under way", at.Sub(began))
		}
		if held.Has(a.a.Owner(advisory.Flock, 1)) || held.Has(a.a.Owner(advisory.Posix, 1)) {
			t.Error("the mount still has what was broken")
		}
		if !elsewhere.Has(bystander.Owner) {
			t.Error("a lock of another file is gone")
		}
		b.unlock(b.flock(1, true))
		if err := <-local; err != nil {
			t.Fatalf("who waited on the mount of the broken lock: %v", err)
		}
		for _, told := range []lockmgr.Break{broken, {ID: uuid.New(), Path: broken.Path, Session: broken.Session, Token: broken.Token + 1}} {
			told.ID = uuid.New() // a watch tells it once more
			if err := f.svc.PutBreak(t.Context(), told); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		if len(a.lost) > 0 || !held.Has(a.a.Owner(advisory.Flock, 3)) {
			t.Error("a break has taken what was granted later")
		}
		if err := a.try(a.flock(4, true)); !errors.Is(err, lockmgr.ErrContended) {
			t.Errorf("the lock that was granted later does not exclude: %v", err)
		}
	})
}

// The mount that breaks gets no lock by the row that is broken: it goes first.
func TestAdvisoryBreakOfSeveralOnOneMount(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		ms := f.advisory(2)
		a, b := ms[0], ms[1]
		defer b.close()
		a.lock(a.flock(1, true))
		local := a.waits(t.Context(), table, a.flock(2, true))
		broken := f.breakAdvisory(table)
		if err := <-local; err != nil {
			t.Fatal(err)
		}
		rows, err := f.svc.AdvisoryRows(t.Context(), table)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows.Rows {
			if r.Created == broken.Token {
				t.Errorf("the row that was broken still stands: %+v", r)
			}
		}
		if err := b.try(b.flock(1, false)); !errors.Is(err, lockmgr.ErrContended) {
			t.Errorf("beside the one who waited: %v", err)
		}
	})
}

// breakAdvisory asks for what the first mount has in a table to be broken.
func (f *fixture) breakAdvisory(table lockmgr.Key) lockmgr.Break {
	f.t.Helper()
	rows, err := f.svc.AdvisoryRows(f.t.Context(), table)
	if err != nil {
		f.t.Fatal(err)
	}
	entries, err := rows.Entries()
	if err != nil || len(entries) == 0 || !entries[0].Held {
		f.t.Fatalf("nobody has a lock: %v, %v", entries, err)
	}
	e := entries[0]
	b := lockmgr.Break{ID: uuid.New(), Path: table.String(), Session: e.Holder.Session, Token: e.Token, By: "alice", Reason: "it hangs"}
	if err := f.svc.PutBreak(f.t.Context(), b); err != nil {
		f.t.Fatal(err)
	}
	return b
}

// A broken lock is void at once, and somebody else's when the writes that were
// checked before have landed and its hold has done what it must.
// lockmodel finds how it goes wrong: go run ./lockmodel -model break -mutate breakinflight
func TestBreak(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		other, _ := f.manager()
		defer other.Close(t.Context())
		held, err := f.m.Acquire(t.Context(), open("x", time.Second, "f"))
		if err != nil {
			t.Fatal(err)
		}
		bystander, err := f.m.Acquire(t.Context(), open("x", time.Second, "g"))
		if err != nil {
			t.Fatal(err)
		}
		const flush = 3 * time.Second
		var flushed time.Time
		held.OnLost(func() { time.Sleep(flush); flushed = time.Now() })
		type grant struct {
			who  string
			hold *lockmgr.Hold
			at   time.Time
		}
		granted := make(chan grant)
		wait := func(who string, m *lockmgr.Manager) {
			h, err := m.Acquire(t.Context(), open(who, time.Minute, "f"))
			if err != nil {
				t.Errorf("%s: %v", who, err)
			}
			granted <- grant{who, h, time.Now()}
		}
		go wait("another mount's", other)
		time.Sleep(time.Second)
		began := time.Now()
		b := f.breakLock(file("f"))
		time.Sleep(time.Millisecond)
		if err := held.Check(); !errors.Is(err, lockmgr.ErrLockLost) || !errors.Is(err, lockmgr.ErrBroken) || !strings.Contains(err.Error(), "alice: it hangs") {
			t.Errorf("the hold says %v", err)
		}
		go wait("x", f.m) // does not join what is broken
		next := <-granted
		if next.who != "another mount's" {
			t.Errorf("granted to %s", next.who)
		}
		if d := next.at.Sub(began); d < renew.CheckToIssue+renew.WriteInFlight+flush || flushed.After(next.at) {
			t.Errorf("granted %v after the break, and flushed %v after it", d, flushed.Sub(began))
		}
		synctest.Wait()
		for _, want := range []string{"lock broken", "path=f", "by=alice", `reason="it hangs"`, b.ID.String(), "lock=" + b.AcquisitionID.Short()} {
			if !strings.Contains(f.log.String(), want) {
				t.Errorf("the log lacks %s: %s", want, f.log)
			}
		}
		next.hold.Release()
		last := <-granted
		// The same break, found again, is not aimed at the lock's present holder.
		b.ID = uuid.New()
		if err := f.svc.PutBreak(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		for _, h := range []*lockmgr.Hold{last.hold, bystander} {
			if err := h.Check(); err != nil {
				t.Errorf("not broken: %v", err)
			}
			h.Release()
		}
		held.Release()
	})
}

// A break of the lock by one name takes the file from all who have it by other names: they share the
// inode's lock, which goes with it.
func TestBreakByAnotherName(t *testing.T) {
	inBubble(t, func(f *fixture) {
		byInode := inode("", 7)
		first, second := f.must(try("x", file("a"), byInode)), f.must(try("x", file("b"), byInode))
		f.breakLock(file("b")) // which was taken alone
		synctest.Wait()
		for _, h := range []*lockmgr.Hold{first, second} {
			if err := h.Check(); !errors.Is(err, lockmgr.ErrBroken) {
				f.t.Errorf("a hold of the file says %v", err)
			}
		}
		next := f.must(open("y", time.Minute, "a"))
		for _, h := range []*lockmgr.Hold{first, second, next} {
			h.Release()
		}
	})
}

// A holder that closes its file right after the break does not let others in sooner: its hold has
// still to do what it must.
func TestClosedWhileItIsBroken(t *testing.T) {
	inBubble(t, func(f *fixture) {
		held := f.must(open("x", time.Second, "f"))
		flushed := false
		held.OnLost(func() { time.Sleep(3 * time.Second); flushed = true })
		f.breakLock(file("f"))
		time.Sleep(time.Millisecond)
		held.Release()
		next := f.must(open("y", time.Minute, "f"))
		if !flushed {
			f.t.Error("granted before what was written is on the volume")
		}
		next.Release()
		synctest.Wait()
		if log := f.log.String(); strings.Contains(log, "not ours any more") {
			f.t.Errorf("it was released twice: %s", log)
		}
	})
}

// unheard is a session whose grants take effect some time before they are known here.
type unheard struct {
	lockmgr.Session
	answers <-chan struct{}
}

func (s unheard) Acquire(ctx context.Context, req lockmgr.AcquireRequest) ([]lockmgr.Grant, error) {
	grants, err := s.Session.Acquire(ctx, req)
	<-s.answers
	return grants, err
}

type unheardService struct {
	*tap
	answers <-chan struct{}
}

func (b unheardService) OpenSession(ctx context.Context, info lockmgr.SessionInfo, ttl time.Duration) (lockmgr.Session, error) {
	s, err := b.tap.OpenSession(ctx, info, ttl)
	return unheard{s, b.answers}, err
}

// A lock that is broken between the grant and its mount's note of it is given up,
// and asked for anew: the service tells of each break once.
func TestBreakBeforeTheGrantIsKnown(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		answers := make(chan struct{})
		m, log := f.manager(func(c *lockmgr.Config) { c.Backend = unheardService{f.svc, answers} })
		defer m.Close(t.Context())
		granted := make(chan *lockmgr.Hold)
		go func() {
			h, err := m.Acquire(t.Context(), open("x", time.Minute, "f"))
			if err != nil {
				t.Error(err)
			}
			granted <- h
		}()
		synctest.Wait()
		next := f.later(open("y", time.Minute, "f"))
		b := f.breakLock(file("f"))
		synctest.Wait()
		close(answers)
		select {
		case second := <-next:
			second.Release()
		case h := <-granted:
			h.Release()
			(<-next).Release()
			t.Fatalf("not given up: %s", log)
		}
		synctest.Wait()
		if !strings.Contains(log.String(), b.ID.String()) {
			t.Errorf("the log lacks the break: %s", log)
		}
		first := <-granted
		if err := first.Check(); err != nil {
			t.Errorf("asked for anew: %v", err)
		}
		first.Release()
	})
}

// A file that is locked by more than one key, and by more than one hold, is
// broken as a whole: each of its keys is free.
func TestBreakOfFileWithSeveralNames(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		inode, err := lockmgr.InodeKey("", 7)
		if err != nil {
			t.Fatal(err)
		}
		take := func(owner string, keys ...lockmgr.Key) *lockmgr.Hold {
			t.Helper()
			r := open(owner, 0)
			r.Keys = keys
			h, err := f.m.Acquire(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			return h
		}
		a, b := take("x", file("a"), inode), take("x", file("b"), inode)
		c := take("x", file("c"))
		f.breakLock(file("a"))
		time.Sleep(2 * time.Second)
		for _, h := range []*lockmgr.Hold{a, b} {
			if err := h.Check(); !errors.Is(err, lockmgr.ErrLockLost) {
				t.Errorf("a name of the broken file: %v", err)
			}
		}
		if err := c.Check(); err != nil {
			t.Errorf("another file: %v", err)
		}
		if n := f.svc.Count(); n != 1 {
			t.Errorf("%d entries", n)
		}
		again := take("y", file("a"), file("b"), inode)
		for _, h := range []*lockmgr.Hold{a, b, c, again} {
			h.Release()
		}
	})
}

// An open that is granted while its entry is broken stands in line again.
func TestBreakOfHalfGrantedRequest(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		first, err := f.m.Acquire(t.Context(), open("y", 0, "b"))
		if err != nil {
			t.Fatal(err)
		}
		shared, err := f.m.Acquire(t.Context(), open("x", 0, "a"))
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan *lockmgr.Hold)
		go func() {
			h, err := f.m.Acquire(t.Context(), open("x", time.Minute, "a", "b"))
			if err != nil {
				t.Error(err)
			}
			got <- h
		}()
		time.Sleep(time.Second)
		f.breakLock(file("a"))
		time.Sleep(time.Second)
		first.Release()
		h := <-got
		if err := h.Check(); err != nil {
			t.Errorf("granted: %v", err)
		}
		if err := shared.Check(); !errors.Is(err, lockmgr.ErrLockLost) {
			t.Errorf("broken: %v", err)
		}
		h.Release()
		shared.Release()
	})
}

// What is abandoned is void at once, and somebody else's when its hold has done what it
// must; other holds of the mount are not concerned.
func TestAbandon(t *testing.T) {
	inBubble(t, func(f *fixture) {
		t := f.t
		other, _ := f.manager()
		defer other.Close(t.Context())
		var holds []*lockmgr.Hold
		for _, name := range []string{"f", "g", "bystander"} {
			h, err := f.m.Acquire(t.Context(), open("x", time.Second, name))
			if err != nil {
				t.Fatal(err)
			}
			holds = append(holds, h)
		}
		const flush = 3 * time.Second
		var flushed time.Time
		holds[0].OnLost(func() { time.Sleep(flush); flushed = time.Now() })
		granted := make(chan time.Time, 1)
		go func() {
			h, err := other.Acquire(t.Context(), open("y", time.Minute, "f"))
			if err != nil {
				t.Error(err)
			}
			granted <- time.Now()
			h.Release()
		}()
		time.Sleep(time.Second)
		gone := errors.New("gone")
		holds[1].Release()
		f.m.Abandon(holds[:2], gone)
		if err := holds[0].Check(); !errors.Is(err, lockmgr.ErrLockLost) || !errors.Is(err, gone) {
			t.Errorf("the hold says %v", err)
		}
		if at := <-granted; flushed.IsZero() || at.Before(flushed) {
			t.Errorf("granted at %v, flushed at %v", at, flushed)
		}
		if err := holds[2].Check(); err != nil {
			t.Errorf("another hold says %v", err)
		}
		holds[0].Release()
		f.m.Abandon(holds[:2], gone) // released: nothing
		h, err := f.m.Acquire(t.Context(), open("x", time.Second, "f"))
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Check(); err != nil {
			t.Errorf("a later hold says %v", err)
		}
	})
}

// A broken lock waits for the changes under way, also those of a hold without OnLost.
func TestBreakAwaitsChanges(t *testing.T) {
	inBubble(t, func(f *fixture) {
		held := f.must(open("x", time.Second, "f"))
		begun, landed := make(chan struct{}), false
		changed := make(chan error)
		go func() {
			changed <- held.Change(func() error {
				close(begun)
				time.Sleep(5 * time.Second)
				landed = true
				return nil
			})
		}()
		<-begun
		f.breakLock(file("f"))
		next := f.must(open("y", time.Minute, "f"))
		if !landed {
			f.t.Error("granted before the change had landed")
		}
		if err := <-changed; err != nil {
			f.t.Errorf("the change: %v", err)
		}
		held.Release()
		next.Release()
	})
}

// OnLost that is set after the loss is called at once.
func TestOnLostAfterTheLoss(t *testing.T) {
	inBubble(t, func(f *fixture) {
		held := f.must(open("x", time.Second, "f"))
		f.breakLock(file("f"))
		time.Sleep(2 * time.Second)
		called := false
		held.OnLost(func() { called = true })
		synctest.Wait()
		if !called {
			f.t.Error("it is not called")
		}
		held.Release()
	})
}
