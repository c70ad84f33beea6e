package renew_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/internal/boottime"
	"github.com/lockfs/lockfs/internal/longtest"
	"github.com/lockfs/lockfs/renew"
)

// service is a lock service with one lease: it keeps to the letter of what
// Lease promises and is otherwise as unhelpful as chance will have it. Requests
// and answers are delayed or dropped, calls outlive their contexts, the lease
// expires, and the process that asks is stopped at any time.
type service struct {
	clock *bubbleClock

	mu      sync.Mutex
	rand    *rand.Rand
	bad     bool // in an outage most messages are lost
	expires boottime.Instant
}

// draw returns a delay, whether the message is lost on its way, and whether the
// caller overlooks that its context has ended.
func (s *service) draw() (delay time.Duration, lost, deaf bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delay = time.Duration(s.rand.ExpFloat64() * float64(200*time.Millisecond))
	if s.rand.IntN(20) == 0 {
		delay = time.Duration(s.rand.Int64N(int64(ttl)))
	}
	return delay, s.rand.IntN(20) == 0 || s.bad && s.rand.IntN(8) != 0, s.rand.IntN(10) == 0
}

func (s *service) Renew(ctx context.Context) error {
	delay, lost, deaf := s.draw()
	if deaf {
		ctx = context.WithoutCancel(ctx)
	}
	if lost {
		delay = time.Minute
	}
	if err := answer(delay, nil)(ctx); err != nil || lost {
		return fmt.Errorf("the request was lost: %w", context.DeadlineExceeded)
	}
	s.mu.Lock()
	now := s.clock.Now()
	gone := now >= s.expires
	if !gone {
		s.expires = now.Add(ttl)
	}
	s.mu.Unlock()
	delay, lost, _ = s.draw()
	if lost {
		return fmt.Errorf("the answer was lost: %w", context.DeadlineExceeded)
	}
	if gone {
		return answer(delay, renew.ErrGone)(ctx)
	}
	return answer(delay, nil)(ctx)
}

func (s *service) Verify(ctx context.Context) error {
	delay, lost, _ := s.draw()
	if lost {
		return context.DeadlineExceeded
	}
	return answer(delay, nil)(ctx)
}

func (s *service) Done() <-chan struct{} { return nil }

// TestHistories runs sessions against a hostile service and looks at each every
// few milliseconds: if it says that a write may be issued, the lease must live
// for another Margin, or the write might land in somebody else's time.
func TestHistories(t *testing.T) {
	var seeds, resumed, lost int
	for seed := range longtest.Seeds(t, 150, 3000) {
		seeds++
		synctest.Test(t, func(t *testing.T) {
			r, l := history(t, seed)
			resumed += r
			lost += l
		})
	}
	t.Logf("%d histories: %d suspensions survived, %d sessions lost", seeds, resumed, lost)
	if resumed == 0 || lost == 0 {
		t.Error("the histories do not reach every state")
	}
}

func history(t *testing.T, seed uint64) (resumed, lost int) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	clock := newClock()
	sentAt := clock.Now()
	svc := &service{clock: clock, rand: rand.New(rand.NewPCG(seed, 2)), expires: sentAt.Add(ttl)}
	s, err := renew.Start(renew.Config{TTL: ttl, Clock: clock, Logger: discard}, svc, sentAt)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	was := renew.Held
	for range 20000 {
		<-time.After(time.Duration(rnd.Int64N(int64(20 * time.Millisecond))))
		if rnd.IntN(4000) == 0 {
			clock.thaw(time.Duration(rnd.Int64N(int64(ttl))))
		}
		svc.mu.Lock()
		if rnd.IntN(800) == 0 {
			svc.bad = !svc.bad
		}
		left := svc.expires.Sub(clock.Now())
		svc.mu.Unlock()
		if s.Valid() {
			if left < margin {
				t.Fatalf("seed %d: Valid() with %v of the lease left, want Margin %v", seed, left, margin)
			}
			if was == renew.Lost {
				t.Fatalf("seed %d: Valid() after Lost", seed)
			}
		}
		is := s.State()
		if was == renew.Suspended && is == renew.Held {
			resumed++
		}
		if was == renew.Lost && is != renew.Lost {
			t.Fatalf("seed %d: %v after Lost", seed, is)
		}
		if was = is; is == renew.Lost {
			return resumed, 1
		}
	}
	return resumed, 0
}
