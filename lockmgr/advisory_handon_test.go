package lockmgr_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/internal/journal"
	"github.com/lockfs/lockfs/internal/journal/journaltest"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/advisory"
	"github.com/lockfs/lockfs/renew"
)

// handingOn returns mounts that can be handed on.
func (f *fixture) handingOn(n int) (mounts []*advisoryMount) {
	f.t.Helper()
	for range n {
		am := &advisoryMount{
			f: f, lost: make(chan *lockmgr.AdvisoryTable, 100), calls: make(chan struct{}, 100),
			service: &adoptable{Backend: f.svc, sessions: make(map[string]lockmgr.Session)},
		}
		am.onLost = func(t *lockmgr.AdvisoryTable) { am.lost <- t }
		am.onShared = func(*lockmgr.AdvisoryTable) {}
		am.begin(func(part *journal.Part) *lockmgr.Manager {
			m, _ := f.manager(func(c *lockmgr.Config) { c.Backend, c.Record = am.service, part })
			return m
		})
		mounts = append(mounts, am)
	}
	return mounts
}

// begin begins the life of a process.
func (am *advisoryMount) begin(manager func(*journal.Part) *lockmgr.Manager) {
	am.f.t.Helper()
	var part *journal.Part
	am.life, am.kill = context.WithCancel(context.Background())
	am.service.next()
	part, am.read = journaltest.Part(am.f.t)
	am.m = manager(part)
	am.a = am.advisory(am.m)
}

// dies ends the mount's process in the middle of what it does. The next one takes the mount over.
func (am *advisoryMount) dies() {
	am.f.t.Helper()
	am.kill()
	am.service.next()
	st, err := lockmgr.Recovered(am.read(), nil, nil)
	if err != nil {
		am.f.t.Fatal(err)
	}
	for range cap(am.calls) {
		am.calls <- struct{}{}
	}
	defer am.unpause()
	am.m.LetGo()
	for am.adopt(st) != nil { // the service is away
		time.Sleep(100 * time.Millisecond)
	}
}

// within makes a call, as a view does, unless the mount is paused.
func (am *advisoryMount) within(call func()) {
	am.calls <- struct{}{}
	defer func() { <-am.calls }()
	call()
}

// lockOn asks for a lock, again and again when it is handed on, or its process dies, as a view does.
func (am *advisoryMount) lockOn(ctx context.Context, key lockmgr.Key, l advisory.Lock, wait bool) (err error) {
	for at := new(lockmgr.Resume); ; {
		died := false
		am.within(func() {
			tab := am.table(key)
			defer tab.Close()
			ctx, stop := context.WithCancel(ctx)
			defer stop()
			defer context.AfterFunc(am.life, stop)()
			defer func() { died = am.life.Err() != nil }()
			if wait && *at != (lockmgr.Resume{}) {
				_, err = tab.LockAgain(ctx, l, *at, func() {})
			} else {
				_, err = tab.Lock(ctx, l, wait)
			}
		})
		on := new(lockmgr.HandedOnError)
		switch {
		case died:
			at = new(lockmgr.Resume)
		case errors.As(err, &on):
			at = &on.Resume
		default:
			return err
		}
	}
}

// unlockOn is unlock, again if the process dies meanwhile.
func (am *advisoryMount) unlockOn(key lockmgr.Key, l advisory.Lock) {
	for done := false; !done; {
		am.within(func() {
			tab := am.table(key)
			defer tab.Close()
			tab.Unlock(am.life.Done(), l.Owner, l.Start, l.End)
			done = am.life.Err() == nil
		})
	}
}

// pause ends all calls.
func (am *advisoryMount) pause() {
	am.m.HandOn()
	for range cap(am.calls) {
		am.calls <- struct{}{}
	}
}

func (am *advisoryMount) unpause() {
	for range cap(am.calls) {
		<-am.calls
	}
}

