package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
)

var waits = map[string]lockmgr.Wait{"NoWait": lockmgr.NoWait, "Retry": lockmgr.Retry, "Queue": lockmgr.Queue}

// created returns the create revision of the only entry below prefix.
func created(t *testing.T, r raw, prefix string) int64 {
	t.Helper()
	resp, err := r.Get(t.Context(), prefix, clientv3.WithPrefix())
	if err != nil || len(resp.Kvs) != 1 {
		t.Fatalf("Get(%q): %v, %v", prefix, resp, err)
	}
	return resp.Kvs[0].CreateRevision
}

// fenced waits until the session's record was put again.
func fenced(t *testing.T, etcd raw, s lockmgr.Session) {
	t.Helper()
	eventually(t, "the fence is raised", func() bool {
		resp, err := etcd.Get(t.Context(), etcd.admin("session/"+s.ID()))
		if err == nil && resp.Kvs[0].Lease != int64(leaseOf(t, s)) {
			t.Fatalf("the record does not end with the session: %v", resp.Kvs)
		}
		return err == nil && resp.Kvs[0].Version > 1
	})
}

// A Txn that was carried out and not answered is found again, with the token it
// was given, for files, shared ones too, and directories.
func TestLostReply(t *testing.T) {
	for name, wait := range waits {
		for k, mode := range map[lockmgr.Key]lockmgr.Mode{file("f"): lockmgr.Exclusive, tree("f"): lockmgr.Exclusive, file("r"): lockmgr.Shared} {
			if k.Kind == lockmgr.Tree && wait == lockmgr.Queue || wait == lockmgr.NoWait {
				continue
			}
			t.Run(name+" "+k.String(), func(t *testing.T) {
				client, kv := flawed(t)
				b, etcd := newVolume(t, client)
				s := open(t, b)
				kv.next(lostReply, lostReply, lostReply) // the Txn, the fence, and the fence again
				req := request(wait, k)
				req.Mode = mode
				g := acquire(t, s, req)[0]
				prefix := etcd.file(k.Path)
				switch {
				case k.Kind == lockmgr.Tree:
					prefix = etcd.dir(k.Path)
				case mode == lockmgr.Shared:
					prefix = etcd.reader(k.Path)
				}
				if rev := created(t, etcd, prefix); rev != g.Token {
					t.Fatalf("token %d, create revision %d", g.Token, rev)
				}
				release(t, s, g)
			})
		}
	}
}

// The answer that a directory is delegated is lost. The delegation is deleted, and is in nobody's
// way, nor is it in the session's own until then.
func TestLostDelegation(t *testing.T) {
	for _, files := range []int{0, 3} {
		client, kv := flawed(t)
		b, etcd := newVolume(t, client)
		s, other := open(t, b), open(t, newBackend(t, dial(t), etcd.name))
		var open []lockmgr.Grant
		for i := range files {
			open = append(open, must(t, s, lockmgr.NoWait, file(fmt.Sprint("d/", i)))...)
		}
		kv.next(lostReply)
		_, err := s.Acquire(within(t, patience), delegation("d"))
		left := (*lockmgr.LeftoverError)(nil)
		if !errors.Is(err, lockmgr.ErrUnavailable) || !errors.As(err, &left) {
			t.Fatal(err)
		}
		release(t, s, must(t, s, lockmgr.NoWait, file("d/f"))...)
		release(t, other, must(t, other, lockmgr.Queue, file("d/f"))...)
		<-left.Gone
		if n := len(entries(t, b)); n != files {
			t.Errorf("%d entries are left, want %d", n, files)
		}
		release(t, s, open...)
	}
}

// A delegation that arrives after it was given up is not put, whether files are open below it or not.
func TestLateDelegation(t *testing.T) {
	for _, files := range []int{0, 3} {
		client, kv := flawed(t)
		b, etcd := newVolume(t, client)
		s := open(t, b)
		for i := range files {
			must(t, s, lockmgr.NoWait, file(fmt.Sprint("d/", i)))
		}
		kv.next(lateRequest)
		_, err := s.Acquire(within(t, patience), delegation("d"))
		left := (*lockmgr.LeftoverError)(nil)
		if !errors.Is(err, lockmgr.ErrUnavailable) || !errors.As(err, &left) {
			t.Fatal(err)
		}
		<-left.Gone
		fenced(t, etcd, s)
		kv.deliver(t)
		if list := entries(t, b); len(list) != files {
			t.Errorf("beside %d files: %v", files, list)
		}
	}
}

