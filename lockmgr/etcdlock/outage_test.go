package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/connectivity"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
)

// compact writes a little and compacts all of it away.
func compact(t *testing.T, etcd raw) {
	t.Helper()
	var rev int64
	for i := range 10 {
		resp, err := etcd.Put(t.Context(), "noise", fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		rev = resp.Header.Revision
	}
	if _, err := etcd.Compact(t.Context(), rev); err != nil {
		t.Fatal(err)
	}
}

// queueing are the ways to wait.
var queueing = map[string]lockmgr.Wait{"Retry": lockmgr.Retry, "Queue": lockmgr.Queue}

// What happens while a waiter is cut off, and is compacted away, it reads when
// it is back.
func TestCompactionDuringWait(t *testing.T) {
	for name, wait := range queueing {
		t.Run(name, func(t *testing.T) {
			client, link := linked(t)
			watcher := watchFlawed(client)
			b, etcd := newVolume(t, dial(t))
			other, s := open(t, b), open(t, newBackend(t, client, etcd.name))
			held := must(t, other, lockmgr.Queue, file("f"))
			eventually(t, "the mount has its watches", func() bool { return watcher.stood.Load() == 3 })
			got := start(within(t, patience), s, request(wait, file("f")))
			eventually(t, "it watches", func() bool { return watcher.stood.Load() > 3 })
			compact(t, etcd) // does not disturb a watch that keeps up
			link.cut()
			release(t, other, held...)
			compact(t, etcd)
			link.heal()
			if a := await(t, got); a.Err != nil {
				t.Fatal(a.Err)
			}
		})
	}
}

// An acquisition begun while etcd is away succeeds when it is back.
func TestAcquireDuringOutage(t *testing.T) {
	client, link := linked(t)
	b, _ := newVolume(t, client)
	s := open(t, b)
	link.cut()
	got := start(within(t, patience), s, request(lockmgr.Queue, file("f")))
	select {
	case a := <-got:
		t.Fatalf("answered by nobody: %v", a)
	case <-time.After(50 * time.Millisecond):
	}
	link.heal()
	if a := await(t, got); a.Err != nil {
		t.Fatal(a.Err)
	}
}

// How a wait ends says whether the service was there at the end, and a wait
// that ends while it is away is cleaned up when it is back.
func TestWaitEndsInOutage(t *testing.T) {
	for name, wait := range queueing {
		t.Run(name, func(t *testing.T) {
			client, link := linked(t)
			watcher := watchFlawed(client)
			b, etcd := newVolume(t, dial(t))
			other, s := open(t, b), open(t, newBackend(t, client, etcd.name))
			held := must(t, other, lockmgr.Queue, file("f"))
			eventually(t, "the mount has its watches", func() bool { return watcher.stood.Load() == 3 })

			waits := func() (<-chan lockmgrtest.Answer, context.CancelFunc) {
				before := watcher.stood.Load()
				ctx, cancel := context.WithCancel(within(t, patience))
				got := start(ctx, s, request(wait, file("f")))
				eventually(t, "it watches", func() bool { return watcher.stood.Load() > before })
				return got, cancel
			}
			got, cancel := waits()
			cancel()
			if err := await(t, got).Err; !errors.Is(err, lockmgr.ErrContended) || errors.Is(err, lockmgr.ErrUnavailable) || !errors.Is(err, context.Canceled) {
				t.Fatalf("with the service there: %v", err)
			}
			got, cancel = waits()
			link.cut()
			eventually(t, "the client notices", func() bool {
				state := client.ActiveConnection().GetState()
				return state != connectivity.Ready && state != connectivity.Idle
			})
			cancel()
			a := await(t, got)
			if !errors.Is(a.Err, lockmgr.ErrUnavailable) || errors.Is(a.Err, lockmgr.ErrContended) || !errors.Is(a.Err, context.Canceled) {
				t.Fatalf("with the service away: %v", a.Err)
			}
			link.heal()
			eventually(t, "nothing of the waiter stays", func() bool { return len(entries(t, b)) == 1 })
			release(t, other, held...)
			must(t, s, wait, file("f"))
		})
	}
}

// A member that has lost its leader ends watches. Waits go on by trying again,
// and one that ends meanwhile says that the service was not there.
func TestWaitWithoutWatch(t *testing.T) {
	for name, wait := range queueing {
		t.Run(name, func(t *testing.T) {
			client := dial(t)
			watcher := watchFlawed(client)
			b, etcd := newVolume(t, client)
			s := open(t, b)
			held := must(t, s, lockmgr.Queue, file("f"), file("g"))
			watcher.refuse.Store(true)

			ctx, cancel := context.WithCancel(within(t, patience))
			ending := start(ctx, s, request(wait, file("f")))
			lasting := start(within(t, patience), s, request(wait, file("g")))
			eventually(t, "both have tried", func() bool {
				return watcher.refusals(etcd.line("f")) > 1 && watcher.refusals(etcd.line("g")) > 1
			})
			cancel()
			if a := await(t, ending); !errors.Is(a.Err, lockmgr.ErrUnavailable) || !errors.Is(a.Err, context.Canceled) {
				t.Fatalf("got %v", a.Err)
			}
			watcher.refuse.Store(false)
			release(t, s, held...)
			if a := await(t, lasting); a.Err != nil {
				t.Fatal(a.Err)
			}
		})
	}
}

// A try-lock gives up after the request timeout, with no error of the caller's
// context, and so do the session's other requests.
func TestOutage(t *testing.T) {
	t.Parallel()
	client, link := linked(t)
	etcd := raw{dial(t), newName()}
	b := newBackend(t, client, etcd.name, func(c *etcdlock.Config) { c.RequestTimeout = time.Second })
	s := open(t, hasty{b, time.Second})
	g := must(t, s, lockmgr.Queue, file("g"))[0]
	link.cut()
	ctx := within(t, patience)
	_, acquire := s.Acquire(ctx, request(lockmgr.NoWait, file("f")))
	_, held := s.Held(ctx, []lockmgr.Grant{g})
	_, list := b.Entries(ctx, "")
	for what, err := range map[string]error{
		"Acquire": acquire, "Held": held, "Entries": list, "Release": s.Release(ctx, g),
	} {
		if !errors.Is(err, lockmgr.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := s.Renew(within(t, 50*time.Millisecond)); !errors.Is(err, lockmgr.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Renew: %v", err)
	}
	if err := s.Close(within(t, 50*time.Millisecond)); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Errorf("Close: %v", err)
	}
	link.heal()
	if _, err := etcd.Get(t.Context(), etcd.admin("session/"+s.ID())); err != nil {
		t.Error(err)
	}
}

// The end of a session is seen though the watch of its record was cut and what
// it missed is compacted away.
func TestDoneAfterOutage(t *testing.T) {
	client, link := linked(t)
	b, etcd := newVolume(t, client)
	s := open(t, b)
	link.cut()
	revoke(t, etcd.Client, s)
	compact(t, etcd)
	link.heal()
	select {
	case <-s.Done():
	case <-time.After(patience):
		t.Fatal("Done is not closed")
	}
}

// An operator who deletes the record ends the session: its Puts fail from then
// on, whether the watch has told yet or not.
func TestRecordDeleted(t *testing.T) {
	b, etcd := newVolume(t, dial(t))
	s := open(t, b)
	if _, err := etcd.Delete(t.Context(), etcd.admin("session/"+s.ID())); err != nil {
		t.Fatal(err)
	}
	for _, wait := range waits {
		if _, err := s.Acquire(within(t, patience), request(wait, file("f"))); !errors.Is(err, lockmgr.ErrSessionLost) {
			t.Fatal(err)
		}
	}
}

// A lease ends by itself when nobody renews it.
func TestExpiry(t *testing.T) {
	t.Parallel()
	b, _ := newVolume(t, dial(t))
	var s lockmgr.Session
	eventually(t, "a session has a lock before its lease ends", func() bool {
		var err error
		s, err = b.OpenSession(t.Context(), lockmgr.SessionInfo{}, 300*time.Millisecond)
		if errors.Is(err, lockmgr.ErrSessionLost) { // before it had its record
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		if s.TTL() != 300*time.Millisecond {
			t.Fatalf("TTL %v", s.TTL())
		}
		_, err = s.Acquire(within(t, patience), request(lockmgr.NoWait, file("f")))
		if err != nil && !errors.Is(err, lockmgr.ErrSessionLost) {
			t.Fatal(err)
		}
		return err == nil
	})
	select {
	case <-s.Done():
	case <-time.After(patience):
		t.Fatal("Done is not closed")
	}
	if err := s.Renew(within(t, patience)); !errors.Is(err, lockmgr.ErrSessionLost) {
		t.Fatal(err)
	}
	if list := entries(t, b); len(list) != 0 {
		t.Fatal(list)
	}
}

// A member that hangs tells a watch of nothing. So a waiter looks by itself now and then.
func TestDeafWatch(t *testing.T) {
	t.Parallel()
	client := dial(t)
	watcher := watchFlawed(client)
	b, etcd := newVolume(t, dial(t))
	other, s := open(t, b), open(t, newBackend(t, client, etcd.name))
	eventually(t, "the mount has its watches", func() bool { return watcher.stood.Load() == 3 })
	watcher.deaf.Store(true)
	var waits []<-chan lockmgrtest.Answer
	held := must(t, other, lockmgr.Queue, file("f"), file("g"))
	for wait, path := range map[lockmgr.Wait]string{lockmgr.Queue: "f", lockmgr.Retry: "g"} {
		waits = append(waits, start(within(t, patience), s, request(wait, file(path))))
	}
	gone := make(chan error, 1)
	go func() { gone <- newBackend(t, client, etcd.name).AwaitGone(within(t, patience), held[0]) }()
	eventually(t, "all watch", func() bool { return watcher.stood.Load() > 5 })
	release(t, other, held...)
	for _, got := range waits {
		if a := await(t, got); a.Err != nil {
			t.Error(a.Err)
		}
	}
	if err := <-gone; err != nil {
		t.Error(err)
	}
}

// Renewals are answered while the connection of all else is of no use.
func TestRenewalsGoByThemselves(t *testing.T) {
	t.Parallel()
	client, link := linked(t)
	b, err := etcdlock.New(etcdlock.Config{
		Client: client, Renewals: &etcdlock.DialConfig{Endpoints: []string{endpoint}, DialTimeout: patience},
		Namespace: "test", Name: newName(), RequestTimeout: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	s := open(t, hasty{b, time.Second})
	link.frozen.Lock()
	for range 3 {
		if err := s.Renew(within(t, patience)); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Acquire(within(t, patience), request(lockmgr.NoWait, file("f"))); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Errorf("Acquire: %v", err)
	}
	link.frozen.Unlock()
	must(t, s, lockmgr.Queue, file("f"))
}
