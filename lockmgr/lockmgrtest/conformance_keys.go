package lockmgrtest

import (
	"errors"
	"fmt"

	"github.com/lockfs/lockfs/lockmgr"
)

// testSeveralKeys: all or nothing.
func testSeveralKeys(t *bench) {
	s1, s2 := t.open(), t.open()
	a, b, c := file("a"), file("b"), file("c/d")
	held := t.must(s1, lockmgr.NoWait, b)[0]
	for _, wait := range []lockmgr.Wait{lockmgr.NoWait, lockmgr.Retry} {
		ctx := t.within(patience)
		if wait == lockmgr.Retry {
			ctx = t.within(patience / 1000)
		}
		_, err := s2.Acquire(ctx, request(wait, a, b, c))
		t.contended(err, b, held.Owner, ctx.Err())
		t.owners(held.Owner)
	}
	t.release(s1, held)
	grants := t.must(s2, lockmgr.NoWait, a, b, c)
	_, err := s1.Acquire(t.within(patience), request(lockmgr.NoWait, c))
	t.contended(err, c, grants[2].Owner, nil)
	t.release(s2, grants[2])
	t.must(s1, lockmgr.NoWait, c)
	// Keys of one request do not exclude each other.
	t.release(s2, grants[:2]...)
	mixed := t.must(s2, lockmgr.NoWait, tree("x"), file("x/y"), tree("x/z"), file("a"))
	for _, e := range t.entries("x") {
		if !e.Held {
			t.Fatalf("not held: %v", e)
		}
	}
	t.release(s2, mixed...)
}

// testQueueSeveralKeys: who queues for several keys stands in each line, and is
// granted when all are free.
func testQueueSeveralKeys(t *bench) {
	s1, s2 := t.open(), t.open()
	a, b := file("a"), file("b")
	heldA, heldB := t.must(s1, lockmgr.Queue, a)[0], t.must(s1, lockmgr.Queue, b)[0]
	req := request(lockmgr.Queue, a, b)
	got := t.start(t.within(patience), s2, req)
	inBoth := t.opts.Ordered && !t.opts.OneByOne
	if inBoth {
		t.owners(heldA.Owner, heldB.Owner, req.Holder.Owner, req.Holder.Owner)
	}
	t.release(s1, heldB)
	if inBoth {
		_, err := s1.Acquire(t.within(patience), request(lockmgr.NoWait, b))
		t.contended(err, b, req.Holder.Owner, nil)
	}
	select {
	case a := <-got:
		t.Fatalf("granted with one of two keys free: %v", a)
	default:
	}
	t.release(s1, heldA)
	answer := t.await(got)
	if answer.err != nil {
		t.Fatal(answer.err)
	}
	t.release(s2, answer.grants...)
	t.owners()
}

func testInvalidRequests(t *bench) {
	s := t.open()
	for _, req := range []lockmgr.AcquireRequest{
		request(lockmgr.NoWait),
		request(lockmgr.Queue, tree("d")),
		request(lockmgr.Queue, file("f"), tree("d")),
	} {
		if _, err := s.Acquire(t.within(patience), req); !errors.Is(err, lockmgr.ErrInvalidKey) {
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
		keys = append(keys, file(p), tree(p))
	}
	for _, first := range keys {
		held := t.must(s1, lockmgr.NoWait, first)
		for _, second := range keys {
			grants, err := s2.Acquire(t.within(patience), request(lockmgr.NoWait, second))
			switch {
			case first.Conflicts(second):
				t.contended(err, second, held[0].Owner, nil)
			case err != nil:
				t.Fatalf("%v while %v is held: %v", second, first, err)
			default:
				t.release(s2, grants...)
			}
		}
		t.release(s1, held...)
	}
}

// testTreeAmongFiles: a directory is had when nothing below is held or queued
// for, and nobody queues behind one who tries.
func testTreeAmongFiles(t *bench) {
	s1, s2 := t.open(), t.open()
	d := tree("d")
	held := t.must(s1, lockmgr.NoWait, file("d/e/f"))
	_, err := s2.Acquire(t.within(patience/1000), request(lockmgr.Retry, d))
	if !errors.Is(err, lockmgr.ErrContended) {
		t.Fatal(err)
	}
	got := t.start(t.within(patience), s2, request(lockmgr.Retry, d))
	t.release(s1, t.must(s1, lockmgr.NoWait, file("d/other"))...)
	t.release(s1, held...)
	a := t.await(got)
	if a.err != nil {
		t.Fatal(a.err)
	}
	t.release(s2, a.grants...)
	t.owners()
}

// testFilesUnderTree: files wait for the directory above them, and the one
// after the other once it is gone; a directory that is gone is forgotten.
func testFilesUnderTree(t *bench) {
	s1, s2 := t.open(), t.open()
	t.release(s2, t.must(s2, lockmgr.Queue, file("warm"))...)
	for i := range 3 {
		held := t.must(s1, lockmgr.Retry, tree("d/e"))
		var answers []<-chan answer
		for j := range 4 {
			wait := lockmgr.Queue
			if j == 3 {
				wait = lockmgr.Retry
			}
			answers = append(answers, t.start(t.within(patience), s2, request(wait, file(fmt.Sprintf("d/e/%d", j)))))
		}
		_, err := s2.Acquire(t.within(patience), request(lockmgr.NoWait, tree("d")))
		if !errors.Is(err, lockmgr.ErrContended) {
			t.Fatalf("round %d: %v", i, err)
		}
		t.release(s2, t.must(s2, lockmgr.NoWait, file("d/f"))...)
		t.release(s1, held...)
		for _, ch := range answers {
			a := t.await(ch)
			if a.err != nil {
				t.Fatalf("round %d: %v", i, a.err)
			}
			if a.grants[0].Token <= held[0].Token {
				t.Fatalf("token %d after %d", a.grants[0].Token, held[0].Token)
			}
			t.release(s2, a.grants...)
		}
	}
	t.owners()
}

// testTokens: of conflicting grants, the later has the larger token.
func testTokens(t *bench) {
	sessions := []lockmgr.Session{t.open(), t.open()}
	last := int64(0)
	for i, k := range []lockmgr.Key{file("a/f"), file("a/f"), tree("a"), file("a/f"), tree("a/f"), tree("a"), file("a/f")} {
		s := sessions[i%2]
		g := t.must(s, lockmgr.NoWait, k)[0]
		if g.Token <= last {
			t.Fatalf("%v has token %d after %d", k, g.Token, last)
		}
		last = g.Token
		t.release(s, g)
	}
	t.expire(sessions[0])
	if g := t.must(sessions[1], lockmgr.NoWait, file("a/f"))[0]; g.Token <= last {
		t.Fatalf("token %d after %d, across a session's end", g.Token, last)
	}
}
