package lockmgrtest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// testRelease: of the own grant, of one that is gone, of another's.
func testRelease(t *bench) {
	s1, s2 := t.open(), t.open()
	k := File("f")
	mine := t.must(s1, lockmgr.NoWait, k)[0]

	anothers := mine
	anothers.Token++
	if err := s1.Release(t.within(Patience), anothers); !errors.Is(err, lockmgr.ErrNotOwner) {
		t.Fatalf("with another's token: %v", err)
	}
	_, err := s2.Acquire(t.within(Patience), Request(lockmgr.NoWait, k))
	t.contended(err, k, mine.AcquisitionID, nil)

	t.release(s1, mine)
	if err := s1.Release(t.within(Patience), mine); !errors.Is(err, lockmgr.ErrNotHeld) {
		t.Fatalf("for the second time: %v", err)
	}

	successor := t.must(s2, lockmgr.NoWait, k)[0]
	if err := s1.Release(t.within(Patience), mine); !errors.Is(err, lockmgr.ErrNotHeld) && !errors.Is(err, lockmgr.ErrNotOwner) {
		t.Fatalf("while a successor holds: %v", err)
	}
	t.listed(successor.AcquisitionID)
}

// testWatch: Watch misses grants that were released or removed, and no others. It ends with
// its context, and with the session.
func testWatch(t *bench) {
	s := t.open()
	var grants []lockmgr.Grant
	for _, name := range []string{"kept", "released", "removed"} {
		grants = append(grants, t.must(s, lockmgr.NoWait, File(name))...)
	}
	ctx, cancel := context.WithCancel(t.within(Patience))
	missed := make(chan lockmgr.Grant, 100)
	over := make(chan struct{})
	watch := func(ctx context.Context) {
		defer func() { over <- struct{}{} }()
		s.Watch(ctx, func() []lockmgr.Grant { return grants }, func(g lockmgr.Grant) { missed <- g })
	}
	go watch(ctx)
	t.release(s, grants[1])
	want := map[lockmgr.Grant]bool{grants[1]: true}
	if t.opts.Remove != nil {
		t.opts.Remove(t.T, t.b, grants[2].Key, grants[2].Mode, grants[2].AcquisitionID)
		want[grants[2]] = true
	}
	for len(want) > 0 {
		select {
		case g := <-missed:
			if g == grants[0] {
				t.Fatalf("missed, though it stands: %v", g)
			}
			delete(want, g)
		case <-time.After(Patience):
			t.Fatalf("not missed: %v", want)
		}
	}
	cancel()
	<-over
	t.release(s, grants[0])
	go watch(t.within(Patience))
	t.expire(s)
	<-over
}

func testHeld(t *bench) {
	s1, s2 := t.open(), t.open()
	var grants []lockmgr.Grant
	for i := range 150 { // more than one Txn of etcd takes
		name := string([]rune{'f', rune('一' + i)})
		grants = append(grants, t.must(s1, lockmgr.NoWait, File(name))...)
	}
	dir := t.must(s1, lockmgr.NoWait, Tree("d"))[0]
	foreign := dir
	foreign.Token++
	t.release(s1, grants[0], grants[149])
	successor := t.must(s2, lockmgr.NoWait, grants[0].Key)[0]

	held, err := s1.Held(t.within(Patience), append(grants, dir, foreign))
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Repeat([]bool{true}, 152)
	want[0], want[149], want[151] = false, false, false
	if !slices.Equal(held, want) {
		t.Fatalf("Held: %v", held)
	}
	if held, err := s1.Held(t.within(Patience), nil); err != nil || len(held) != 0 {
		t.Fatalf("Held of nothing: %v, %v", held, err)
	}
	t.expire(s1)
	if held, err := s1.Held(t.within(Patience), []lockmgr.Grant{dir}); err != nil || held[0] {
		t.Fatalf("Held after the session's end: %v, %v", held, err)
	}
	if held, err := s2.Held(t.within(Patience), []lockmgr.Grant{successor}); err != nil || !held[0] {
		t.Fatalf("Held of the other session: %v, %v", held, err)
	}
}

