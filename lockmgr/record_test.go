package lockmgr_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/internal/journal"
	"github.com/lockfs/lockfs/internal/journal/journaltest"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/renew"
)

// mortal is a Manager whose process can die.
type mortal struct {
	*lockmgr.Manager
	f       *fixture
	service *adoptable
	read    func() *journal.Records
}

// dying runs test with a Manager that records. Its process is as if dead when heirs is called: it
// does nothing more that matters here.
func dying(t *testing.T, test func(t *testing.T, m *mortal)) {
	t.Helper()
	inBubble(t, func(f *fixture) {
		part, read := journaltest.Part(t)
		m := &mortal{f: f, read: read, service: &adoptable{Backend: f.svc, sessions: make(map[string]lockmgr.Session), gone: make(map[string]bool)}}
		m.Manager, _ = f.manager(func(c *lockmgr.Config) { c.Backend, c.Record, c.Keep = m.service, part, 2*time.Second })
		test(t, m)
		_ = m.Close(f.t.Context())
	})
}

func (m *mortal) take(owner string, paths ...string) *lockmgr.Hold {
	m.f.t.Helper()
	h, err := m.Acquire(m.f.t.Context(), open(owner, time.Minute, paths...))
	if err != nil {
		m.f.t.Fatal(err)
	}
	return h
}

// delegateDir has the directory d delegated.
func (m *mortal) delegateDir() {
	m.f.t.Helper()
	for i := range 8 {
		m.take("a", fmt.Sprint("d/", i)).Release()
		synctest.Wait()
	}
	if n := m.Stats().Dirs; n != 1 {
		m.f.t.Fatalf("%d directories are delegated", n)
	}
}

// heirs returns the Manager that goes on, and its holds by their numbers.
func (m *mortal) heirs(numbers ...uint64) (*lockmgr.Manager, []*lockmgr.Hold, *lockmgr.State) {
	m.f.t.Helper()
	st, err := lockmgr.Recovered(m.read(), numbers, nil)
	if err != nil {
		m.f.t.Fatal(err)
	}
	next, holds, err := lockmgr.Adopt(m.f.t.Context(), lockmgr.Config{Backend: m.service, Renew: renew.Config{TTL: ttl, Clock: bubbleClock{}}}, st)
	if err != nil {
		m.f.t.Fatal(err)
	}
	return next, holds, st
}

// A hold that was recorded is the next process's, with the same locks, owner and tokens.
func TestHoldsOutliveTheProcess(t *testing.T) {
	dying(t, func(t *testing.T, m *mortal) {
		read := open("reader", time.Minute, "r")
		read.Mode = lockmgr.Shared
		shared, err := m.Acquire(m.f.t.Context(), read)
		if err != nil {
			t.Fatal(err)
		}
		were := []*lockmgr.Hold{m.take("a", "f"), m.take("a", "f"), shared, m.Unlocked("b")}
		m.take("c", "unrecorded")
		paths := []string{"f", "f", "r", ""}
		var numbers []uint64
		for _, h := range were {
			numbers = append(numbers, h.Record())
		}
		next, holds, _ := m.heirs(numbers...)
		if len(m.service.claims) != 2 {
			t.Errorf("claimed: %v", m.service.claims)
		}
		for i, h := range holds {
			if h.Check() != nil || h.Owner() != were[i].Owner() || h.Unlocked() != were[i].Unlocked() {
				t.Errorf("hold %d is of %s: %v", i, h.Owner(), h.Check())
			}
			if paths[i] == "" {
				continue
			}
			if got, want := h.Grant(file(paths[i])), were[i].Grant(file(paths[i])); got != want || h.Token(file(paths[i])) != were[i].Token(file(paths[i])) {
				t.Errorf("hold %d is %v, want %v", i, got, want)
			}
		}
		next.LetGo()
	})
}

// The record of a hold is what the hold has now.
func TestRecordFollowsTheHold(t *testing.T) {
	dying(t, func(t *testing.T, m *mortal) {
		a, other := m.take("a", "f", "g"), m.take("a", "h")
		number, released := a.Record(), other.Record()
		check := func(when string, want ...string) {
			t.Helper()
			_, holds, _ := m.heirs(number)
			for _, path := range []string{"f", "g", "h"} {
				had := false
				for _, w := range want {
					had = had || w == path
				}
				if has := holds[0].Token(file(path)) != 0; has != had {
					t.Errorf("%s: it has %s: %v", when, path, has)
				}
			}
		}
		check("at first", "f", "g")
		a.Drop(file("g"))
		check("after Drop", "f")
		if !a.Share(file("h"), other) {
			t.Fatal("not shared")
		}
		check("after Share", "f", "h")
		a.Keep([]lockmgr.Key{file("h")})
		check("after Keep", "h")
		other.Release()
		check("after the other's Release", "h")
		if _, holds, _ := m.heirs(released); !holds[0].Lost() {
			t.Error("a released hold is found")
		}
		a.Void()
		if _, holds, _ := m.heirs(number); !holds[0].Lost() {
			t.Error("a lost hold is found unlost")
		}
		a.Release()
	})
}

