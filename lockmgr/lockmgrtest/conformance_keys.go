package lockmgrtest

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockfs/lockfs/lockmgr"
)

// testSeveralKeys: several keys are granted together or not at all.
func testSeveralKeys(t *bench) {
	s1, s2 := t.open(), t.open()
	a, b, c := File("a"), File("b"), File("c/d")
	held := t.must(s1, lockmgr.NoWait, b)[0]
	_, err := s2.Acquire(t.within(Patience), Request(lockmgr.NoWait, a, b, c))
	t.contended(err, b, held.AcquisitionID, nil)
	t.listed(held.AcquisitionID)
	t.contended(t.timeOut(s2, lockmgr.Retry, a, b, c), b, held.AcquisitionID, context.DeadlineExceeded)
	t.listed(held.AcquisitionID)
	t.release(s1, held)
	grants := t.must(s2, lockmgr.NoWait, a, b, c)
	_, err = s1.Acquire(t.within(Patience), Request(lockmgr.NoWait, c))
	t.contended(err, c, grants[2].AcquisitionID, nil)
	t.release(s2, grants[2])
	t.must(s1, lockmgr.NoWait, c)
	// Keys of one request do not exclude each other.
	t.release(s2, grants[:2]...)
	mixed := t.must(s2, lockmgr.NoWait, Tree("x"), File("x/y"), Tree("x/z"), File("a"))
	for _, e := range t.entries("x") {
		if !e.Held {
			t.Fatalf("not held: %v", e)
		}
	}
	t.release(s2, mixed...)
}

// testQueueSeveralKeys: a request that queues for several keys stands in each line, and is
// granted when all are free.
func testQueueSeveralKeys(t *bench) {
	s1, s2 := t.open(), t.open()
	a, b := File("a"), File("b")
	heldA, heldB := t.must(s1, lockmgr.Queue, a)[0], t.must(s1, lockmgr.Queue, b)[0]
	req := Request(lockmgr.Queue, a, b)
	got := Start(t.within(Patience), s2, req)
	inBoth := t.opts.Ordered && !t.opts.OneByOne
	if inBoth {
		t.listed(heldA.AcquisitionID, heldB.AcquisitionID, req.Holder.AcquisitionID, req.Holder.AcquisitionID)
	}
	t.release(s1, heldB)
	if inBoth {
		_, err := s1.Acquire(t.within(Patience), Request(lockmgr.NoWait, b))
		t.contended(err, b, req.Holder.AcquisitionID, nil)
	}
	select {
	case a := <-got:
		t.Fatalf("granted with one of two keys free: %v", a)
	default:
	}
	t.release(s1, heldA)
	answer := t.await(got)
	if answer.Err != nil {
		t.Fatal(answer.Err)
	}
	t.release(s2, answer.Grants...)
	t.listed()
}

// testInTurn: Waits can end a request for a name and an inode that are not free, before it
// puts anything. A request in line for the inode alone is not in the way of the names, and
// gets them later with a larger token than the inode's last holder.
func testInTurn(t *bench) {
	s1, s2 := t.open(), t.open()
	a, b, ino := File("a"), File("b"), inode("", 7)
	held := t.must(s1, lockmgr.Retry, a, ino)

	ctx, cancel := context.WithCancel(t.within(Patience))
	atOnce := Request(lockmgr.Retry, b, ino)
	atOnce.Waits = cancel
	answer := t.await(Start(ctx, s2, atOnce))
	if !errors.Is(answer.Err, lockmgr.ErrContended) && !errors.Is(answer.Err, lockmgr.ErrUnavailable) {
		t.Fatalf("a request that gave up when it had to wait: %v", answer)
	}
	t.listed(held[0].AcquisitionID, held[1].AcquisitionID)

	queued := Request(lockmgr.Queue, ino)
	got := Start(t.within(Patience), s2, queued)
	if t.opts.Ordered {
		t.listed(held[0].AcquisitionID, held[1].AcquisitionID, queued.Holder.AcquisitionID)
	}
	held = append(held, t.must(s1, lockmgr.Queue, b)...)
	t.release(s1, held...)
	first := t.await(got)
	if first.Err != nil {
		t.Fatal(first.Err)
	}
	name := t.must(s2, lockmgr.Queue, b)
	if name[0].Token <= held[2].Token || name[0].Token <= first.Grants[0].Token {
		t.Errorf("token %d of the name, after %d and that of the inode, %d", name[0].Token, held[2].Token, first.Grants[0].Token)
	}
	t.release(s2, append(name, first.Grants...)...)
	t.listed()
}

