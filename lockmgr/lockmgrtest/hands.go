package lockmgrtest

import (
	"context"
	"testing"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// What tests of backends do all the time. What must not fail fails the test.

// Patience is how long what must happen may take.
const Patience = time.Minute

// TTL is longer than any test takes on any machine: most do not renew their sessions.
const TTL = time.Hour

// Within returns a context that ends after d or with the test.
func Within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// Eventually waits for a condition that nothing announces.
func Eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(Patience); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", Patience, what)
		}
	}
}

// Open opens a session that ends with the test.
func Open(t *testing.T, b lockmgr.Backend, ttl time.Duration) lockmgr.Session {
	t.Helper()
	return openAs(t, b, lockmgr.SessionInfo{Node: t.Name()}, ttl)
}

func openAs(t *testing.T, b lockmgr.Backend, info lockmgr.SessionInfo, ttl time.Duration) lockmgr.Session {
	t.Helper()
	s, err := b.OpenSession(Within(t, Patience), info, ttl)
	if err != nil {
		t.Fatalf("OpenSession: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// Request is that of an owner of its own.
func Request(wait lockmgr.Wait, keys ...lockmgr.Key) lockmgr.AcquireRequest {
	return lockmgr.AcquireRequest{Keys: keys, Wait: wait, Holder: lockmgr.Holder{AcquisitionID: lockmgr.NewAcquisitionID(), Node: "n"}}
}

// Shared is a Request that shares.
func Shared(wait lockmgr.Wait, keys ...lockmgr.Key) lockmgr.AcquireRequest {
	req := Request(wait, keys...)
	req.Mode = lockmgr.Shared
	return req
}

// Acquire gets what is free or about to be.
func Acquire(t *testing.T, s lockmgr.Session, req lockmgr.AcquireRequest) []lockmgr.Grant {
	t.Helper()
	grants, err := s.Acquire(Within(t, Patience), req)
	if err != nil {
		t.Fatalf("Acquire(%v): %v", req.Keys, err)
	}
	if len(grants) != len(req.Keys) {
		t.Fatalf("Acquire(%v) returned %v", req.Keys, grants)
	}
	for i, g := range grants {
		if g.Key != req.Keys[i] || g.Mode != req.Mode || g.AcquisitionID != req.Holder.AcquisitionID || g.Token <= 0 {
			t.Fatalf("Acquire(%v) returned %v for %v", req.Keys, grants, req.Holder.AcquisitionID)
		}
	}
	return grants
}

// Must is Acquire for a new owner.
func Must(t *testing.T, s lockmgr.Session, wait lockmgr.Wait, keys ...lockmgr.Key) []lockmgr.Grant {
	t.Helper()
	return Acquire(t, s, Request(wait, keys...))
}

// Release gives grants up.
func Release(t *testing.T, s lockmgr.Session, grants ...lockmgr.Grant) {
	t.Helper()
	for _, g := range grants {
		if err := s.Release(Within(t, Patience), g); err != nil {
			t.Fatalf("Release(%v): %v", g, err)
		}
	}
}

// Answer is what an Acquire returned.
type Answer struct {
	Grants []lockmgr.Grant
	Err    error
}

// Start runs an Acquire in the background.
func Start(ctx context.Context, s lockmgr.Session, req lockmgr.AcquireRequest) <-chan Answer {
	ch := make(chan Answer, 1)
	go func() {
		grants, err := s.Acquire(ctx, req)
		ch <- Answer{grants, err}
	}()
	return ch
}

// Await returns the answer of a Start.
func Await(t *testing.T, ch <-chan Answer) Answer {
	t.Helper()
	select {
	case a := <-ch:
		return a
	case <-time.After(Patience):
		t.Fatal("no answer")
		panic("unreachable")
	}
}

// File is the key of a file.
func File(path string) lockmgr.Key { return mustKey(lockmgr.FileKey(path)) }

// Tree is the key of a directory and all below it.
func Tree(path string) lockmgr.Key { return mustKey(lockmgr.TreeKey(path)) }

func mustKey(k lockmgr.Key, err error) lockmgr.Key {
	if err != nil {
		panic(err)
	}
	return k
}
