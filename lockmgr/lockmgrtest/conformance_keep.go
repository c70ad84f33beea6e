package lockmgrtest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// recaller returns the backend as a Recaller, with what its watch tells.
func (t *bench) recaller() (lockmgr.Recaller, <-chan lockmgr.Recall) {
	found := make(chan lockmgr.Recall, 100)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		t.b.WatchRecalls(ctx, func(recall lockmgr.Recall) {
			select {
			case found <- recall:
			default: // it is told more than once
			}
		})
	}()
	t.Cleanup(func() { cancel(); <-over })
	return t.b, found
}

// recalled waits for a recall of g.
func (t *bench) recalled(found <-chan lockmgr.Recall, g lockmgr.Grant) lockmgr.Recall {
	t.Helper()
	for {
		select {
		case r := <-found:
			if slices.Contains(r.Entries, g.AcquisitionID) {
				return r
			}
		case <-time.After(Patience):
			t.Fatalf("no recall of %v", g)
		}
	}
}

func keep(wait lockmgr.Wait, keys ...lockmgr.Key) lockmgr.AcquireRequest {
	req := Request(wait, keys...)
	req.Keep = true
	return req
}

// testRecall: whatever waits for an entry that may be kept recalls it, and gets it when it is
// released. The recall is gone then.
func testRecall(t *bench) {
	r, found := t.recaller()
	mine, theirs := t.open(), t.open()
	d, f, g := Tree("d"), File("d/f"), File("d/g")
	for name, req := range map[string]lockmgr.AcquireRequest{
		"queue":         Request(lockmgr.Queue, f),
		"queue for two": Request(lockmgr.Queue, g, f),
		"share":         Shared(lockmgr.Queue, f),
		"retry":         Request(lockmgr.Retry, f),
		"directory":     Request(lockmgr.Retry, d),
		"try":           Request(lockmgr.NoWait, f),
		"try directory": Request(lockmgr.NoWait, d),
	} {
		kept := Acquire(t.T, mine, keep(lockmgr.Queue, f))[0]
		answer := Start(t.within(Patience), theirs, req)
		recall := t.recalled(found, kept)
		if recall.Try != (req.Wait == lockmgr.NoWait) {
			t.Errorf("%s: %+v", name, recall)
		}
		standing, err := r.Recalls(t.within(Patience))
		if err != nil || !slices.ContainsFunc(standing, func(s lockmgr.Recall) bool { return s.ID == recall.ID }) {
			t.Errorf("%s: %+v stand, %v", name, standing, err)
		}
		Release(t.T, mine, kept)
		got := Await(t.T, answer)
		if got.Err != nil {
			t.Fatalf("%s: %v", name, got.Err)
		}
		Release(t.T, theirs, got.Grants...)
		t.recallsEnd(r)
	}
}

// recallsEnd waits until no recall stands.
func (t *bench) recallsEnd(r lockmgr.Recaller) {
	t.Helper()
	Eventually(t.T, "no recall stands", func() bool {
		standing, err := r.Recalls(t.within(Patience))
		return err == nil && len(standing) == 0
	})
}

// testRecallInUse: a request that does not wait is told that the entry is in use, and others wait on.
func testRecallInUse(t *bench) {
	r, found := t.recaller()
	mine, theirs := t.open(), t.open()
	f := File("f")
	kept := Acquire(t.T, mine, keep(lockmgr.Queue, f))[0]
	waiter := Start(t.within(Patience), theirs, Request(lockmgr.Queue, f))
	t.recalled(found, kept)
	try := Start(t.within(Patience), t.open(), Request(lockmgr.NoWait, f))
	if err := Await(t.T, try).Err; !errors.Is(err, lockmgr.ErrContended) { // the waiter's entry is not kept
		t.Errorf("%v", err)
	}
	Release(t.T, mine, kept)
	Release(t.T, theirs, Await(t.T, waiter).Grants...)
	t.recallsEnd(r)

	kept = Acquire(t.T, mine, keep(lockmgr.NoWait, f))[0]
	try = Start(t.within(Patience), theirs, Request(lockmgr.NoWait, f))
	for recall := t.recalled(found, kept); !recall.Try; recall = t.recalled(found, kept) {
	}
	standing, err := r.Recalls(t.within(Patience))
	if err != nil || len(standing) != 1 {
		t.Fatal(standing, err)
	}
	if err := r.InUse(t.within(Patience), standing[0].ID); err != nil {
		t.Fatal(err)
	}
	if err := Await(t.T, try).Err; !errors.Is(err, lockmgr.ErrContended) {
		t.Errorf("%v", err)
	}
	Release(t.T, mine, kept)
	Release(t.T, theirs, Must(t.T, theirs, lockmgr.NoWait, f)...)
}

// testNoRecall: an entry that may not be kept is not recalled.
func testNoRecall(t *bench) {
	r, _ := t.recaller()
	mine, theirs := t.open(), t.open()
	held := Must(t.T, mine, lockmgr.Queue, File("f"))
	waits := make(chan struct{})
	req := Request(lockmgr.Queue, File("f"))
	req.Waits = func() { close(waits) }
	answer := Start(t.within(Patience), theirs, req)
	<-waits
	if _, err := theirs.Acquire(t.within(Patience), Request(lockmgr.NoWait, File("f"))); !errors.Is(err, lockmgr.ErrContended) {
		t.Error(err)
	}
	if standing, err := r.Recalls(t.within(Patience)); err != nil || len(standing) > 0 {
		t.Error(standing, err)
	}
	Release(t.T, mine, held...)
	Release(t.T, theirs, Await(t.T, answer).Grants...)
}

// testDescribe: an entry's holder is replaced, its place and its session stay, and no entry
// comes back.
func testDescribe(t *bench) {
	r, _ := t.recaller()
	s := t.open()
	kept := Acquire(t.T, s, keep(lockmgr.Queue, File("f")))[0]
	gone := Acquire(t.T, s, keep(lockmgr.Queue, File("g")))[0]
	Release(t.T, s, gone)
	describe := func(h lockmgr.Holder) []lockmgr.Entry {
		var news []lockmgr.Entry
		for _, g := range []lockmgr.Grant{gone, kept} {
			h.AcquisitionID = g.AcquisitionID
			news = append(news, lockmgr.Entry{Key: g.Key, Mode: g.Mode, Holder: h, Token: g.Token})
		}
		if err := r.Describe(t.within(Patience), news); err != nil {
			t.Fatal(err)
		}
		entries, err := t.b.Entries(t.within(Patience), "")
		if err != nil {
			t.Fatal(err)
		}
		return entries
	}
	e := describe(lockmgr.Holder{Node: "n", Comm: "second", Turn: 3})
	if len(e) != 1 || e[0].Holder.Comm != "second" || e[0].Holder.Turn != 3 || e[0].Grant() != kept || !e[0].Held {
		t.Errorf("%+v", e)
	}
	if e := describe(lockmgr.Holder{Node: "n", Turn: 3, Kept: true}); len(e) != 1 || !e[0].Holder.Kept {
		t.Errorf("%+v", e)
	}
	if err := s.Close(t.within(Patience)); err != nil {
		t.Fatal(err)
	}
	if e, err := t.b.Entries(t.within(Patience), ""); err != nil || len(e) > 0 {
		t.Errorf("%+v, %v", e, err)
	}
}