// The Txn that reaches etcd's quota is carried out, and its answer says that there is
// no space left: what it put is found again, or removed.
func TestNoSpaceForTheNext(t *testing.T) {
	for name, wait := range waits {
		for _, mode := range []lockmgr.Mode{lockmgr.Exclusive, lockmgr.Shared} {
			t.Run(fmt.Sprint(name, " ", mode), func(t *testing.T) {
				client, kv := flawed(t)
				b, etcd := newVolume(t, client)
				s := open(t, b)
				kv.next(lastOne)
				req := request(wait, file("f"))
				req.Mode = mode
				grants, err := s.Acquire(within(t, patience), req)
				if wait != lockmgr.NoWait {
					if err != nil {
						t.Fatal(err)
					}
					prefix := etcd.file("f")
					if mode == lockmgr.Shared {
						prefix = etcd.reader("f")
					}
					if rev := created(t, etcd, prefix); rev != grants[0].Token {
						t.Fatalf("token %d, create revision %d", grants[0].Token, rev)
					}
					release(t, s, grants...)
					return
				}
				if !errors.Is(err, lockmgr.ErrUnavailable) {
					t.Fatalf("got %v", err)
				}
				eventually(t, "nothing is left", func() bool { return len(entries(t, b)) == 0 })
				resp, err := etcd.Get(t.Context(), etcd.admin("session/"+s.ID()))
				if err != nil || resp.Kvs[0].Version != 1 {
					t.Fatalf("the fence was raised, for which there is no space: %v, %v", resp, err)
				}
			})
		}
	}
}

// A group that reaches the quota is not carried out again, but for its releases: they
// take no space.
func TestNoSpaceForAGroup(t *testing.T) {
	client, g := gated(t)
	kv := &flawedKV{}
	g.inner = kv.commit
	b, etcd := newVolume(t, client)
	s := open(t, b)
	held := must(t, s, lockmgr.NoWait, file("held"))[0]
	reader := request(lockmgr.Retry, file("r"))
	reader.Mode = lockmgr.Shared
	send, answers := together(t, g, s, reader, request(lockmgr.NoWait, file("w")))
	released := make(chan error, 1)
	go func() { released <- s.Release(within(t, patience), held) }()
	eventually(t, "the release waits", func() bool { return etcdlock.Waiting(s) == 3 })
	kv.next(0, lastOne)
	send()
	if err := <-released; err != nil {
		t.Fatalf("released: %v", err)
	}
	a := await(t, answers[0])
	if a.Err != nil {
		t.Fatal(a.Err)
	}
	if rev := created(t, etcd, etcd.reader("r")); rev != a.Grants[0].Token {
		t.Fatalf("token %d, create revision %d", a.Grants[0].Token, rev)
	}
	if a := await(t, answers[1]); !errors.Is(a.Err, lockmgr.ErrUnavailable) {
		t.Fatalf("got %v", a.Err)
	}
	eventually(t, "nothing of the other is left", func() bool {
		return !slices.ContainsFunc(entries(t, b), func(e lockmgr.Entry) bool { return e.Key == file("w") })
	})
}

// A waiter whose Put was not answered keeps the place the Put took.
func TestLostReplyKeepsPlace(t *testing.T) {
	client, kv := flawed(t)
	b, etcd := newVolume(t, dial(t))
	mine := newBackend(t, client, etcd.name)
	other, s := open(t, b), open(t, mine)
	held := must(t, other, lockmgr.Queue, file("f"))[0]

	kv.next(lostReply, lateRequest, lateRequest, lateRequest) // it learns of its place late
	first := start(within(t, patience), s, request(lockmgr.Queue, file("f")))
	eventually(t, "the waiter stands in line", func() bool { return len(entries(t, b)) == 2 })
	second := start(within(t, patience), other, request(lockmgr.Queue, file("f")))
	eventually(t, "the other stands behind", func() bool { return len(entries(t, b)) == 3 })
	release(t, other, held)
	a := await(t, first)
	if a.Err != nil {
		t.Fatal(a.Err)
	}
	if list := entries(t, b); len(list) != 2 || list[0].Token != a.Grants[0].Token || !list[0].Held {
		t.Fatalf("%v, granted %v", list, a.Grants)
	}
	release(t, s, a.Grants...)
	if a := await(t, second); a.Err != nil {
		t.Fatal(a.Err)
	}
}

// A request that a member carries out after all, when we have long gone on,
// leaves nothing behind.
func TestLateRequest(t *testing.T) {
	for name, wait := range waits {
		t.Run(name, func(t *testing.T) {
			client, kv := flawed(t)
			b, etcd := newVolume(t, client)
			s := open(t, b)
			kv.next(lateRequest)
			req := request(wait, file("f"))
			grants, err := s.Acquire(within(t, patience), req)
			if wait == lockmgr.NoWait {
				if !errors.Is(err, lockmgr.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("got %v", err)
				}
				fenced(t, etcd, s)
			} else {
				if err != nil {
					t.Fatal(err)
				}
				release(t, s, grants...)
			}
			kv.deliver(t)
			if list := entries(t, b); len(list) != 0 {
				t.Fatalf("a orphan: %v", list)
			}
			must(t, s, lockmgr.NoWait, file("f")) // goes on with the new fence
		})
	}
}

