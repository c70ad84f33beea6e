package renew_test

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/internal/boottime"
	"github.com/lockfs/lockfs/renew"
)

// The timings of most tests are the defaults of TTL 15 s: Margin 5 s (so writes
// stop 10 s after a renewal was sent), Interval 3 s, Attempt 1.875 s,
// SuspendWait 15 s.
const (
	ttl      = 15 * time.Second
	margin   = ttl / 3
	interval = ttl / 5
	attempt  = ttl / 8
	term     = ttl - margin
)

var discard = slog.New(slog.DiscardHandler)

// bubbleClock is CLOCK_BOOTTIME in a synctest bubble. thaw makes it jump, as it
// does for a process that was stopped: no timer fires, no goroutine runs.
type bubbleClock struct {
	booted time.Time
	frozen atomic.Int64
}

func newClock() *bubbleClock { return &bubbleClock{booted: time.Now().Add(-time.Hour)} }

func (c *bubbleClock) Now() boottime.Instant {
	return boottime.Instant(time.Since(c.booted)) + boottime.Instant(c.frozen.Load())
}

func (c *bubbleClock) thaw(after time.Duration) { c.frozen.Add(int64(after)) }

// call is one of the service's answers, for Renew or Verify.
type call func(ctx context.Context) error

// answer gives err after a delay, unless ctx ends first.
func answer(delay time.Duration, err error) call {
	return func(ctx context.Context) error {
		select {
		case <-time.After(delay):
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// deaf gives err after a delay, whatever becomes of ctx.
func deaf(delay time.Duration, err error) call {
	return func(context.Context) error { return answer(delay, err)(context.Background()) }
}

// script is a Lease that answers its nth renewal by the nth call, and those
// after the last by the last.
type script struct {
	clock *bubbleClock
	done  chan struct{}

	mu       sync.Mutex
	renewals []call
	verifies []call
	sent     []boottime.Instant // of each renewal
	verified int
}

func newScript(clock *bubbleClock, renewals ...call) *script {
	return &script{
		clock: clock, renewals: renewals, verifies: []call{answer(0, nil)},
		done: make(chan struct{}),
	}
}

func next(calls *[]call) call {
	c := (*calls)[0]
	if len(*calls) > 1 {
		*calls = (*calls)[1:]
	}
	return c
}

func (l *script) Renew(ctx context.Context) error {
	l.mu.Lock()
	l.sent = append(l.sent, l.clock.Now())
	c := next(&l.renewals)
	l.mu.Unlock()
	return c(ctx)
}

func (l *script) Verify(ctx context.Context) error {
	l.mu.Lock()
	l.verified++
	c := next(&l.verifies)
	l.mu.Unlock()
	return c(ctx)
}

func (l *script) Done() <-chan struct{} { return l.done }

// become replaces the answers to renewals from now on.
func (l *script) become(renewals ...call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewals = renewals
}

func (l *script) counts() (renewals, verifies int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.sent), l.verified
}

// bench is a session under test with its clock and lease.
type bench struct {
	*renew.Session
	t     *testing.T
	clock *bubbleClock
	lease *script
	start time.Time
}

// run tests a session, with the default timings and a lease that was asked for
// and granted just now, in a bubble.
func run(t *testing.T, test func(b *bench), renewals ...call) {
	t.Helper()
	runConfig(t, renew.Config{TTL: ttl}, test, renewals...)
}

func runConfig(t *testing.T, cfg renew.Config, test func(b *bench), renewals ...call) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		clock := newClock()
		cfg.Clock = clock
		if cfg.Logger == nil {
			cfg.Logger = discard
		}
		b := &bench{t: t, clock: clock, lease: newScript(clock, renewals...), start: time.Now()}
		var err error
		b.Session, err = renew.Start(cfg, b.lease, clock.Now())
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		test(b)
	})
}

// at lets the bubble's time pass until d after the start, and everything
// happen that is due by then.
func (b *bench) at(d time.Duration) {
	<-time.After(d - time.Since(b.start))
	synctest.Wait()
}

// validAt checks Valid at d after the start.
func (b *bench) validAt(d time.Duration, want bool) {
	b.t.Helper()
	b.at(d)
	if got := b.Valid(); got != want {
		b.t.Errorf("%v: Valid() = %v, want %v", d, got, want)
	}
}

// stateAt checks State and Valid at d after the start.
func (b *bench) stateAt(d time.Duration, want renew.State) {
	b.t.Helper()
	b.validAt(d, want == renew.Held)
	if got := b.State(); got != want {
		b.t.Errorf("%v: State() = %v, want %v", d, got, want)
	}
}