func testInvalidRequests(t *bench) {
	s := t.open()
	for _, req := range []lockmgr.AcquireRequest{
		Request(lockmgr.NoWait),
		Request(lockmgr.Queue, Tree("d")),
		Request(lockmgr.Queue, File("f"), Tree("d")),
	} {
		if _, err := s.Acquire(t.within(Patience), req); !errors.Is(err, lockmgr.ErrInvalidKey) {
			t.Errorf("Acquire(%v): %v", req.Keys, err)
		}
	}
}

// testConflicts: two keys exclude each other just when Key.Conflicts says so,
// whichever comes first. '.' and '0' are the neighbours of '/'.
func testConflicts(t *bench) {
	s1, s2 := t.open(), t.open()
	var keys []lockmgr.Key
	for _, p := range []string{"a", "a/b", "a/b/c", "ab", "a.", "a0", "a b", "a\xff", "b", "b/a", "a/w", "a/bb"} {
		keys = append(keys, File(p), Tree(p))
	}
	for _, first := range keys {
		held := t.must(s1, lockmgr.NoWait, first)
		for _, second := range keys {
			grants, err := s2.Acquire(t.within(Patience), Request(lockmgr.NoWait, second))
			switch {
			case first.Conflicts(second):
				t.contended(err, second, held[0].AcquisitionID, nil)
			case err != nil:
				t.Fatalf("%v while %v is held: %v", second, first, err)
			default:
				t.release(s2, grants...)
			}
		}
		t.release(s1, held...)
	}
}

// testTreeAmongFiles: a directory is granted when nothing below it is held or queued for. No
// request queues behind one for a directory. It may meet the entry of a try, for a moment: on
// Leases a try puts its entry before it looks at the files below.
func testTreeAmongFiles(t *bench) {
	s1, s2 := t.open(), t.open()
	d := Tree("d")
	held := t.must(s1, lockmgr.NoWait, File("d/e/f"))
	if err := t.timeOut(s2, lockmgr.Retry, d); !errors.Is(err, lockmgr.ErrContended) {
		t.Fatal(err)
	}
	got := Start(t.within(Patience), s2, Request(lockmgr.Retry, d))
	t.release(s1, t.must(s1, lockmgr.Retry, File("d/other"))...)
	t.release(s1, held...)
	a := t.await(got)
	if a.Err != nil {
		t.Fatal(a.Err)
	}
	t.release(s2, a.Grants...)
	t.listed()
}

// testFilesUnderTree: files wait for the directory above them, and once it is gone for each
// other only.
func testFilesUnderTree(t *bench) {
	s1, s2 := t.open(), t.open()
	t.release(s2, t.must(s2, lockmgr.Queue, File("warm"))...)
	for i := range 3 {
		held := t.must(s1, lockmgr.Retry, Tree("d/e"))
		var answers []<-chan Answer
		for j := range 4 {
			wait := lockmgr.Queue
			if j == 3 {
				wait = lockmgr.Retry
			}
			answers = append(answers, Start(t.within(Patience), s2, Request(wait, File(fmt.Sprintf("d/e/%d", j)))))
		}
		_, err := s2.Acquire(t.within(Patience), Request(lockmgr.NoWait, Tree("d")))
		if !errors.Is(err, lockmgr.ErrContended) {
			t.Fatalf("round %d: %v", i, err)
		}
		t.release(s2, t.must(s2, lockmgr.NoWait, File("d/f"))...)
		t.release(s1, held...)
		for _, ch := range answers {
			a := t.await(ch)
			if a.Err != nil {
				t.Fatalf("round %d: %v", i, a.Err)
			}
			if a.Grants[0].Token <= held[0].Token {
				t.Fatalf("token %d after %d", a.Grants[0].Token, held[0].Token)
			}
			t.release(s2, a.Grants...)
		}
	}
	t.listed()
}

// testTokens: of conflicting grants, the later has the larger token.
func testTokens(t *bench) {
	sessions := []lockmgr.Session{t.open(), t.open()}
	last := int64(0)
	for i, k := range []lockmgr.Key{File("a/f"), File("a/f"), Tree("a"), File("a/f"), Tree("a/f"), Tree("a"), File("a/f")} {
		s := sessions[i%2]
		g := t.must(s, lockmgr.NoWait, k)[0]
		if g.Token <= last {
			t.Fatalf("%v has token %d after %d", k, g.Token, last)
		}
		last = g.Token
		t.release(s, g)
	}
	t.expire(sessions[0])
	if g := t.must(sessions[1], lockmgr.NoWait, File("a/f"))[0]; g.Token <= last {
		t.Fatalf("token %d after %d, across a session's end", g.Token, last)
	}
}
