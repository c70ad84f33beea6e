package lockmgr_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// read is the request of an OPEN for read.
func read(owner string, wait time.Duration, paths ...string) lockmgr.Request {
	r := open(owner, wait, paths...)
	r.Mode = lockmgr.Shared
	return r
}

func TestReadersShare(t *testing.T) {
	inBubble(t, func(f *fixture) {
		one, two, again := f.must(read("a", 0, "f")), f.must(read("b", 0, "f")), f.must(read("a", 0, "f"))
		if n := f.svc.Count(); n != 2 {
			f.t.Errorf("%d entries for two owners, want 2", n)
		}
		f.fails(open("c", 0, "f"), lockmgr.ErrContended, 0)
		f.fails(try("c", file("f")), lockmgr.ErrContended, 0)
		f.fails(try("c", tree("f")), lockmgr.ErrContended, 0)
		w := f.later(open("c", -1, "f"))
		one.Release()
		two.Release()
		synctest.Wait()
		if len(w) != 0 {
			f.t.Error("a writer was granted while a reader holds")
		}
		again.Release()
		h := <-w
		f.fails(read("a", 0, "f"), lockmgr.ErrContended, 0)
		f.must(read("c", 0, "f")).Release() // what it has for itself alone, it may read
		if n := f.svc.Count(); n != 1 {
			f.t.Errorf("%d entries of the writer, want 1", n)
		}
		h.Release()
		dir := lockmgr.Request{Owner: "a", Keys: []lockmgr.Key{tree("d")}, Mode: lockmgr.Shared}
		f.fails(dir, lockmgr.ErrInvalidKey, 0)
	})
}

// A writer that came between readers is not starved by those who come later,
// on its own mount or on another.
func TestWriterBetweenReaders(t *testing.T) {
	inBubble(t, func(f *fixture) {
		other, _ := f.manager()
		first := f.must(read("a", 0, "f"))
		writer := f.later(open("w", -1, "f"))
		readers := []<-chan *lockmgr.Hold{f.later(read("b", -1, "f")), f.later(read("c", -1, "f"))}
		f.fails(read("d", time.Second, "f"), lockmgr.ErrContended, time.Second)
		first.Release()
		h := <-writer
		synctest.Wait()
		if len(readers[0])+len(readers[1]) != 0 {
			f.t.Error("a reader passed a writer that came before")
		}
		h.Release()
		b, c := <-readers[0], <-readers[1]

		remote := make(chan *lockmgr.Hold, 1)
		go func() {
			h, err := other.Acquire(f.t.Context(), open("x", -1, "f"))
			if err != nil {
				f.t.Error(err)
			}
			remote <- h
		}()
		synctest.Wait()
		f.fails(read("d", 0, "f"), lockmgr.ErrContended, 0)
		late := f.later(read("d", -1, "f"))
		b.Release()
		c.Release()
		h = <-remote
		synctest.Wait()
		if len(late) != 0 {
			f.t.Error("a reader passed a writer that came before, on another mount")
		}
		h.Release()
		(<-late).Release()
		if err := other.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	})
}

// An owner that shares a lock and wants it for itself alone waits for the other
// readers, and keeps each of the two locks as long as it has holds.
func TestUpgrade(t *testing.T) {
	inBubble(t, func(f *fixture) {
		mine, others := f.must(read("a", 0, "f")), f.must(read("b", 0, "f"))
		f.fails(open("a", 0, "f"), lockmgr.ErrContended, 0)
		up := f.later(open("a", -1, "f"))
		others.Release()
		w := <-up
		f.fails(read("b", 0, "f"), lockmgr.ErrContended, 0)
		if w.Token(file("f")) <= mine.Token(file("f")) {
			f.t.Errorf("token %d after %d", w.Token(file("f")), mine.Token(file("f")))
		}
		w.Release()
		f.must(read("b", time.Second, "f")).Release() // shares with what is left
		f.fails(open("b", 0, "f"), lockmgr.ErrContended, 0)

		w = f.must(open("a", time.Second, "f"))
		mine.Release()
		f.fails(read("b", 0, "f"), lockmgr.ErrContended, 0)
		w.Release()
		f.must(open("b", time.Second, "f")).Release()
	})
}

