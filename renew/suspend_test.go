package renew_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/renew"
)

func TestSuspendedThenHeldAgain(t *testing.T) {
	run(t, func(b *bench) {
		b.stateAt(term, renew.Suspended)
		b.at(18 * time.Second)
		b.lease.become(answer(0, nil))
		b.stateAt(19*time.Second, renew.Held)
		if _, verifies := b.lease.counts(); verifies != 1 {
			t.Errorf("%d verifies, want 1", verifies)
		}
		b.stateAt(time.Minute, renew.Held)
	}, answer(0, errTrouble))
}

// The renewal sent at 9 s is answered at 11 s. Its own deadline is 19 s, but the
// suspension began at 10 s.
func TestRenewalSentBeforeTheSuspensionDoesNotResume(t *testing.T) {
	run(t, func(b *bench) {
		b.stateAt(term, renew.Suspended)
		b.stateAt(12*time.Second, renew.Suspended)
		if _, verifies := b.lease.counts(); verifies != 0 {
			t.Errorf("verified %d times for it", verifies)
		}
		b.stateAt(13*time.Second, renew.Held) // by the next one, sent at 11 s
	}, answer(time.Hour, nil), answer(time.Hour, nil), answer(time.Hour, nil),
		deaf(11*time.Second-(interval+3*attempt), nil), answer(1500*time.Millisecond, nil))
}

// Between the deadline and the moment somebody looks, Held is only what was
// last written down: the answer has to be judged by the clock.
func TestAnswerAfterAnUnnoticedDeadlineDoesNotResumeWithoutVerify(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := newClock()
		var lease *script
		thawing := func(context.Context) error {
			clock.thaw(term - interval) // 10 s after the grant, 7 s after this one was sent
			return nil
		}
		lease = newScript(clock, thawing, answer(0, nil))
		s, err := renew.Start(renew.Config{TTL: ttl, Clock: clock, Logger: discard}, lease, clock.Now())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		<-time.After(interval)
		synctest.Wait()
		renewals, verifies := lease.counts()
		if !s.Valid() || renewals != 2 || verifies != 1 {
			t.Errorf("Valid() = %v after %d renewals and %d verifies, want true, 2, 1", s.Valid(), renewals, verifies)
		}
	})
}

func TestVerifySaysGone(t *testing.T) {
	run(t, func(b *bench) {
		b.lease.verifies = []call{answer(0, fmt.Errorf("entry broken by an operator: %w", renew.ErrGone))}
		b.at(term)
		b.lease.become(answer(0, nil))
		b.stateAt(term+attempt, renew.Lost)
		if err := b.Cause(); !errors.Is(err, renew.ErrGone) {
			t.Errorf("Cause() = %v, want ErrGone", err)
		}
	}, answer(0, errTrouble))
}

func TestVerifyWithoutAnAnswerIsRepeated(t *testing.T) {
	for name, failing := range map[string]call{
		"error": answer(0, errTrouble),
		"hangs": answer(time.Hour, nil),
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(b *bench) {
				b.lease.verifies = []call{failing, answer(0, nil)}
				b.at(term - 1)
				b.lease.become(answer(0, nil))
				b.stateAt(term, renew.Suspended)
				b.at(term + term)
				if !b.Valid() {
					t.Error("not Held after the second Verify")
				}
				if _, verifies := b.lease.counts(); verifies != 2 {
					t.Errorf("%d verifies, want 2", verifies)
				}
			}, answer(0, errTrouble))
		})
	}
}

// The first Verify is answered when the deadline of the renewal before it has
// passed: not for a moment is the session Held by it.
func TestVerifyAnsweredTooLateIsRepeated(t *testing.T) {
	var c changes
	runConfig(t, renew.Config{TTL: ttl, OnChange: c.add}, func(b *bench) {
		b.lease.verifies = []call{deaf(term, nil), answer(time.Second, nil)}
		b.at(term - 1)
		b.lease.become(answer(0, nil))
		b.stateAt(term+term+time.Second, renew.Held)
		c.check(t,
			"3s held trouble=true unanswered=true",
			"10s suspended trouble=true unanswered=true",
			"21s held trouble=false unanswered=false")
	}, answer(0, errTrouble))
}

func TestSuspendWaitRunsOut(t *testing.T) {
	run(t, func(b *bench) {
		b.stateAt(term+ttl-1, renew.Suspended)
		b.stateAt(term+ttl, renew.Lost)
		err := b.Cause()
		for _, want := range []error{renew.ErrUnanswered, errTrouble} {
			if !errors.Is(err, want) {
				t.Errorf("Cause() = %v, want one that wraps %q", err, want)
			}
		}
	}, answer(0, errTrouble))
}

func TestAwait(t *testing.T) {
	t.Run("held", func(t *testing.T) {
		run(t, func(b *bench) {
			cancelled, cancel := context.WithCancel(b.t.Context())
			cancel()
			if err := b.Await(cancelled); err != nil {
				t.Errorf("Await() = %v while Held", err)
			}
		}, answer(0, nil))
	})
	t.Run("until held", func(t *testing.T) {
		run(t, func(b *bench) {
			const writers = 3
			results := make(chan error, writers)
			b.at(term)
			for range writers {
				go func() { results <- b.Await(b.t.Context()) }()
			}
			b.at(term + time.Second)
			if len(results) != 0 {
				t.Fatal("Await returned while Suspended")
			}
			b.lease.become(answer(0, nil))
			b.at(term + 2*time.Second)
			for range writers {
				if err := <-results; err != nil {
					t.Errorf("Await() = %v after the session resumed", err)
				}
			}
		}, answer(0, errTrouble))
	})
	t.Run("until lost", func(t *testing.T) {
		run(t, func(b *bench) {
			b.at(term)
			if err := b.Await(b.t.Context()); !errors.Is(err, renew.ErrUnanswered) {
				t.Errorf("Await() = %v, want ErrUnanswered", err)
			}
			b.stateAt(term+ttl, renew.Lost)
		}, answer(0, errTrouble))
	})
	t.Run("until interrupted", func(t *testing.T) {
		run(t, func(b *bench) {
			b.at(term)
			ctx, cancel := context.WithTimeout(b.t.Context(), time.Second)
			defer cancel()
			if err := b.Await(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Await() = %v, want the context's error", err)
			}
			b.stateAt(term+time.Second, renew.Suspended)
		}, answer(0, errTrouble))
	})
}
