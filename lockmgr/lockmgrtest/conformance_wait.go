package lockmgrtest

import (
	"context"
	"errors"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// contended checks that err names the key and the holder that stand in the way.
func (t *bench) contended(err error, k lockmgr.Key, holder lockmgr.AcquisitionID, cause error) {
	t.Helper()
	var c *lockmgr.ContendedError
	if !errors.As(err, &c) || !errors.Is(err, lockmgr.ErrContended) {
		t.Fatalf("got %v, want a ContendedError", err)
	}
	if c.Key != k || c.Holder.AcquisitionID != holder {
		t.Fatalf("got %v, want %v held by %v", err, k, holder)
	}
	if cause == nil && c.Err != nil || !errors.Is(c.Err, cause) {
		t.Fatalf("the wait ended by %v, want %v", c.Err, cause)
	}
}

func testNoWait(t *bench) {
	s1, s2 := t.open(), t.open()
	k := File("dir/f")
	held := t.must(s1, lockmgr.NoWait, k)[0]
	for _, s := range []lockmgr.Session{s1, s2} { // two acquisitions of one session are two owners
		_, err := s.Acquire(t.within(Patience), Request(lockmgr.NoWait, k))
		t.contended(err, k, held.AcquisitionID, nil)
	}
	t.listed(held.AcquisitionID)
	t.release(s1, held)
	t.release(s2, t.must(s2, lockmgr.NoWait, k)...)
}

func testRetry(t *bench) {
	s1, s2 := t.open(), t.open()
	k := File("f")
	held := t.must(s1, lockmgr.Retry, k)[0]

	t.contended(t.timeOut(s2, lockmgr.Retry, k), k, held.AcquisitionID, context.DeadlineExceeded)

	got := Start(t.within(Patience), s2, Request(lockmgr.Retry, k))
	for range 10 {
		if list := t.entries(""); len(list) != 1 {
			t.Fatalf("Retry put an entry: %v", list)
		}
	}
	t.release(s1, held)
	a := t.await(got)
	if a.Err != nil {
		t.Fatal(a.Err)
	}
	t.release(s2, a.Grants...)
	t.listed()
}

func testQueue(t *bench) {
	s1, s2 := t.open(), t.open()
	k := File("f")
	held := t.must(s1, lockmgr.Queue, k)[0]

	t.contended(t.timeOut(s2, lockmgr.Queue, k), k, held.AcquisitionID, context.DeadlineExceeded)
	t.listed(held.AcquisitionID)

	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s2.Acquire(cancelled, Request(lockmgr.Queue, k))
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("with a context that is over: %v", err)
	}

	got := Start(t.within(Patience), s2, Request(lockmgr.Queue, k))
	t.release(s1, held)
	a := t.await(got)
	if a.Err != nil {
		t.Fatal(a.Err)
	}
	t.release(s2, a.Grants...)
	t.listed()
}

// testOrder: waiters are granted as they came, whatever their session, and one
// that gives up lets the others move on.
func testOrder(t *bench) {
	if !t.opts.Ordered {
		t.Skip("the backend claims no order")
	}
	sessions := []lockmgr.Session{t.open(), t.open(), t.open()}
	k := File("f")
	prev, from := t.must(sessions[0], lockmgr.Queue, k)[0], sessions[0]

	const waiters, deserter = 9, 4
	order := make(chan int, waiters)
	answers := make([]<-chan Answer, waiters)
	giveUp, cancel := context.WithCancel(t.within(Patience))
	defer cancel()
	for i := range waiters {
		ctx := t.within(Patience)
		if i == deserter {
			ctx = giveUp
		}
		ch := make(chan Answer, 1)
		answers[i] = ch
		go func() {
			grants, err := sessions[i%3].Acquire(ctx, Request(lockmgr.Queue, k))
			order <- i
			ch <- Answer{grants, err}
		}()
		t.eventually("the waiter stands in line", func() bool { return len(t.entries("")) == i+2 })
	}
	for i, e := range t.entries("") {
		if e.Held != (i == 0) {
			t.Fatalf("entry %d of the line: %v", i, e)
		}
	}
	cancel()
	if a := t.await(answers[deserter]); !errors.Is(a.Err, lockmgr.ErrContended) || !errors.Is(a.Err, context.Canceled) {
		t.Fatalf("the one that gave up: %v", a.Err)
	}
	<-order
	for i := range waiters {
		if i == deserter {
			continue
		}
		t.release(from, prev)
		a := t.await(answers[i])
		if a.Err != nil {
			t.Fatalf("waiter %d: %v", i, a.Err)
		}
		if first := <-order; first != i {
			t.Fatalf("waiter %d was granted before %d", first, i)
		}
		if a.Grants[0].Token <= prev.Token {
			t.Fatalf("token %d after %d", a.Grants[0].Token, prev.Token)
		}
		prev, from = a.Grants[0], sessions[i%3]
	}
	t.release(from, prev)
}

