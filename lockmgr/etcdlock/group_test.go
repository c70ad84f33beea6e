package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
)

// gate keeps Txns from being sent while it is shut, and may refuse groups.
type gate struct {
	arrived atomic.Int64
	refuse  atomic.Bool
	groups  atomic.Int64

	inner func(*txn) (*clientv3.TxnResponse, error) // carries out what is let through; nil: etcd does

	mu   sync.Mutex
	open chan struct{} // closed while it is open; else each value lets one through
}

func gated(t *testing.T) (*clientv3.Client, *gate) {
	client := dial(t)
	return client, newGate(client)
}

func newGate(client *clientv3.Client) *gate {
	g := &gate{open: make(chan struct{})}
	close(g.open)
	onTxn(client, g.commit)
	return g
}

func (g *gate) shut() { g.mu.Lock(); g.open = make(chan struct{}); g.mu.Unlock() }
func (g *gate) unshut() {
	g.mu.Lock()
	close(g.open)
	g.mu.Unlock()
}

// commit stops what acquires or releases. What merely asks, as a look whether
// etcd answers, is neither stopped nor counted.
func (g *gate) commit(t *txn) (*clientv3.TxnResponse, error) {
	if !changes(t) {
		return t.send()
	}
	g.arrived.Add(1)
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	select {
	case <-open:
	case <-t.ctx.Done(): // the test has ended with the gate shut
		return nil, t.ctx.Err()
	}
	if len(t.then) > 0 && t.then[0].IsTxn() {
		g.groups.Add(1)
		if g.refuse.Load() {
			return nil, rpctypes.ErrTooManyOps
		}
	}
	if g.inner != nil {
		return g.inner(t)
	}
	return t.send()
}

// together starts an acquisition a key while another is under way, so that they
// make one group. It returns when all stand ready; send lets them go.
func together(t *testing.T, g *gate, s lockmgr.Session, reqs ...lockmgr.AcquireRequest) (send func(), answers []<-chan lockmgrtest.Answer) {
	t.Helper()
	g.shut()
	before := g.arrived.Load()
	first := start(within(t, patience), s, request(lockmgr.NoWait, file(uuid.NewString())))
	eventually(t, "the first is under way", func() bool { return g.arrived.Load() > before })
	for i, req := range reqs {
		answers = append(answers, start(within(t, patience), s, req))
		eventually(t, "it waits", func() bool { return etcdlock.Waiting(s) == i+1 })
	}
	return func() {
		t.Helper()
		g.unshut()
		if a := await(t, first); a.Err != nil {
			t.Fatal(a.Err)
		}
	}, answers
}

// What arrives while a Txn is under way goes into the next, and gets one create
// revision; each has its own answer.
func TestGroup(t *testing.T) {
	client, g := gated(t)
	b, _ := newVolume(t, client)
	s := open(t, b)
	held := must(t, s, lockmgr.NoWait, file("held"))[0]
	free := must(t, s, lockmgr.NoWait, file("freed"))[0]
	read := acquire(t, s, shared(lockmgr.NoWait, file("read")))[0]
	send, answers := together(t, g, s,
		request(lockmgr.NoWait, file("a"), file("b")),
		request(lockmgr.Queue, file("c")),
		request(lockmgr.Retry, tree("d")),
		shared(lockmgr.Queue, file("read")),
		shared(lockmgr.NoWait, file("read")),
		request(lockmgr.NoWait, file("held")),
		request(lockmgr.Queue, file("held")), // kept apart
	)
	released := make(chan error, 1)
	go func() { released <- s.Release(within(t, patience), free) }()
	eventually(t, "the release waits", func() bool { return etcdlock.Waiting(s) == 8 })
	send()
	var grants []lockmgr.Grant
	for i, ch := range answers[:5] {
		a := await(t, ch)
		if a.Err != nil {
			t.Fatalf("%d: %v", i, a.Err)
		}
		grants = append(grants, a.Grants...)
		if a.Grants[0].Token != grants[0].Token {
			t.Errorf("%d has token %d, the first %d: they were not put together", i, a.Grants[0].Token, grants[0].Token)
		}
	}
	var contended *lockmgr.ContendedError
	if a := await(t, answers[5]); !errors.As(a.Err, &contended) || contended.Holder.AcquisitionID != held.AcquisitionID {
		t.Errorf("a key that is held: %v", a.Err)
	}
	if err := <-released; err != nil {
		t.Errorf("the release: %v", err)
	}
	eventually(t, "the last stands in line", func() bool { return len(entries(t, b)) == 10 })
	if n := g.groups.Load(); n != 1 {
		t.Errorf("%d groups", n)
	}
	release(t, s, held)
	last := await(t, answers[6])
	if last.Err != nil {
		t.Fatal(last.Err)
	}
	release(t, s, append(grants, read, last.Grants[0])...)
}