// handOn pauses the mount, and hands it on to another Manager, or gives that up. It reports which.
func (am *advisoryMount) handOn(random *rand.Rand) bool {
	am.pause()
	defer am.unpause()
	time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
	st, err := am.exported()
	time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
	if err != nil || random.IntN(3) == 0 || am.adopt(st) != nil {
		am.m.GoOn()
		return false
	}
	return true
}

// exported is the state of a paused mount, after its way through the wire.
func (am *advisoryMount) exported() (*lockmgr.State, error) {
	am.f.t.Helper()
	ctx, cancel := context.WithTimeout(am.f.t.Context(), time.Second)
	defer cancel()
	if err := am.m.Quiet(ctx); err != nil {
		return nil, err
	}
	st, err := am.m.Export(nil, nil)
	if err != nil {
		return nil, err
	}
	var wire bytes.Buffer
	if err := gob.NewEncoder(&wire).Encode(st); err != nil {
		am.f.t.Fatal(err)
	}
	st = new(lockmgr.State)
	if err := gob.NewDecoder(&wire).Decode(st); err != nil {
		am.f.t.Fatal(err)
	}
	return st, nil
}

// adopt makes the mount another Manager's.
func (am *advisoryMount) adopt(st *lockmgr.State) error {
	err := am.succeed(st)
	if err == nil {
		am.m.Begin()
	}
	return err
}

// succeed is adopt, before Begin.
func (am *advisoryMount) succeed(st *lockmgr.State) error {
	part, read := journaltest.Part(am.f.t)
	next, _, err := lockmgr.Adopt(am.f.t.Context(), lockmgr.Config{
		Backend: am.service, Renew: renew.Config{TTL: ttl, Clock: bubbleClock{}}, Logger: slog.New(slog.DiscardHandler), Record: part,
	}, st)
	if err != nil {
		return err
	}
	am.m.LetGo()
	am.read = read
	am.life, am.kill = context.WithCancel(context.Background())
	am.m, am.a = next, am.advisory(next)
	return nil
}

// Those who wait keep their places, among mounts and on their own, whether the mount is handed on or
// goes on, and however often.
func TestAdvisoryHandOnKeepsPlaces(t *testing.T) {
	for _, gone := range []bool{false, true} {
		inBothTables(t, func(f *fixture) {
			t := f.t
			ms := f.handingOn(2)
			a, b := ms[0], ms[1]
			defer func() { a.close() }()
			defer func() { b.close() }()
			b.lock(b.posix(1, 0, 9, true))
			order := make(chan string, 9)
			waits := func(who string, am *advisoryMount, l advisory.Lock) {
				go func() {
					if err := am.lockOn(t.Context(), table, l, true); err != nil {
						t.Errorf("%s: %v", who, err)
					}
					order <- who
					am.within(func() { am.unlock(l) })
				}()
				synctest.Wait()
			}
			waits("a's first", a, a.posix(2, 0, 4, true))
			waits("a's range apart", a, a.posix(3, 5, 9, true))
			waits("b's", b, b.posix(4, 0, 9, true))
			waits("a's reader", a, a.posix(5, 0, 9, false))
			waits("a's last", a, a.posix(6, 0, 9, true))
			rev := f.revision()
			for range 3 {
				a.pause()
				time.Sleep(100 * time.Millisecond)
				st, err := a.exported()
				if err != nil {
					t.Fatal(err)
				}
				if gone {
					if err := a.adopt(st); err != nil {
						t.Fatal(err)
					}
				} else {
					a.m.GoOn()
				}
				a.unpause()
				synctest.Wait()
			}
			if now := f.revision(); now != rev {
				t.Errorf("%d puts were made for it", now-rev)
			}
			a.pause() // what is given back meanwhile is got afterwards
			b.unlock(b.posix(1, 0, 9, true))
			time.Sleep(time.Second)
			if len(order) > 0 {
				t.Error("a lock was granted in the pause to", <-order)
			}
			a.m.GoOn()
			a.unpause()
			seen := []string{<-order, <-order}
			if seen[0] != "a's first" && seen[1] != "a's first" || seen[0] != "a's range apart" && seen[1] != "a's range apart" {
				t.Errorf("the first are %q", seen)
			}
			for _, want := range []string{"b's", "a's reader", "a's last"} {
				if who := <-order; who != want {
					t.Errorf("it is the turn of %s, want %s", who, want)
				}
			}
		})
	}
}

