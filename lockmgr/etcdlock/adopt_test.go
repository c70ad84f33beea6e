package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
)

var adoptions atomic.Int64

func TestAdoption(t *testing.T) {
	t.Parallel()
	lockmgrtest.Adoption(t, func(t *testing.T) func() lockmgr.Backend {
		name := fmt.Sprint("adoption-", adoptions.Add(1))
		return func() lockmgr.Backend { return newBackend(t, dial(t), name) }
	})
}

// freeze stops a process until the test ends.
func freeze(t *testing.T, b *etcdlock.Backend) {
	t.Helper()
	thaw, err := b.Freeze(within(t, patience))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(thaw)
}

// adopt has a new process of a volume continue a session.
func adopt(t *testing.T, volume string, former lockmgr.Session) (*etcdlock.Backend, lockmgr.Session) {
	t.Helper()
	b := newBackend(t, dial(t), volume)
	s, err := b.AdoptSession(within(t, patience), lockmgr.SessionInfo{}, former.ID(), former.TTL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.(lockmgr.HandedOn).Abandon)
	former.(lockmgr.HandedOn).Abandon()
	return b, s
}

// A request that the former process has sent, and heard nothing of, puts nothing after its successor
// has looked for what nobody claims.
func TestLateRequestOfTheFormerProcess(t *testing.T) {
	client, kv := flawed(t)
	old, etcd := newVolume(t, client)
	former := open(t, old)
	kv.next(slices.Repeat([]flaw{lateRequest}, 1000)...) // the request, and what would void it
	if _, err := former.Acquire(within(t, patience), request(lockmgr.NoWait, file("f"))); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Fatal(err)
	}
	freeze(t, old)
	b, s := adopt(t, etcd.name, former)
	if err := s.(lockmgr.HandedOn).RemoveUnclaimed(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	kv.mu.Lock()
	kv.late = kv.late[:1]
	kv.mu.Unlock()
	kv.deliver(t)
	if list := entries(t, b); len(list) > 0 {
		t.Errorf("it stands: %v", list)
	}
}

// A successor does not know which directories were locked before it began, and does not say that none
// was.
func TestSuccessorKnowsNoFormerDirectories(t *testing.T) {
	old, etcd := newVolume(t, dial(t))
	former, other := open(t, old), open(t, newBackend(t, dial(t), etcd.name))
	visit := func(s lockmgr.Session) int64 {
		g := must(t, s, lockmgr.NoWait, file("d/f"))
		release(t, s, g...)
		return lockmgr.FencingToken(g[0].Token, 0)
	}
	before := visit(former)
	release(t, other, must(t, other, lockmgr.NoWait, tree("d"))...)
	between := visit(former)
	freeze(t, old)
	_, s := adopt(t, etcd.name, former)
	if s.Undisturbed(file("d/f"), before, between) {
		t.Error("a directory that was locked between two grants of the former process is unknown")
	}
	if first := visit(s); !s.Undisturbed(file("d/f"), first, visit(s)) {
		t.Error("disturbed between two grants of its own")
	}
}

// A record that is not on the session's lease says nothing of the lease: it may have ended.
func TestRecordWithoutItsLeaseIsNotAdopted(t *testing.T) {
	b, etcd := newVolume(t, dial(t))
	former := open(t, b)
	record := etcd.admin("session/" + former.ID())
	other, err := etcd.Grant(t.Context(), 3600)
	if err != nil {
		t.Fatal(err)
	}
	for _, lease := range []clientv3.LeaseID{other.ID, clientv3.NoLease} {
		put(t, etcd, record, lease)
		_, err := newBackend(t, dial(t), etcd.name).AdoptSession(within(t, patience), lockmgr.SessionInfo{}, former.ID(), former.TTL(), nil)
		if !errors.Is(err, lockmgr.ErrSessionLost) {
			t.Errorf("on lease %x: %v", lease, err)
		}
	}
}

// A request that its session's former process has left in line, and that ends before the new one has
// asked for it, leaves nothing.
func TestPlaceOfAFormerRequestIsGivenUp(t *testing.T) {
	old, etcd := newVolume(t, dial(t))
	former, other := open(t, old), open(t, newBackend(t, dial(t), etcd.name))
	held := acquire(t, other, shared(lockmgr.NoWait, file("f")))
	ctx, handOn := context.WithCancelCause(within(t, patience))
	req := request(lockmgr.Queue, file("f"))
	req.Waits = func() { handOn(lockmgr.ErrHandOn) }
	if _, err := former.Acquire(ctx, req); !errors.Is(err, lockmgr.ErrStands) {
		t.Fatal(err)
	}
	freeze(t, old)
	b, s := adopt(t, etcd.name, former)
	thaw, err := b.Freeze(within(t, patience)) // so that it is not asked for
	if err != nil {
		t.Fatal(err)
	}
	defer thaw()
	req.Waits, req.Again = nil, true
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Acquire(over, req)
	var left *lockmgr.LeftoverError
	if !errors.Is(err, lockmgr.ErrUnavailable) || !errors.As(err, &left) {
		t.Fatal(err)
	}
	thaw()
	<-left.Gone
	if list := entries(t, b); len(list) != 1 || list[0].Grant() != held[0] {
		t.Errorf("left: %v", list)
	}
}

// A request that is handed on before it stands in line does not say that it does.
func TestHandedOnBeforeItStands(t *testing.T) {
	client, g := gated(t)
	b, etcd := newVolume(t, client)
	s, other := open(t, b), open(t, newBackend(t, dial(t), etcd.name))
	delegate(t, other, "d")
	g.shut()
	before := g.arrived.Load()
	ctx, handOn := context.WithCancelCause(within(t, patience))
	answer := start(ctx, s, request(lockmgr.Queue, file("d/f")))
	eventually(t, "it is under way", func() bool { return g.arrived.Load() > before })
	handOn(lockmgr.ErrHandOn)
	g.unshut()
	if a := await(t, answer); a.Err == nil || errors.Is(a.Err, lockmgr.ErrStands) {
		t.Errorf("got %+v", a)
	}
}