// A request that gives up, sent or not, does not take the others of its group along, and leaves
// nothing behind.
func TestGroupWithoutOne(t *testing.T) {
	client, g := gated(t)
	b, etcd := newVolume(t, client)
	s := open(t, b)
	send, answers := together(t, g, s, request(lockmgr.Queue, file("a")), request(lockmgr.Queue, file("b")))

	unsent, cancel := context.WithCancel(t.Context())
	leaver := start(unsent, s, request(lockmgr.Queue, file("c")))
	eventually(t, "it waits", func() bool { return etcdlock.Waiting(s) == 3 })
	cancel()
	if a := await(t, leaver); !errors.Is(a.Err, context.Canceled) || !errors.Is(a.Err, lockmgr.ErrUnavailable) {
		t.Fatalf("who left before: %v", a.Err)
	}
	if n := etcdlock.Waiting(s); n != 2 {
		t.Fatalf("%d wait", n)
	}

	sent, cancel := context.WithCancel(t.Context())
	leaver = start(sent, s, request(lockmgr.Queue, file("d")))
	eventually(t, "it waits", func() bool { return etcdlock.Waiting(s) == 3 })
	send()
	for _, ch := range answers {
		if a := await(t, ch); a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	a := await(t, leaver)
	cancel()
	if a.Err != nil {
		t.Fatal(a.Err)
	}
	resp, err := etcd.Get(t.Context(), etcd.admin("session/"+s.ID()))
	if err != nil || resp.Kvs[0].Version != 1 {
		t.Errorf("the fence was raised for what was never sent: %v, %v", resp, err)
	}

	// One of a group that is under way.
	send, answers = together(t, g, s, request(lockmgr.Queue, file("e")))
	sent, cancel = context.WithCancel(t.Context())
	leaver = start(sent, s, request(lockmgr.Queue, file("f")))
	eventually(t, "it waits", func() bool { return etcdlock.Waiting(s) == 2 })
	before := g.arrived.Load()
	g.open <- struct{}{}
	eventually(t, "the group is under way", func() bool { return g.arrived.Load() > before })
	cancel()
	if a := await(t, leaver); !errors.Is(a.Err, context.Canceled) {
		t.Fatalf("who left meanwhile: %v", a.Err)
	}
	send()
	if a := await(t, answers[0]); a.Err != nil {
		t.Fatal(a.Err)
	}
	eventually(t, "what it put is gone", func() bool { return len(entries(t, b)) == 6 }) // a, b, d, e, and two that went before
	if resp, err = etcd.Get(t.Context(), etcd.admin("session/"+s.ID())); err != nil || resp.Kvs[0].Version != 1 {
		t.Errorf("the fence was raised for what was answered: %v, %v", resp, err)
	}
}

// A group that etcd refuses is sent one by one.
func TestGroupRefused(t *testing.T) {
	client, g := gated(t)
	b, _ := newVolume(t, client)
	s := open(t, b)
	g.refuse.Store(true)
	send, answers := together(t, g, s, request(lockmgr.NoWait, file("a")), request(lockmgr.Queue, file("b")), request(lockmgr.NoWait, file("c")))
	send()
	for _, ch := range answers {
		if a := await(t, ch); a.Err != nil {
			t.Error(a.Err)
		}
	}
	if g.groups.Load() != 1 {
		t.Errorf("%d groups", g.groups.Load())
	}
}

// An error of a group's Txn is ambiguous for each of its members. A member that waits asks
// again and keeps what was put. One that only tries leaves nothing behind.
func TestGroupUnanswered(t *testing.T) {
	for name, f := range map[string]flaw{"lost reply": lostReply, "late request": lateRequest} {
		t.Run(name, func(t *testing.T) {
			client, kv := flawed(t)
			g := newGate(client)
			b, etcd := newVolume(t, client)
			s := open(t, b)
			send, answers := together(t, g, s,
				request(lockmgr.NoWait, file("a")), request(lockmgr.Queue, file("b")), request(lockmgr.Retry, file("c")), shared(lockmgr.Queue, file("d")))
			kv.next(0, f) // the first, and the group
			send()
			if a := await(t, answers[0]); !errors.Is(a.Err, lockmgr.ErrUnavailable) {
				t.Errorf("who does not wait: %v", a.Err)
			}
			tokens := map[int64]bool{}
			for _, ch := range answers[1:] {
				a := await(t, ch)
				if a.Err != nil {
					t.Fatal(a.Err)
				}
				tokens[a.Grants[0].Token] = true
			}
			if f == lostReply && len(tokens) != 1 {
				t.Errorf("tokens %v, want that of the lost reply", tokens)
			}
			fenced(t, etcd, s)
			if f == lateRequest {
				kv.deliver(t)
			}
			eventually(t, "nothing but what was granted stands", func() bool { return len(entries(t, b)) == 4 })
		})
	}
}

// Acquire and release of paths of their own, by callers of one session, whose
// Txns go in groups, and by as many with a session each, whose Txns go by
// themselves: the cycles per second of both, and their ratio.
func BenchmarkCycle(b *testing.B) {
	endpoint, stop, err := startEtcd(true)
	if err != nil {
		b.Fatal(err)
	}
	defer stop()
	client, err := etcdlock.Dial(b.Context(), etcdlock.DialConfig{Endpoints: []string{endpoint}})
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	for _, callers := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			grouped, alone := openMany(b, client, 1), openMany(b, client, callers)
			b.ResetTimer()
			const turns = 20 // in turn, for the machine is not the same all the time
			n := max(1, b.N/turns)
			var together, apart time.Duration
			for range turns {
				together += cycles(b, grouped, callers, n)
				apart += cycles(b, alone, callers, n)
			}
			b.ReportMetric(float64(n*turns)/together.Seconds(), "grouped/s")
			b.ReportMetric(float64(n*turns)/apart.Seconds(), "alone/s")
			b.ReportMetric(apart.Seconds()/together.Seconds(), "ratio")
		})
	}
}

// openMany opens sessions of a new volume.
func openMany(b *testing.B, client *clientv3.Client, n int) []lockmgr.Session {
	backend, err := etcdlock.New(etcdlock.Config{Client: client, Namespace: "bench", Name: newName()})
	if err != nil {
		b.Fatal(err)
	}
	var sessions []lockmgr.Session
	for range n {
		s, err := backend.OpenSession(b.Context(), lockmgr.SessionInfo{}, time.Minute)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { s.Close(context.Background()) })
		sessions = append(sessions, s)
	}
	return sessions
}

// cycles returns how long n cycles took.
func cycles(b *testing.B, sessions []lockmgr.Session, callers, n int) time.Duration {
	var left atomic.Int64
	left.Store(int64(n))
	begin := time.Now()
	var wg sync.WaitGroup
	for i := range callers {
		s, path := sessions[i%len(sessions)], fmt.Sprintf("d/f%d", i)
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				grants, err := s.Acquire(b.Context(), request(lockmgr.Queue, file(path)))
				if err == nil {
					err = s.Release(b.Context(), grants[0])
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(begin)
}