// An upgrade is refused if it would wait for an owner that waits for what the upgrader shares,
// be that owner on its own mount or on another.
func TestUpgradeDeadlock(t *testing.T) {
	for _, where := range []string{"here", "elsewhere"} {
		for _, earlier := range []string{"upgrades", "writes"} {
			t.Run(earlier+" "+where, func(t *testing.T) {
				inBubble(t, func(f *fixture) {
					a, b := f.must(read("a", 0, "f")), f.must(read("b", 0, "f"))
					m := f.m
					if where == "elsewhere" {
						m, _ = f.manager()
						b.Release()
						var err error
						if b, err = m.Acquire(f.t.Context(), read("b", time.Second, "f")); err != nil {
							f.t.Fatal(err)
						}
						defer func() {
							if err := m.Close(f.t.Context()); err != nil {
								f.t.Error(err)
							}
						}()
					}
					owner := map[string]string{"upgrades": "b", "writes": "w"}[earlier]
					granted := make(chan *lockmgr.Hold, 1)
					go func() {
						h, err := m.Acquire(f.t.Context(), open(owner, -1, "f"))
						if err != nil {
							f.t.Error(err)
						}
						granted <- h
					}()
					synctest.Wait()
					if where == "elsewhere" && earlier == "writes" {
						b.Release() // the writer waits for it on its mount
						synctest.Wait()
					}
					f.fails(open("a", time.Minute, "f"), lockmgr.ErrDeadlock, 0)
					f.fails(open("a", 0, "f"), lockmgr.ErrContended, 0)
					f.fails(try("a", file("f")), lockmgr.ErrContended, 0)
					if err := a.Check(); err != nil {
						f.t.Errorf("what it shares: %v", err)
					}
					b.Release()
					a.Release()
					(<-granted).Release()
					synctest.Wait()
				})
			})
		}
	}
}

// An upgrade does not wait for a reader of its own mount that stands, elsewhere, behind an owner
// that waits for the upgrader.
func TestUpgradeBehindReaders(t *testing.T) {
	inBubble(t, func(f *fixture) {
		other, _ := f.manager()
		a := f.must(read("a", 0, "f"))
		writer := make(chan *lockmgr.Hold, 1)
		go func() {
			h, err := other.Acquire(f.t.Context(), open("x", -1, "f"))
			if err != nil {
				f.t.Error(err)
			}
			writer <- h
		}()
		synctest.Wait()
		reader := f.later(read("b", -1, "f"))
		f.fails(open("a", time.Minute, "f"), lockmgr.ErrDeadlock, 0)
		a.Release()
		(<-writer).Release()
		(<-reader).Release()
		if err := other.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	})
}

// Whatever is lost voids just what depends on it.
func TestSharedLockLost(t *testing.T) {
	inBubble(t, func(f *fixture) {
		a, b := f.must(read("a", 0, "f")), f.must(read("b", 0, "f"))
		entries, err := f.svc.Entries(f.t.Context(), "f")
		if err != nil {
			f.t.Fatal(err)
		}
		e := entries[0]
		f.svc.Delete(e.Grant())
		time.Sleep(2 * time.Second) // it is missed
		if err := a.Check(); !errors.Is(err, lockmgr.ErrLockLost) {
			f.t.Errorf("the lock that is gone: %v", err)
		}
		if err := b.Check(); err != nil {
			f.t.Errorf("the other: %v", err)
		}
		f.must(read("a", 0, "f")).Release()
		f.svc.Expire(f.svc.last())
		synctest.Wait()
		if !b.Lost() {
			f.t.Error("a shared lock outlives its session")
		}
		f.must(open("c", time.Second, "f")).Release()
	})
}

// Readers and writers of several owners on two mounts: nobody reads while
// another writes, and everybody gets through.
func TestSharedUnderLoad(t *testing.T) {
	inBubble(t, func(f *fixture) {
		other, _ := f.manager()
		var mu sync.Mutex
		holding := map[string]int{} // by owner; negative: writes
		enter := func(who string, by int) {
			mu.Lock()
			defer mu.Unlock()
			holding[who] += by
			for o, n := range holding {
				if o != who && (n < 0 || by < 0 && n != 0) {
					f.t.Errorf("%s has it (%d) while %s does (%d)", who, by, o, n)
				}
			}
		}
		var wg sync.WaitGroup
		for i := range 12 {
			m := []*lockmgr.Manager{f.m, other}[i%2]
			wg.Go(func() {
				for j := range 30 {
					req, by := read(fmt.Sprint(i), -1, "f", "g"), 1
					if (i+j)%5 == 0 {
						req, by = open(fmt.Sprint(i), -1, "f", "g"), -1
					}
					h, err := m.Acquire(f.t.Context(), req)
					if err != nil {
						f.t.Error(err)
						return
					}
					enter(fmt.Sprint(i), by)
					time.Sleep(time.Millisecond)
					mu.Lock()
					holding[fmt.Sprint(i)] -= by
					mu.Unlock()
					h.Release()
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		if err := other.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	})
}