// testSessionEnd: a session's locks and waits end with it, and nothing else.
func testSessionEnd(t *bench) {
	s1, s2 := t.open(), t.open()
	if s1.ID() == s2.ID() || s1.TTL() <= 0 || s1.TTL() > TTL {
		t.Fatalf("sessions %q and %q, TTL %v", s1.ID(), s2.ID(), s1.TTL())
	}
	for _, s := range []lockmgr.Session{s1, s2} {
		if err := s.Renew(t.within(Patience)); err != nil {
			t.Fatalf("Renew: %v", err)
		}
	}
	mine := t.must(s1, lockmgr.NoWait, File("mine"))[0]
	dir := t.must(s1, lockmgr.NoWait, Tree("dir"))[0]
	theirs := t.must(s2, lockmgr.NoWait, File("theirs"))[0]
	queue := Start(t.within(Patience), s1, Request(lockmgr.Queue, theirs.Key))
	retry := Start(t.within(Patience), s1, Request(lockmgr.Retry, theirs.Key))
	successor := Start(t.within(Patience), s2, Request(lockmgr.Queue, mine.Key))
	under := Start(t.within(Patience), s2, Request(lockmgr.Retry, File("dir/f")))

	t.expire(s1)
	select {
	case <-s1.Done():
	case <-time.After(Patience):
		t.Fatal("Done is not closed")
	}
	for _, ch := range []<-chan Answer{queue, retry} {
		if a := t.await(ch); !errors.Is(a.Err, lockmgr.ErrSessionLost) {
			t.Fatalf("a wait of the session: %v", a.Err)
		}
	}
	for _, ch := range []<-chan Answer{successor, under} {
		a := t.await(ch)
		if a.Err != nil {
			t.Fatalf("a wait for the session: %v", a.Err)
		}
		if a.Grants[0].Token <= min(mine.Token, dir.Token) {
			t.Fatalf("the successor has token %d", a.Grants[0].Token)
		}
		t.release(s2, a.Grants...)
	}
	if err := s1.Renew(t.within(Patience)); !errors.Is(err, lockmgr.ErrSessionLost) ||
		strings.Count(err.Error(), lockmgr.ErrSessionLost.Error()) != 1 || !strings.HasPrefix(err.Error(), lockmgr.ErrSessionLost.Error()) {
		t.Fatalf("Renew: %v", err)
	}
	if _, err := s1.Acquire(t.within(Patience), Request(lockmgr.NoWait, File("new"))); !errors.Is(err, lockmgr.ErrSessionLost) {
		t.Fatalf("Acquire: %v", err)
	}
	if err := s1.Release(t.within(Patience), mine); !errors.Is(err, lockmgr.ErrNotHeld) {
		t.Fatalf("Release: %v", err)
	}
	t.listed(theirs.AcquisitionID)
	select {
	case <-s2.Done():
		t.Fatal("the other session ended too")
	default:
	}
}

// testSessionEndOrder: the waits of a session that ends leave the line, and later ones keep
// their order.
func testSessionEndOrder(t *bench) {
	if !t.opts.Ordered {
		t.Skip("the backend claims no order")
	}
	dying, s := t.open(), t.open()
	k := File("f")
	held := t.must(dying, lockmgr.Queue, k)[0]
	acquired := []lockmgr.AcquisitionID{held.AcquisitionID}
	var waits []<-chan Answer
	for _, from := range []lockmgr.Session{s, dying, s, dying, s} {
		req := Request(lockmgr.Queue, k)
		acquired = append(acquired, req.Holder.AcquisitionID)
		waits = append(waits, Start(t.within(Patience), from, req))
		t.listed(acquired...)
	}
	t.expire(dying)
	last := held.Token
	for i, ch := range waits {
		a := t.await(ch)
		if i%2 == 1 {
			if !errors.Is(a.Err, lockmgr.ErrSessionLost) {
				t.Fatalf("waiter %d of the dead session: %v", i, a.Err)
			}
			continue
		}
		if a.Err != nil || a.Grants[0].Token <= last {
			t.Fatalf("waiter %d: %v, %v", i, a.Grants, a.Err)
		}
		for j := i + 2; j < len(waits); j += 2 {
			if len(waits[j]) > 0 {
				t.Fatalf("waiter %d is answered while %d holds", j, i)
			}
		}
		last = a.Grants[0].Token
		t.release(s, a.Grants...)
	}
}

// testClose: Close ends waits, frees locks, and can be called again.
func testClose(t *bench) {
	s1, s2 := t.open(), t.open()
	mine := t.must(s1, lockmgr.NoWait, File("mine"))[0]
	theirs := t.must(s2, lockmgr.NoWait, File("theirs"))[0]
	queue := Start(t.within(Patience), s1, Request(lockmgr.Queue, theirs.Key))
	retry := Start(t.within(Patience), s1, Request(lockmgr.Retry, theirs.Key))
	for range 2 {
		if err := s1.Close(t.within(Patience)); err != nil {
			t.Fatalf("Close: %v", err)
		}
	}
	for _, ch := range []<-chan Answer{queue, retry} {
		if a := t.await(ch); !errors.Is(a.Err, lockmgr.ErrSessionLost) {
			t.Fatalf("a wait of the closed session: %v", a.Err)
		}
	}
	t.listed(theirs.AcquisitionID)
	t.must(s2, lockmgr.NoWait, mine.Key)
	if _, err := s1.Acquire(t.within(Patience), Request(lockmgr.NoWait, File("new"))); !errors.Is(err, lockmgr.ErrSessionLost) {
		t.Fatalf("Acquire: %v", err)
	}
}