// testAbandonedWaits: a wait that ends at any time leaves nothing.
func testAbandonedWaits(t *bench) {
	s1, s2 := t.open(), t.open()
	k, other := File("f"), File("g")
	held := t.must(s1, lockmgr.Queue, k)[0]
	var left []<-chan struct{}
	for _, wait := range []lockmgr.Wait{lockmgr.NoWait, lockmgr.Retry, lockmgr.Queue} {
		for d := time.Duration(0); d < 5*time.Millisecond; d += 100 * time.Microsecond {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			grants, err := s2.Acquire(ctx, Request(wait, other, k))
			cancel()
			if !errors.Is(err, lockmgr.ErrContended) && !errors.Is(err, lockmgr.ErrUnavailable) {
				t.Fatalf("after %v: %v, %v", d, grants, err)
			}
			left = append(left, leftover(err))
		}
	}
	// Free keys: the answer may be either, but there is nothing in between.
	for d := time.Duration(0); d < 5*time.Millisecond; d += 100 * time.Microsecond {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		grants, err := s2.Acquire(ctx, Request(lockmgr.Queue, File("free")))
		cancel()
		if err == nil {
			t.release(s2, grants...)
		}
		left = append(left, leftover(err))
	}
	for _, gone := range left {
		select {
		case <-gone:
		case <-time.After(Patience):
			t.Fatal("what a wait has left is not removed")
		}
	}
	t.listed(held.AcquisitionID)
	t.release(s1, held)
	t.release(s2, t.must(s2, lockmgr.NoWait, other, k, File("free"))...)
	t.listed()
}

// leftover returns what is closed when nothing is left of an Acquire that ended with err.
func leftover(err error) <-chan struct{} {
	var left *lockmgr.LeftoverError
	if errors.As(err, &left) {
		return left.Gone
	}
	gone := make(chan struct{})
	close(gone)
	return gone
}

// testRemovedEntry: a waiter that loses its place in line is told so, and does not wait for
// ever.
func testRemovedEntry(t *bench) {
	if t.opts.Remove == nil {
		t.Skip("the test has no hand for it")
	}
	s1, s2 := t.open(), t.open()
	k := File("f")
	held := t.must(s1, lockmgr.Queue, k)[0]
	for _, req := range []lockmgr.AcquireRequest{Request(lockmgr.Queue, k), Shared(lockmgr.Queue, k)} {
		if !t.opts.Ordered {
			break
		}
		got := Start(t.within(Patience), s2, req)
		t.listed(held.AcquisitionID, req.Holder.AcquisitionID)
		t.opts.Remove(t.T, t.b, k, req.Mode, req.Holder.AcquisitionID)
		if a := t.await(got); !errors.Is(a.Err, lockmgr.ErrLockLost) {
			t.Fatalf("Acquire after its entry was removed: %v", a.Err)
		}
	}
	t.opts.Remove(t.T, t.b, k, held.Mode, held.AcquisitionID)
	if err := s1.Release(t.within(Patience), held); !errors.Is(err, lockmgr.ErrNotHeld) {
		t.Fatalf("Release of a removed entry: %v", err)
	}
}

// testWaits: a request that has to wait says so once. Others do not.
func testWaits(t *bench) {
	s1, s2 := t.open(), t.open()
	k := File("f")
	waits := make(chan struct{}, 10)
	asked := func(wait lockmgr.Wait) lockmgr.AcquireRequest {
		req := Request(wait, k)
		req.Waits = func() { waits <- struct{}{} }
		return req
	}
	held := t.mustHave(s1, asked(lockmgr.Queue))[0]
	_, err := s2.Acquire(t.within(Patience), asked(lockmgr.NoWait))
	t.contended(err, k, held.AcquisitionID, nil)
	if len(waits) > 0 {
		t.Error("a request that did not wait said that it does")
	}
	for _, wait := range []lockmgr.Wait{lockmgr.Queue, lockmgr.Retry} {
		got := Start(t.within(Patience), s2, asked(wait))
		select {
		case <-waits:
		case <-time.After(Patience):
			t.Fatal("a request that waits does not say so")
		}
		t.release(s1, held)
		a := t.await(got)
		if a.Err != nil {
			t.Fatal(a.Err)
		}
		t.release(s2, a.Grants...)
		held = t.must(s1, lockmgr.Queue, k)[0]
	}
	if len(waits) > 0 {
		t.Error("a request said twice that it waits")
	}
	t.release(s1, held)
}