// A session that ended before the next process came takes only its own holds along.
func TestLostSessionOfTheDead(t *testing.T) {
	dying(t, func(t *testing.T, m *mortal) {
		a := m.take("a", "f")
		free := m.Unlocked("b")
		numbers := []uint64{a.Record(), free.Record()}
		st, err := lockmgr.Recovered(m.read(), numbers, nil)
		if err != nil {
			t.Fatal(err)
		}
		m.service.gone[st.Sessions[0].ID] = true
		next, holds, err := lockmgr.Adopt(m.f.t.Context(), lockmgr.Config{Backend: m.service, Renew: renew.Config{TTL: ttl, Clock: bubbleClock{}}}, st)
		if err != nil {
			t.Fatal(err)
		}
		if err := holds[0].Check(); !errors.Is(err, lockmgr.ErrSessionLost) {
			t.Errorf("a hold of the lost session: %v", err)
		}
		if err := holds[1].Check(); err != nil {
			t.Errorf("a hold without locks: %v", err)
		}
		next.LetGo()
	})
}

// A lock below a delegated directory has no entry of its own until the next process gives it one,
// with the token that its program may have been told.
func TestDelegationOfTheDead(t *testing.T) {
	dying(t, func(t *testing.T, m *mortal) {
		m.delegateDir()
		h := m.take("a", "d/open")
		token, number := h.Token(file("d/open")), h.Record()
		next, holds, st := m.heirs(number)
		if len(st.Delegations) != 1 || len(m.service.claims) != 1 {
			t.Fatalf("%d delegations; claimed: %v", len(st.Delegations), m.service.claims)
		}
		next.Begin()
		synctest.Wait()
		m.f.haveKeys("after the takeover", "d/open")
		if got := holds[0].Token(file("d/open")); got != token || holds[0].Check() != nil {
			t.Errorf("token %d, want %d; %v", got, token, holds[0].Check())
		}
		if was, is := h.Grant(file("d/open")).AcquisitionID, holds[0].Grant(file("d/open")).AcquisitionID; is == was {
			t.Error("the entry has the name of one that the dead may have put") // which RemoveUnclaimed may delete later
		}
		holds[0].Release()
		if err := next.Close(m.f.t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A delegated directory leaves the record before the service is asked to take its entry away.
func TestGivenBackDelegationOfTheDead(t *testing.T) {
	dying(t, func(t *testing.T, m *mortal) {
		m.delegateDir()
		m.f.svc.Disconnect()
		time.Sleep(3 * time.Second) // it is not used any more
		synctest.Wait()
		st, err := lockmgr.Recovered(m.read(), nil, nil)
		if err != nil || len(st.Delegations) != 0 {
			t.Errorf("recorded: %+v, %v", st.Delegations, err)
		}
		m.f.svc.Connect()
	})
}

// A broken hold is lost for the next process too, which gives its lock back as the dead one would have:
// when what was written under it is on the volume.
func TestBrokenHoldOfTheDead(t *testing.T) {
	dying(t, func(t *testing.T, m *mortal) {
		h := m.take("a", "f")
		number := h.Record()
		h.OnLost(func() { time.Sleep(time.Hour) }) // it dies before it gives the lock back
		m.f.breakLock(file("f"))
		time.Sleep(time.Millisecond)
		if !h.Lost() {
			t.Fatal("the hold is not lost")
		}
		next, holds, _ := m.heirs(number)
		if err := holds[0].Check(); !errors.Is(err, lockmgr.ErrLockLost) {
			t.Errorf("the next process's hold says %v", err)
		}
		held := func() bool {
			for _, e := range mustEntries(m.f) {
				if e.Key == file("f") {
					return true
				}
			}
			return false
		}
		flushed := false
		holds[0].OnLost(func() {
			if !held() {
				t.Error("the lock was given back before the flush")
			}
			flushed = true
		})
		next.Begin()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !flushed || held() {
			t.Errorf("flushed: %t; the entry stands: %t", flushed, held())
		}
		holds[0].Release()
		if err := next.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A broken hold whose lock was given back claims nothing in the next process.
func TestSurrenderedHoldOfTheDead(t *testing.T) {
	dying(t, func(t *testing.T, m *mortal) {
		h := m.take("a", "f")
		number := h.Record()
		m.f.breakLock(file("f"))
		time.Sleep(2 * time.Second)
		_, holds, st := m.heirs(number)
		if !holds[0].Lost() || len(st.Locks) > 0 {
			t.Errorf("lost: %t, with the locks %v", holds[0].Lost(), st.Locks)
		}
		h.Release()
	})
}
