package renew_test

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/internal/boottime"
	"github.com/lockfs/lockfs/internal/longtest"
	"github.com/lockfs/lockfs/renew"
)

// sleeper is the clock of a machine that sleeps whenever chance will have it: at
// any reading of its clock, and so between any two of them. The lock service
// does not sleep.
type sleeper struct {
	*bubbleClock

	mu    sync.Mutex
	rand  *rand.Rand
	awake bool
}

func (c *sleeper) Now() boottime.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.awake {
		switch n := c.rand.IntN(3000); {
		case n == 0:
			c.thaw(time.Hour)
		case n < 10:
			c.thaw(time.Duration(c.rand.Int64N(int64(2 * ttl))))
		case n < 40:
			c.thaw(time.Duration(c.rand.Int64N(int64(interval))))
		}
	}
	return c.bubbleClock.Now()
}

// keptAwake runs f while the machine does not sleep, and no time passes.
func (c *sleeper) keptAwake(f func(now boottime.Instant)) {
	c.setAwake(true)
	f(c.Now())
	c.setAwake(false)
}

func (c *sleeper) setAwake(awake bool) {
	c.mu.Lock()
	c.awake = awake
	c.mu.Unlock()
}

// timings draws some that are accepted.
func timings(rnd *rand.Rand) renew.Config {
	for {
		cfg := renew.Config{
			TTL:         ttl,
			Margin:      time.Duration(rnd.Int64N(int64(ttl))),
			Interval:    time.Duration(rnd.Int64N(int64(ttl / 2))),
			Attempt:     time.Duration(rnd.Int64N(int64(ttl / 4))),
			SuspendWait: time.Duration(rnd.Int64N(int64(2 * ttl))),
		}
		if cfg.Validate() == nil {
			return cfg
		}
	}
}

// revocable is a service whose lease an operator may revoke, and that counts the
// answers to Verify.
type revocable struct {
	*service
	done     chan struct{}
	verified atomic.Int64
}

func (s *revocable) Done() <-chan struct{} { return s.done }

func (s *revocable) Verify(ctx context.Context) error {
	err := s.service.Verify(ctx)
	if err == nil {
		s.verified.Add(1)
	}
	return err
}

func (s *revocable) revoke() {
	s.mu.Lock()
	s.expires = math.MinInt64
	s.mu.Unlock()
	close(s.done)
}

// TestSleepAtAnyInstant is TestHistories on a machine that sleeps between any
// two instructions of the session: between the clock's reading and the request,
// between the request and its answer, between the answer and its being counted,
// while it verifies. Whatever the timings, a write is never allowed unless the
// lease lives for another Margin, nor after a suspension without a Verify, nor
// after a loss.
func TestSleepAtAnyInstant(t *testing.T) {
	var sum tally
	seeds := 0
	for seed := range longtest.Seeds(t, 200, 4000) {
		seeds++
		synctest.Test(t, func(t *testing.T) { sum.sleepyHistory(t, seed) })
	}
	t.Logf("%d histories: %+v", seeds, sum)
	if sum.resumed == 0 || sum.lost == 0 {
		t.Error("the histories do not reach every state")
	}
}

// tally is what histories have seen.
type tally struct{ allowed, resumed, lost, revoked int }

func (sum *tally) sleepyHistory(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 3))
	clock := &sleeper{bubbleClock: newClock(), rand: rand.New(rand.NewPCG(seed, 4))}
	cfg := timings(rnd)
	cfg.Clock, cfg.Logger = clock, discard
	sentAt := clock.bubbleClock.Now()
	svc := &revocable{done: make(chan struct{}), service: &service{
		clock: clock.bubbleClock, rand: rand.New(rand.NewPCG(seed, 5)), expires: sentAt.Add(ttl),
	}}
	s, err := renew.Start(cfg, svc, sentAt)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var revoked, suspended, over bool
	var verified int64 // when a write was last allowed
	look := func(now boottime.Instant) {
		if !s.Valid() {
			suspended = true
			return
		}
		svc.mu.Lock()
		left := svc.expires.Sub(now)
		svc.mu.Unlock()
		switch {
		case over:
			t.Errorf("seed %d: a write is allowed after the loss", seed)
		case left < cfg.Margin && !revoked:
			t.Errorf("seed %d, %+v: a write is allowed with %v of the lease left", seed, cfg, left)
		case suspended && svc.verified.Load() == verified:
			t.Errorf("seed %d: a write is allowed after a suspension without a Verify", seed)
		}
		sum.allowed++
		if suspended {
			sum.resumed++
		}
		suspended, verified = false, svc.verified.Load()
	}
	for range 4000 {
		<-time.After(time.Duration(rnd.Int64N(int64(50 * time.Millisecond))))
		svc.mu.Lock()
		if rnd.IntN(200) == 0 {
			svc.bad = !svc.bad
		}
		svc.mu.Unlock()
		if !revoked && rnd.IntN(4000) == 0 {
			svc.revoke()
			revoked = true
			sum.revoked++
		}
		if rnd.IntN(4) == 0 {
			synctest.Wait() // else the writer may be the first to look
		}
		clock.keptAwake(look)
		if over || t.Failed() {
			break
		}
		select {
		case <-s.Lost():
			over = true // one more look
			sum.lost++
		default:
		}
	}
}
