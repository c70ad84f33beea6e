package lockmgrtest

import (
	"context"
	"errors"
	"slices"

	"github.com/lockfs/lockfs/lockmgr"
)

// upgrade is the request of the owner that has grants.
func upgrade(wait lockmgr.Wait, grants ...lockmgr.Grant) lockmgr.AcquireRequest {
	req := Request(wait)
	for _, g := range grants {
		req.Keys = append(req.Keys, g.Key)
	}
	req.Upgrades = grants
	return req
}

// testShared: shared locks exclude exclusive ones and directories, and not each
// other, in each way to wait.
func testShared(t *bench) {
	s1, s2 := t.open(), t.open()
	k := File("d/f")
	for _, k := range []lockmgr.Key{k, inode("", 7)} {
		for _, wait := range []lockmgr.Wait{lockmgr.NoWait, lockmgr.Retry, lockmgr.Queue} {
			first := t.mustHave(s1, Shared(wait, k))[0]
			second := t.mustHave(s2, Shared(wait, k))[0]
			for i, e := range t.entries("") {
				if e.Key != k || e.Mode != lockmgr.Shared || !e.Held || e.Holder.AcquisitionID != []lockmgr.AcquisitionID{first.AcquisitionID, second.AcquisitionID}[i] {
					t.Fatalf("entry %d: %+v", i, e)
				}
			}
			_, err := s2.Acquire(t.within(Patience), Request(lockmgr.NoWait, k))
			t.contended(err, k, first.AcquisitionID, nil)
			got := Start(t.within(Patience), s2, Request(wait, k))
			if wait == lockmgr.NoWait {
				t.contended(t.await(got).Err, k, first.AcquisitionID, nil)
			}
			if held, err := s1.Held(t.within(Patience), []lockmgr.Grant{first, second}); err != nil || slices.Contains(held, false) {
				t.Fatalf("Held: %v, %v", held, err)
			}
			t.release(s1, first)
			t.release(s2, second)
			if wait != lockmgr.NoWait {
				a := t.await(got)
				if a.Err != nil {
					t.Fatal(a.Err)
				}
				_, err := s1.Acquire(t.within(Patience), Shared(lockmgr.NoWait, k))
				t.contended(err, k, a.Grants[0].AcquisitionID, nil)
				t.release(s2, a.Grants...)
			}
		}
	}
	reader := t.mustHave(s1, Shared(lockmgr.Queue, k))[0]
	_, err := s2.Acquire(t.within(Patience), Request(lockmgr.NoWait, Tree("d")))
	t.contended(err, Tree("d"), reader.AcquisitionID, nil)
	t.release(s1, reader)
	dir := t.must(s2, lockmgr.NoWait, Tree("d"))[0]
	_, err = s1.Acquire(t.within(Patience), Shared(lockmgr.NoWait, k))
	t.contended(err, k, dir.AcquisitionID, nil)
	t.release(s2, dir)
	if _, err := s1.Acquire(t.within(Patience), Shared(lockmgr.NoWait, Tree("d"))); !errors.Is(err, lockmgr.ErrInvalidKey) {
		t.Fatalf("a shared directory: %v", err)
	}
	t.listed()
}

// testSharedOrder: a writer that came between readers is granted before the later ones, and
// those then together.
func testSharedOrder(t *bench) {
	if !t.opts.Ordered {
		t.Skip("the backend claims no order")
	}
	s1, s2 := t.open(), t.open()
	k := File("f")
	first := t.mustHave(s1, Shared(lockmgr.Queue, k))[0]
	line := []lockmgr.AcquisitionID{first.AcquisitionID}
	wait := func(s lockmgr.Session, req lockmgr.AcquireRequest) <-chan Answer {
		ch := Start(t.within(Patience), s, req)
		line = append(line, req.Holder.AcquisitionID)
		t.listed(line...)
		return ch
	}
	writer := wait(s2, Request(lockmgr.Queue, k))
	later := []<-chan Answer{wait(s1, Shared(lockmgr.Queue, k)), wait(s2, Shared(lockmgr.Queue, k))}
	last := wait(s2, Request(lockmgr.Queue, k))
	for i, e := range t.entries("") {
		if e.Held != (i == 0) {
			t.Fatalf("entry %d of the line: %+v", i, e)
		}
	}
	_, err := s1.Acquire(t.within(Patience), Shared(lockmgr.NoWait, k))
	if !errors.Is(err, lockmgr.ErrContended) {
		t.Fatalf("a reader that does not wait: %v", err)
	}
	t.release(s1, first)
	w := t.await(writer)
	if w.Err != nil {
		t.Fatal(w.Err)
	}
	for _, ch := range append(later, last) {
		if len(ch) > 0 {
			t.Fatal("answered while a writer holds")
		}
	}
	t.release(s2, w.Grants...)
	for _, ch := range later {
		a := t.await(ch)
		if a.Err != nil || a.Grants[0].Token <= w.Grants[0].Token {
			t.Fatalf("a later reader: %v, %v", a.Grants, a.Err)
		}
	}
	// Both have it, and the writer behind them waits for both.
	if list := t.entries(""); len(list) != 3 || !list[0].Held || !list[1].Held || list[2].Held {
		t.Fatalf("the readers: %+v", list)
	}
	if len(last) > 0 {
		t.Fatal("a writer is answered while readers hold")
	}
}