// Three wait for one range, and are handed on. The third comes again before the second, and the range
// gets free: it does not pass the second, which had no place among the mounts yet.
func TestAdvisoryHandedOnIsNotPassed(t *testing.T) {
	inBothTables(t, func(f *fixture) {
		t := f.t
		ms := f.handingOn(2)
		a, b := ms[0], ms[1]
		defer a.close()
		defer b.close()
		held := b.posix(1, 0, 9, true)
		b.lock(held)
		locks := []advisory.Lock{a.posix(2, 0, 9, true), a.posix(3, 0, 9, true), a.posix(4, 0, 9, true)}
		tab := a.table(table)
		defer tab.Close()
		again := make([]lockmgr.Resume, len(locks))
		var wg sync.WaitGroup
		for i, l := range locks {
			wg.Go(func() {
				on := new(lockmgr.HandedOnError)
				if _, err := tab.Lock(t.Context(), l, true); !errors.As(err, &on) {
					t.Errorf("%v, want a HandedOnError", err)
				}
				again[i] = on.Resume
			})
			synctest.Wait()
		}
		a.m.HandOn()
		wg.Wait()
		a.m.GoOn()
		got := make(chan int, len(locks))
		comes := func(i int) {
			go func() {
				if _, err := tab.LockAgain(t.Context(), locks[i], again[i], func() {}); err != nil {
					t.Error(err)
				}
				got <- i
			}()
			synctest.Wait()
		}
		comes(0)
		comes(2)
		b.unlock(held)
		if i := <-got; i != 0 {
			t.Errorf("number %d was first", i)
		}
		a.unlock(locks[0])
		synctest.Wait()
		if len(got) > 0 {
			t.Fatal("the third has passed the second")
		}
		comes(1)
		for i := 1; i < len(locks); i++ {
			if next := <-got; next != i {
				t.Errorf("number %d has the lock, want %d", next, i)
			}
			a.unlock(locks[i])
		}
	})
}

// Who waits, is handed on and does not come is in nobody's way for long. Whether the mount is handed
// on or goes on.
func TestAdvisoryForsaken(t *testing.T) {
	for _, gone := range []bool{false, true} {
		inBothTables(t, func(f *fixture) {
			t := f.t
			ms := f.handingOn(2)
			a, b := ms[0], ms[1]
			defer func() { a.close() }()
			defer func() { b.close() }()
			first := b.posix(1, 0, 9, true)
			b.lock(first)
			for id := range uint64(3) {
				a.waits(t.Context(), table, a.posix(2+id, id, id, true))
			}
			a.m.HandOn()
			if st, err := a.exported(); err != nil {
				t.Fatal(err)
			} else if gone {
				if err := a.adopt(st); err != nil {
					t.Fatal(err)
				}
			} else {
				a.m.GoOn()
			}
			b.unlock(first)
			began := time.Now()
			b.unlock(<-lockLater(b, b.posix(3, 0, 9, true)))
			if waited := time.Since(began); waited > 6*time.Second {
				t.Errorf("others waited for %v", waited)
			}
			time.Sleep(privateFor + time.Second)
			if n := f.advisoryRows(); n != 0 {
				t.Errorf("%d rows are left", n)
			}
		})
	}
}

func lockLater(am *advisoryMount, l advisory.Lock) <-chan advisory.Lock {
	got := make(chan advisory.Lock, 1)
	go func() {
		am.lock(l)
		got <- l
	}()
	return got
}