// A wait that ends while a Txn of it is unanswered leaves nothing, whether the
// Txn was carried out or will be.
func TestAbandonedUnanswered(t *testing.T) {
	for name, f := range map[string]flaw{"lost reply": lostReply, "late request": lateRequest} {
		t.Run(name, func(t *testing.T) {
			client, kv := flawed(t)
			b, etcd := newVolume(t, client)
			s := open(t, b)
			ctx, cancel := context.WithCancel(t.Context())
			kv.next(append([]flaw{f}, slices.Repeat([]flaw{lateRequest}, 1000)...)...) // more than are sent
			got := start(ctx, s, request(lockmgr.Queue, file("f")))
			eventually(t, "the Txn was sent", func() bool { return kv.sent.Load() > 0 })
			cancel()
			if a := await(t, got); !errors.Is(a.Err, lockmgr.ErrUnavailable) || !errors.Is(a.Err, context.Canceled) {
				t.Fatalf("got %v", a.Err)
			}
			kv.next(lateRequest, lateRequest, lateRequest)
			eventually(t, "the service answers again", kv.broken)
			eventually(t, "the entry is gone", func() bool { return len(entries(t, b)) == 0 })
			fenced(t, etcd, s)
			kv.deliver(t)
			for _, e := range entries(t, b) {
				if e.Key == file("f") {
					t.Fatalf("a orphan: %v", e)
				}
			}
		})
	}
}

// One fence voids what others of the session have under way: they notice, and
// are sent again.
func TestFenceAmongOthers(t *testing.T) {
	client, kv := flawed(t)
	b, _ := newVolume(t, client)
	s := open(t, b)
	kv.next(lateRequest, lostReply, lateRequest, lostReply, lateRequest, lostReply, lateRequest, lostReply)
	var running sync.WaitGroup
	for i := range 40 {
		running.Go(func() {
			grants, err := s.Acquire(within(t, patience), request(lockmgr.Queue, file(string(rune('a'+i%20)))))
			if err == nil {
				err = s.Release(within(t, patience), grants[0])
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	kv.deliver(t)
	if list := entries(t, b); len(list) != 0 {
		t.Fatalf("orphans: %v", list)
	}
}

// After an unanswered release, the second tells that the first was carried out.
func TestLostReplyOfRelease(t *testing.T) {
	client, kv := flawed(t)
	b, _ := newVolume(t, client)
	s := open(t, b)
	g := must(t, s, lockmgr.NoWait, file("f"))[0]
	kv.next(lostReply)
	if err := s.Release(t.Context(), g); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Fatal(err)
	}
	if err := s.Release(t.Context(), g); !errors.Is(err, lockmgr.ErrNotHeld) {
		t.Fatal(err)
	}
}

// 'Another's': the entry under our key is one we did not put.
func TestReleaseOfAnothers(t *testing.T) {
	b, etcd := newVolume(t, dial(t))
	s := open(t, b)
	g := must(t, s, lockmgr.NoWait, file("f"))[0]
	key := etcd.file("f") + g.AcquisitionID.String()
	for _, op := range []clientv3.Op{clientv3.OpDelete(key), clientv3.OpPut(key, "{}")} {
		if _, err := etcd.Do(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Release(t.Context(), g); !errors.Is(err, lockmgr.ErrNotOwner) {
		t.Fatal(err)
	}
	if created(t, etcd, etcd.file("f")) == g.Token {
		t.Fatal("it is still the old one")
	}
	if held, err := s.Held(t.Context(), []lockmgr.Grant{g}); err != nil || held[0] {
		t.Fatal(held, err)
	}
	if rev, err := s.(lockmgr.Delegator).Stands(t.Context(), g); !errors.Is(err, lockmgr.ErrNotHeld) {
		t.Fatal(rev, err)
	}
}

// A request that ends with its answer lost says so, and when nothing stands of it
// any more.
func TestLostReplyIsSaidToRemain(t *testing.T) {
	client, kv := flawed(t)
	b, etcd := newVolume(t, dial(t))
	s := open(t, newBackend(t, client, etcd.name))
	kv.next(lostReply, lostReply, lostReply)
	_, err := s.Acquire(within(t, patience), request(lockmgr.NoWait, file("f")))
	var left *lockmgr.LeftoverError
	if !errors.As(err, &left) || !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	<-left.Gone
	if list := entries(t, b); len(list) > 0 {
		t.Errorf("it stands: %v", list)
	}
	held := must(t, s, lockmgr.NoWait, file("f"))
	if _, err := s.Acquire(within(t, patience), request(lockmgr.NoWait, file("f"))); !errors.Is(err, lockmgr.ErrContended) || errors.As(err, &left) {
		t.Errorf("a refusal leaves nothing: %v", err)
	}
	release(t, s, held...)
}
