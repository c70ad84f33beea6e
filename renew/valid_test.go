package renew

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/lockfs/lockfs/internal/boottime"
)

// answering is a lease whose renewals always succeed.
type answering struct{}

func (answering) Renew(context.Context) error  { return nil }
func (answering) Verify(context.Context) error { return nil }
func (answering) Done() <-chan struct{}        { return nil }

func startReal(tb testing.TB) *Session {
	cfg := Config{TTL: 15 * time.Second, Logger: slog.New(slog.DiscardHandler)}
	s, err := Start(cfg, answering{}, boottime.System{}.Now())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

// Renewals are counted and the session ends at the same time: whichever comes
// last, once lose has returned the session is never valid again.
func TestNoRenewalOutlivesALoss(t *testing.T) {
	for range 500 {
		s := startReal(t)
		var renewers sync.WaitGroup
		for range 4 {
			renewers.Go(func() {
				for {
					if _, err := s.count(s.cfg.Clock.Now(), true); errors.Is(err, ErrGone) {
						return
					}
				}
			})
		}
		s.lose(ErrGone)
		if s.Valid() {
			t.Fatal("Valid() after the loss")
		}
		renewers.Wait()
		if s.Valid() {
			t.Fatal("a renewal counted after the loss")
		}
	}
}

func TestDeadlineNeverMovesBack(t *testing.T) {
	s := startReal(t)
	before := s.deadline.Load()
	if _, err := s.count(s.cfg.Clock.Now().Add(-time.Second), false); err != nil {
		t.Fatal(err)
	}
	if after := s.deadline.Load(); after < before {
		t.Errorf("an older renewal moved the deadline back by %v", time.Duration(before-after))
	}
}

func TestValidDoesNotAllocate(t *testing.T) {
	s := startReal(t)
	if n := testing.AllocsPerRun(1000, func() { s.Valid() }); n != 0 {
		t.Errorf("Valid() allocates %v times", n)
	}
	if n := testing.AllocsPerRun(1000, func() { _ = s.Await(context.Background()) }); n != 0 {
		t.Errorf("Await() allocates %v times while valid", n)
	}
}

func BenchmarkValid(b *testing.B) {
	s := startReal(b)
	for b.Loop() {
		if !s.Valid() {
			b.Fatal("not valid")
		}
	}
}

// BenchmarkValidParallel shows that writers do not hold up each other.
func BenchmarkValidParallel(b *testing.B) {
	s := startReal(b)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if !s.Valid() {
				b.Error("not valid")
				return
			}
		}
	})
}

// BenchmarkClock is the part of BenchmarkValid that the kernel takes.
func BenchmarkClock(b *testing.B) {
	var clock boottime.Clock = boottime.System{}
	for b.Loop() {
		clock.Now()
	}
}
