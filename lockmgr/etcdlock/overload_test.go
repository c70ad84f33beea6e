package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/internal/longtest"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
)

// overloaded is a lock service that carries out one Txn after the other, in order of
// arrival, also those whose callers have gone: like an etcd with more proposals
// than its disk can take. Until it gets round to them, it is held.
type overloaded struct {
	held    sync.Mutex
	asked   atomic.Int64 // how many Txns, but for probes and what a watch takes
	served  atomic.Int64 // of those, and of probes
	probes  atomic.Int64 // of those served
	again   atomic.Int64 // Txns that put what an earlier one will put, that is still to be carried out
	arrived chan *served

	mu      sync.Mutex
	pending map[string]int // GUARDED_BY(mu); how many Txns put an entry and are still to be carried out
}

type served struct {
	*txn
	resp *clientv3.TxnResponse
	err  error
	done chan struct{}
}

func (r *served) probes() bool { return len(r.then) == 1 && r.then[0].IsCountOnly() }

// rewatches reports whether it is of a mount that begins its watch again: on a slow machine
// many do.
func (r *served) rewatches() bool {
	return len(r.then) == 3 && r.then[0].IsGet() && strings.HasSuffix(string(r.then[0].KeyBytes()), "/break/")
}

// entries are those that it may put.
func (r *served) entries() map[string]bool {
	keys := make(map[string]bool)
	var add func(ops []clientv3.Op)
	add = func(ops []clientv3.Op) {
		for _, op := range ops {
			switch {
			case op.IsTxn():
				_, then, or := op.Txn()
				add(then)
				add(or)
			case op.IsPut() && !strings.Contains(string(op.KeyBytes()), "/session/"):
				keys[string(op.KeyBytes())] = true
			}
		}
	}
	add(r.then)
	return keys
}

func newOverloaded(t *testing.T, client *clientv3.Client) *overloaded {
	s := &overloaded{arrived: make(chan *served, 1<<16), pending: make(map[string]int)}
	onTxn(client, s.commit)
	var running sync.WaitGroup
	running.Go(func() {
		for r := range s.arrived {
			s.held.Lock()
			r.ctx = context.WithoutCancel(r.ctx)
			r.resp, r.err = r.send()
			s.held.Unlock()
			s.note(r, -1)
			if !r.rewatches() {
				s.served.Add(1)
			}
			if r.probes() {
				s.probes.Add(1)
			}
			close(r.done)
		}
	})
	t.Cleanup(func() {
		close(s.arrived)
		running.Wait()
	})
	return s
}

// note counts what r puts as pending, or no longer.
func (s *overloaded) note(r *served, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range r.entries() {
		if s.pending[key] > 0 && n > 0 {
			s.again.Add(1)
		}
		s.pending[key] += n
	}
}