// A circle that is closed while one of its mounts is paused is found afterwards.
func TestAdvisoryDeadlockOverAPause(t *testing.T) {
	for _, gone := range []bool{false, true} {
		inBothTables(t, func(f *fixture) {
			t := f.t
			ms := f.handingOn(2)
			a, b := ms[0], ms[1]
			defer func() { a.close() }()
			defer func() { b.close() }()
			ended := make(chan error, 2)
			waits := func(am *advisoryMount, key lockmgr.Key, l advisory.Lock) {
				go func() {
					err := am.lockOn(t.Context(), key, l, true)
					ended <- err
					if err != nil { // who is told gives up what it has
						for n := range uint64(2) {
							am.within(func() { am.table(tableOf(n)).Unlock(nil, l.Owner, 0, advisory.EOF) })
						}
					}
				}()
				synctest.Wait()
			}
			for n, am := range ms {
				if _, err := am.table(tableOf(uint64(n))).Lock(t.Context(), am.posix(1, 0, 0, true), true); err != nil {
					t.Fatal(err)
				}
			}
			waits(a, tableOf(1), a.posix(1, 0, 0, true))
			a.pause()
			waits(b, tableOf(0), b.posix(1, 0, 0, true))
			if st, err := a.exported(); err != nil {
				t.Fatal(err)
			} else if gone {
				if err := a.adopt(st); err != nil {
					t.Fatal(err)
				}
			} else {
				a.m.GoOn()
			}
			a.unpause()
			one, other := <-ended, <-ended
			if !errors.Is(one, lockmgr.ErrDeadlock) || other != nil {
				t.Errorf("%v and %v, want one deadlock", one, other)
			}
		})
	}
}

// A state of advisory locks that contradicts itself is refused.
func TestAdoptRefusesAdvisoryNonsense(t *testing.T) {
	inBubble(t, func(f *fixture) {
		lock := advisory.Lock{Owner: advisory.Owner{Mount: "m", ID: 1}, End: 9}
		foreign, reversed, beyond := lock, lock, lock
		foreign.Owner.Mount, reversed.Start, beyond.End = "other", 10, advisory.EOF+1
		id := lockmgr.NewAcquisitionID()
		wait := lockmgr.WaitState{ID: id, Lock: lock}
		for what, tables := range map[string][]lockmgr.TableState{
			"no such session":         {{Session: 1}},
			"a session before all":    {{Session: -2}},
			"a row of no session":     {{Session: -1, Row: lockmgr.RowState{Value: []byte("x")}}},
			"rows of no session":      {{Session: -1, Rows: map[string]int64{"w-x": 1}}},
			"locks of no session":     {{Session: -1, Locks: []advisory.Lock{lock}}},
			"private without a row":   {{Session: -1, Private: true}},
			"a table twice":           {{Session: -1, Key: table}, {Session: -1, Key: table}},
			"another mount's lock":    {{Session: -1, Local: true, Locks: []advisory.Lock{foreign}}},
			"a range backwards":       {{Session: -1, Local: true, Locks: []advisory.Lock{reversed}}},
			"a range beyond the end":  {{Session: -1, Local: true, Locks: []advisory.Lock{beyond}}},
			"another mount's request": {{Session: -1, Waits: []lockmgr.WaitState{{ID: id, Lock: foreign}}}},
			"a request without an id": {{Session: -1, Waits: []lockmgr.WaitState{{Lock: lock}}}},
			"a request that is twice": {{Session: -1, Waits: []lockmgr.WaitState{wait, wait}}},
			"a request in two tables": {{Session: -1, Key: table, Waits: []lockmgr.WaitState{wait}}, {Session: -1, Waits: []lockmgr.WaitState{wait}}},
		} {
			cfg := lockmgr.Config{Backend: &adoptable{Backend: f.svc}, Renew: renew.Config{TTL: ttl, Clock: bubbleClock{}}}
			st := &lockmgr.State{Advisory: &lockmgr.AdvisoryState{Mount: "m", Tables: tables}}
			if _, _, err := lockmgr.Adopt(t.Context(), cfg, st); err == nil {
				t.Errorf("%s: adopted", what)
			}
		}
	})
}