// testUpgrade: an owner's own shared lock is not in its way, those of others are. The owner
// may release its two locks in any order.
func testUpgrade(t *bench) {
	s1, s2 := t.open(), t.open()
	a, b := File("a"), inode("", 7)
	for _, wait := range []lockmgr.Wait{lockmgr.NoWait, lockmgr.Retry, lockmgr.Queue} {
		mine := t.mustHave(s1, Shared(wait, a, b))
		up := t.mustHave(s1, upgrade(wait, mine...))
		for _, e := range t.entries("") {
			if !e.Held {
				t.Fatalf("not held: %+v", e)
			}
		}
		for _, req := range []lockmgr.AcquireRequest{Shared(lockmgr.NoWait, a), Shared(lockmgr.NoWait, b), Request(lockmgr.NoWait, a)} {
			if _, err := s2.Acquire(t.within(Patience), req); !errors.Is(err, lockmgr.ErrContended) {
				t.Fatalf("another owner: %v", err)
			}
		}
		t.release(s1, mine...)
		_, err := s2.Acquire(t.within(Patience), Shared(lockmgr.NoWait, a))
		t.contended(err, a, up[0].AcquisitionID, nil)
		t.release(s1, up...)
	}
	mine := t.mustHave(s1, Shared(lockmgr.NoWait, a))[0]
	others := t.mustHave(s2, Shared(lockmgr.NoWait, a))[0]
	_, err := s1.Acquire(t.within(Patience), upgrade(lockmgr.NoWait, mine))
	t.contended(err, a, others.AcquisitionID, nil)
	for _, wait := range []lockmgr.Wait{lockmgr.Retry, lockmgr.Queue} {
		got := Start(t.within(Patience), s1, upgrade(wait, mine))
		t.release(s2, others)
		up := t.await(got)
		if up.Err != nil {
			t.Fatal(up.Err)
		}
		t.release(s1, up.Grants...)
		others = t.mustHave(s2, Shared(lockmgr.NoWait, a))[0]
	}
}

// testUpgradeDeadlock: an upgrade does not wait for a request that waits for the owner's
// shared lock. Of two upgrades the later is refused, and so is one that a writer waits for.
func testUpgradeDeadlock(t *bench) {
	if !t.opts.Ordered {
		t.Skip("the backend lists nobody who waits")
	}
	s1, s2 := t.open(), t.open()
	k := File("f")
	first, second := t.mustHave(s1, Shared(lockmgr.NoWait, k))[0], t.mustHave(s2, Shared(lockmgr.NoWait, k))[0]
	for _, earlier := range []lockmgr.AcquireRequest{upgrade(lockmgr.Queue, first), Request(lockmgr.Queue, k)} {
		ctx, cancel := context.WithCancel(t.within(Patience))
		got := Start(ctx, s1, earlier)
		t.listed(first.AcquisitionID, second.AcquisitionID, earlier.Holder.AcquisitionID)
		if _, err := s2.Acquire(t.within(Patience), upgrade(lockmgr.Queue, second)); !errors.Is(err, lockmgr.ErrDeadlock) {
			t.Fatalf("who queues: %v", err)
		}
		for _, wait := range []lockmgr.Wait{lockmgr.NoWait, lockmgr.Retry} { // no entry of it that the other waits for
			if _, err := s2.Acquire(t.within(Patience), upgrade(wait, second)); !errors.Is(err, lockmgr.ErrContended) {
				t.Fatalf("who does not: %v", err)
			}
		}
		t.listed(first.AcquisitionID, second.AcquisitionID, earlier.Holder.AcquisitionID)
		cancel()
		t.await(got)
		t.listed(first.AcquisitionID, second.AcquisitionID)
	}
	got := Start(t.within(Patience), s1, upgrade(lockmgr.Queue, first))
	t.release(s2, second)
	if a := t.await(got); a.Err != nil {
		t.Fatalf("the earlier: %v", a.Err)
	}
}
