package lockmgrtest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/lockmgr"
)

// testBreaks: a watch tells of each break, also of those before it, but not of one that was
// withdrawn.
func testBreaks(t *bench) {
	watch := func() <-chan lockmgr.Break {
		found := make(chan lockmgr.Break, 10)
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() {
			defer close(over)
			t.b.WatchBreaks(ctx, func(b lockmgr.Break) { found <- b })
		}()
		t.Cleanup(func() { cancel(); <-over })
		return found
	}
	// told waits for b, which may be told of more than once, like those before.
	told := func(ch <-chan lockmgr.Break, b lockmgr.Break, before ...lockmgr.Break) {
		t.Helper()
		for {
			select {
			case got := <-ch:
				if got == b {
					return
				}
				if !slices.Contains(before, got) {
					t.Fatalf("found %+v, want %+v", got, b)
				}
			case <-time.After(Patience):
				t.Fatalf("not told of %+v", b)
			}
		}
	}
	put := func(path string) lockmgr.Break {
		t.Helper()
		b := lockmgr.Break{
			ID: uuid.New(), Path: path, AcquisitionID: lockmgr.NewAcquisitionID(), Token: 7,
			By: "root on here", Reason: `it "hangs"`, At: time.Unix(1700000000, 0).UTC(),
		}
		if err := t.b.PutBreak(t.within(Patience), b); err != nil {
			t.Fatalf("PutBreak: %v", err)
		}
		return b
	}
	early := watch()
	first := put("a")
	told(early, first)
	withdrawn := put("b") // now: a new watch tells of breaks in any order
	told(early, withdrawn, first)
	for range 2 {
		if err := t.b.DropBreak(t.within(Patience), withdrawn.ID); err != nil {
			t.Fatalf("DropBreak: %v", err)
		}
	}
	late := watch()
	told(late, first)
	second := put("a")
	told(late, second, first)
	told(early, second, first, withdrawn)
}

// testRevoke: a session that another ends takes its locks along, and its mount is told.
func testRevoke(t *bench) {
	s1, s2 := t.open(), t.open()
	for _, s := range []lockmgr.Session{s1, s2} {
		if ttl, err := t.b.SessionTTL(t.within(Patience), s.ID()); err != nil || ttl != s.TTL() {
			t.Fatalf("TTL of %s: %v, %v", s.ID(), ttl, err)
		}
	}
	mine, theirs := t.must(s1, lockmgr.NoWait, File("mine"))[0], t.must(s2, lockmgr.NoWait, File("theirs"))[0]
	gone := make(chan error, 1)
	go func() { gone <- t.b.AwaitGone(t.within(Patience), mine) }()
	next := Start(t.within(Patience), s2, Request(lockmgr.Queue, mine.Key))
	for range 2 {
		if err := t.b.Revoke(t.within(Patience), s1.ID()); err != nil {
			t.Fatalf("Revoke: %v", err)
		}
	}
	if err := <-gone; err != nil {
		t.Fatalf("AwaitGone: %v", err)
	}
	if a := t.await(next); a.Err != nil {
		t.Fatalf("the next owner: %v", a.Err)
	}
	select {
	case <-s1.Done():
	case <-time.After(Patience):
		t.Fatal("the session's mount is not told")
	}
	if err := s1.Renew(t.within(Patience)); !errors.Is(err, lockmgr.ErrSessionLost) {
		t.Fatalf("Renew: %v", err)
	}
	for _, id := range []string{s1.ID(), "none", ""} {
		if _, err := t.b.SessionTTL(t.within(Patience), id); !errors.Is(err, lockmgr.ErrSessionLost) {
			t.Fatalf("TTL of session %q, which is not: %v", id, err)
		}
	}
	ctx, cancel := context.WithCancel(t.within(Patience))
	cancel()
	if err := t.b.AwaitGone(ctx, theirs); !errors.Is(err, context.Canceled) {
		t.Fatalf("AwaitGone of one that stands: %v", err)
	}
}
