package renew_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/renew"
)

var errTrouble = errors.New("connection refused")

func TestHeldWhileRenewalsAreAnswered(t *testing.T) {
	run(t, func(b *bench) {
		for d := time.Second; d <= 10*time.Minute; d += time.Second {
			b.stateAt(d, renew.Held)
		}
		if renewals, verifies := b.lease.counts(); renewals != 200 || verifies != 0 {
			t.Errorf("%d renewals and %d verifies in 10 min, want 200 and none", renewals, verifies)
		}
	}, answer(500*time.Millisecond, nil))
}

// A service that extends the lease the moment it is asked, and whose answer
// takes a second, lets others write 15 s after it was asked.
func TestDeadlineCountsFromWhenTheRenewalWasSent(t *testing.T) {
	run(t, func(b *bench) {
		sent := interval
		b.validAt(sent+term-1, true)
		b.stateAt(sent+term, renew.Suspended)
	}, answer(time.Second, nil), answer(0, errTrouble))
}

func TestFirstDeadlineCountsFromWhenTheGrantWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := newClock()
		sentAt := clock.Now()
		b := &bench{t: t, clock: clock, lease: newScript(clock, answer(0, errTrouble)), start: time.Now()}
		b.at(4 * time.Second) // the grant takes its time
		var err error
		if b.Session, err = renew.Start(renew.Config{TTL: ttl, Clock: clock, Logger: discard}, b.lease, sentAt); err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		b.validAt(term-1, true)
		b.stateAt(term, renew.Suspended)
	})
}

func TestGrantAnsweredPastItsDeadlineStartsSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := newClock()
		sentAt := clock.Now()
		clock.thaw(term)
		lease := newScript(clock, answer(0, nil))
		s, err := renew.Start(renew.Config{TTL: ttl, Clock: clock, Logger: discard}, lease, sentAt)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if s.Valid() {
			t.Error("Valid() past the deadline of the grant")
		}
		if err := s.Await(t.Context()); err != nil {
			t.Errorf("Await() = %v after a renewal that was answered", err)
		}
		if _, verifies := lease.counts(); verifies != 1 {
			t.Errorf("%d verifies, want 1", verifies)
		}
	})
}

// With the default timings, and with the tightest that are accepted.
func TestOneLostAnswerDoesNotSuspend(t *testing.T) {
	configs := map[string]renew.Config{
		"defaults": {TTL: ttl},
		"tightest": {TTL: ttl, Interval: 6 * time.Second, Attempt: 2*time.Second - 1},
	}
	for name, cfg := range configs {
		t.Run(name, func(t *testing.T) {
			slow := answer(time.Second, nil)
			lost := answer(time.Hour, nil)
			runConfig(t, cfg, func(b *bench) {
				for d := time.Second; d <= time.Minute; d += time.Second {
					b.stateAt(d, renew.Held)
				}
			}, slow, lost, slow, lost, slow, slow, lost, slow)
		})
	}
}

// The renewal sent at 3 s is answered at 9 s: late, but its own deadline, 13 s,
// is ahead.
func TestLateAnswerMovesTheDeadlineOnlyAsFarAsItsOwn(t *testing.T) {
	run(t, func(b *bench) {
		b.stateAt(interval+term-1, renew.Held)
		b.stateAt(interval+term, renew.Suspended)
	}, deaf(6*time.Second, nil), answer(0, errTrouble))
}

// The renewal sent at 10 s, when the suspension began, is answered at 20.5 s, when
// its own deadline has passed.
func TestAnswerPastItsOwnDeadlineDoesNotResume(t *testing.T) {
	run(t, func(b *bench) {
		b.at(term - 1)
		b.lease.become(deaf(term+500*time.Millisecond, nil), answer(time.Hour, nil))
		b.stateAt(term+ttl-1, renew.Suspended)
		if _, verifies := b.lease.counts(); verifies != 0 {
			t.Errorf("verified %d times on an answer that does not count", verifies)
		}
		b.stateAt(term+ttl, renew.Lost)
	}, answer(0, errTrouble))
}

// Retries come a quarter of an attempt apart, however fast they fail.
func TestFailedRenewalIsRepeatedSoon(t *testing.T) {
	run(t, func(b *bench) {
		b.at(interval + attempt - 1)
		if renewals, _ := b.lease.counts(); renewals != 4 {
			t.Errorf("%d renewals within an attempt's time of the first failure, want 4", renewals)
		}
	}, answer(0, errTrouble))
}

// A Renew that ignores its context keeps the renewer busy.
func TestStuckRenewalCannotHideExpiry(t *testing.T) {
	run(t, func(b *bench) {
		b.stateAt(term-1, renew.Held)
		b.stateAt(term, renew.Suspended)
		b.at(term + ttl - 1)
		select {
		case <-b.Lost():
			t.Error("Lost before SuspendWait was over")
		default:
		}
		b.at(term + ttl)
		select {
		case <-b.Lost():
		default:
			t.Error("not Lost after SuspendWait")
		}
		if err := b.Cause(); !errors.Is(err, renew.ErrUnanswered) {
			t.Errorf("Cause() = %v, want ErrUnanswered", err)
		}
	}, deaf(24*time.Hour, nil))
}

// The process was stopped for an hour; the first thing to run is a writer. The
// service is asked once more, for it knows better than the clock why it is over.
func TestThawedProcessIsNotValid(t *testing.T) {
	run(t, func(b *bench) {
		b.validAt(time.Second, true)
		b.clock.thaw(time.Hour)
		if b.Valid() {
			t.Error("Valid() right after the thaw")
		}
		if got := b.State(); got != renew.Suspended {
			t.Errorf("State() = %v right after the thaw, want suspended", got)
		}
		if err := b.Await(b.t.Context()); !errors.Is(err, renew.ErrGone) {
			t.Errorf("Await() = %v, want ErrGone", err)
		}
	}, answer(0, renew.ErrGone))
}

// The answer to a renewal arrived while the process was stopped, and is read
// before anything noticed the time.
func TestThawedAnswerDoesNotResume(t *testing.T) {
	run(t, func(b *bench) {
		b.at(interval + time.Second) // sent at 3 s, to be answered at 4.5 s
		b.clock.thaw(term - 1500*time.Millisecond)
		b.at(interval + 1600*time.Millisecond)
		if b.Valid() {
			t.Error("an answer past its own deadline made the session Held")
		}
	}, answer(1500*time.Millisecond, nil), answer(time.Hour, nil))
}