func (s *overloaded) commit(t *txn) (*clientv3.TxnResponse, error) {
	ctx := t.ctx
	r := &served{txn: t, done: make(chan struct{})}
	if !r.probes() && !r.rewatches() {
		s.asked.Add(1)
	}
	s.note(r, 1)
	s.arrived <- r
	select {
	case <-r.done:
		return r.resp, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// falls holds the service until n Txns have arrived and their callers have waited
// for longer than they think right.
func (s *overloaded) falls(t *testing.T, n int) (recovers func()) {
	t.Helper()
	s.held.Lock()
	return sync.OnceFunc(func() {
		t.Helper()
		defer s.held.Unlock()
		eventually(t, "all have asked", func() bool { return len(s.arrived) >= n-1 })
		<-time.After(5 * doubts / 2)
	})
}

// notAskedAgain checks that nobody has asked for what the service had still to carry out.
func (s *overloaded) notAskedAgain(t *testing.T) {
	t.Helper()
	if n := s.again.Load(); n > 0 {
		t.Errorf("%d Txns asked for what was still to be carried out", n)
	}
}

// doubts is when a mount doubts that it will be answered.
const doubts = time.Second

// impatient is a mount of its own.
func impatient(t *testing.T, client *clientv3.Client, name string) *etcdlock.Backend {
	t.Helper()
	b, err := etcdlock.New(etcdlock.Config{
		Client: client, Namespace: "test", Name: name, RequestTimeout: doubts,
		JanitorInterval: time.Hour, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// releaseHasty releases a lock of an impatient mount: again, if the answer was late.
func releaseHasty(t *testing.T, s lockmgr.Session, g lockmgr.Grant) {
	t.Helper()
	began := time.Now()
	err := s.Release(within(t, patience), g)
	if errors.Is(err, lockmgr.ErrUnavailable) && time.Since(began) >= doubts {
		eventually(t, "it is released", func() bool {
			err = s.Release(within(t, patience), g)
			return err == nil || errors.Is(err, lockmgr.ErrNotHeld)
		})
	} else if err != nil {
		t.Fatal(err)
	}
}

// many opens a session on each of n mounts, and returns when the service is idle.
func many(t *testing.T, client *clientv3.Client, service *overloaded, name string, n int) []lockmgr.Session {
	t.Helper()
	watcher := watchFlawed(client)
	sessions := make([]lockmgr.Session, n)
	var opening sync.WaitGroup
	for i := range sessions {
		opening.Go(func() { sessions[i] = open(t, hasty{impatient(t, client, name), doubts}) })
	}
	opening.Wait()
	idle, last := 0, int64(0)
	eventually(t, "all mounts have their watches, and have nothing to ask", func() bool {
		now := service.served.Load()
		if idle++; now != last || watcher.stood.Load() < int64(3*n) {
			idle, last = 0, now
		}
		return idle > 20
	})
	return sessions
}

// scale is how many mounts a test has: more of them when there is time.
func scale(t *testing.T, mounts, long int) int {
	t.Helper()
	if longtest.For(t) > 0 {
		return long
	}
	return mounts
}

// 300 mounts, for the suite's sake fewer, ask for as many free files of a service
// that needs twice the request time-out to get round to them. Nobody asks again for what it will
// carry out. Once, 183 had their files after five seconds and then nobody: what was asked again
// kept the service from what was asked before.
func TestOverloadEnds(t *testing.T) {
	mounts := scale(t, 120, 300)
	client := dial(t)
	service := newOverloaded(t, client)
	sessions := many(t, client, service, newName(), mounts)
	recovers := service.falls(t, mounts)
	var answers []<-chan lockmgrtest.Answer
	for i, s := range sessions {
		wait := []lockmgr.Wait{lockmgr.Retry, lockmgr.Queue}[i%2]
		answers = append(answers, start(within(t, patience), s, request(wait, file(fmt.Sprint("f", i)))))
	}
	recovers()
	for i, ch := range answers {
		if a := await(t, ch); a.Err != nil {
			t.Fatalf("mount %d: %v", i, a.Err)
		}
	}
	service.notAskedAgain(t)
}

// A thousand sessions, or fewer, ask for one file of such a
// service: each gets its place in line, none an error, and the waiters ask it
// for little.
func TestOverloadedLine(t *testing.T) {
	n := scale(t, 100, 1000)
	client := dial(t)
	service := newOverloaded(t, client)
	name := newName()
	b := newBackend(t, dial(t), name)
	sessions := many(t, client, service, name, n)
	before := service.asked.Load()
	recovers := service.falls(t, n)
	ctx, cancel := context.WithCancel(t.Context())
	var answers []<-chan lockmgrtest.Answer
	for _, s := range sessions {
		answers = append(answers, start(ctx, s, request(lockmgr.Queue, file("f"))))
	}
	recovers()
	lockmgrtest.Eventually(t, "all stand in line", func() bool {
		return len(entries(t, b)) == n
	})
	if asked := service.asked.Load() - before; asked > int64(3*n) {
		t.Errorf("it was asked for %d Txns until %d stood in line", asked, n)
	}
	service.notAskedAgain(t)
	held := 0
	cancel()
	for _, ch := range answers {
		a := await(t, ch)
		switch {
		case a.Err == nil:
			held++
		case !errors.Is(a.Err, context.Canceled):
			t.Errorf("who was in line got %v", a.Err)
		}
	}
	if held != 1 {
		t.Errorf("%d have the lock", held)
	}
	eventually(t, "only the holder's entry stays", func() bool { return len(entries(t, b)) == 1 })
}

// For a caller that has gone nothing is repeated. One Txn takes away what its request may have
// put, and none does if it put nothing.
func TestGoneFromAnOverload(t *testing.T) {
	const mounts = 60
	client := dial(t)
	service := newOverloaded(t, client)
	name := newName()
	b := newBackend(t, dial(t), name)
	sessions := many(t, client, service, name, mounts)
	other := open(t, b)
	held := must(t, other, lockmgr.NoWait, file("held"))
	before, askedBefore, probesBefore := service.served.Load(), service.asked.Load(), service.probes.Load()
	served := func() (txns, probes int64) {
		probes = service.probes.Load() - probesBefore
		return service.served.Load() - before - probes, probes
	}
	recovers := service.falls(t, 1)
	var answers []<-chan lockmgrtest.Answer
	for i, s := range sessions {
		key := file("held")
		if i%2 == 0 {
			key = file(fmt.Sprint("f", i))
		}
		answers = append(answers, start(t.Context(), s, request(lockmgr.NoWait, key)))
	}
	for _, ch := range answers {
		if a := await(t, ch); !errors.Is(a.Err, lockmgr.ErrUnavailable) || errors.Is(a.Err, context.DeadlineExceeded) {
			t.Errorf("who was not answered in time got %v", a.Err)
		}
	}
	asked := service.asked.Load() - askedBefore // a slow machine may not have sent all in time
	recovers()
	eventually(t, "all is carried out", func() bool { txns, _ := served(); return txns >= asked })
	eventually(t, "what nobody waits for is gone", func() bool { return len(entries(t, b)) == 1 })
	for _, s := range sessions { // which waits for what it has under way
		if err := s.Close(within(t, patience)); err != nil {
			t.Error(err)
		}
	}
	// A Txn each, and a deletion for half of them.
	if n, probes := served(); n > mounts*3/2 || probes > 4*mounts {
		t.Errorf("it served %d Txns and %d probes for %d callers who had gone", n, probes, mounts)
	}
	release(t, other, held...)
}

// lossy never answers the Txns that it is told to lose, and carries them out or not.
type lossy struct {
	lose, carry atomic.Bool
	lost        atomic.Int64
}

func (l *lossy) commit(t *txn) (*clientv3.TxnResponse, error) {
	if len(t.then) > 0 && !t.then[0].IsGet() && l.lose.CompareAndSwap(true, false) {
		if l.carry.Load() {
			if _, err := t.send(); err != nil {
				return nil, err
			}
		}
		l.lost.Add(1)
		<-t.ctx.Done()
		return nil, t.ctx.Err()
	}
	return t.send()
}

// A Txn that is lost, while the service answers others, is asked again: a leader
// that died has taken it along.
func TestLostForGood(t *testing.T) {
	t.Parallel()
	for _, carried := range []bool{true, false} {
		t.Run(fmt.Sprintf("carried out %v", carried), func(t *testing.T) {
			client := dial(t)
			l := &lossy{}
			l.carry.Store(carried)
			onTxn(client, l.commit)
			name := newName()
			s := open(t, hasty{impatient(t, client, name), doubts})
			for i, wait := range []lockmgr.Wait{lockmgr.Queue, lockmgr.Retry} {
				l.lose.Store(true)
				g := must(t, s, wait, file("f"))
				if l.lost.Load() != int64(i+1) {
					t.Fatal("nothing was lost")
				}
				releaseHasty(t, s, g[0])
			}
			if list := entries(t, newBackend(t, dial(t), name)); len(list) != 0 {
				t.Errorf("left: %v", list)
			}
		})
	}
}
