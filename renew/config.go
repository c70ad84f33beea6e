package renew

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lockfs/lockfs/internal/boottime"
)

// What a write may take after its check. Margin must cover the sum, and the clocks' rate error
// over one TTL, so with Margin = TTL/3 a TTL must be 3 s or more:
//
//	Margin ≥ WriteInFlight + CheckToIssue + TTL/ClockRate
const (
	// WriteInFlight (W) is how long an issued write may take to reach the volume: microseconds on
	// a local disk, retransmissions included on a network. Raise Margin for slower volumes.
	WriteInFlight = 750 * time.Millisecond

	// CheckToIssue (D) is how long a thread may stand between check and system call: preempted, in
	// a garbage collection, or out of CPU quota for two of the kernel's 100 ms periods.
	CheckToIssue = 200 * time.Millisecond

	// ClockRate: in a time t, two clocks drift apart by at most t/ClockRate. NTP slews each by 500
	// ppm.
	ClockRate = 1000

	// MinAttempt is the shortest Attempt: a service on a slow disk needs as long to answer, and
	// retries, a quarter of it apart, must not flood a starting one.
	MinAttempt = 100 * time.Millisecond

	// MinTTL is the shortest TTL that the defaults of the other fields allow.
	MinTTL = 3 * time.Second
)

// Config says how a Session keeps its lease.
type Config struct {
	// TTL is how long the lease lives after the service last extended it: the granted TTL, if that
	// is shorter. Whole seconds, because lock services round. Required.
	TTL time.Duration

	// Margin is how long before the end of the lease the last write is issued. Zero: TTL/3.
	Margin time.Duration

	// Interval is the time between renewals that succeed. Zero: TTL/5, which with the other
	// defaults leaves three full attempts before the deadline.
	Interval time.Duration

	// Attempt bounds one renewal, and one Verify. A failed renewal is repeated a quarter of it
	// after it was sent. Zero: TTL/8.
	Attempt time.Duration

	// SuspendWait is how long a session, with its writers, waits as Suspended before it is Lost.
	// Zero: TTL, enough for a lock service to elect a leader or restart.
	SuspendWait time.Duration

	// Clock judges deadlines. nil: boottime.System.
	Clock boottime.Clock

	// Logger gets each change of state. nil: slog.Default().
	Logger *slog.Logger

	// OnChange, if not nil, is called for each change of state, and with state Held and a cause
	// for the first failed or overdue renewal: dirty data should go to the volume now. Held
	// without a cause ends a suspension. Calls come in order, from their own goroutine, and may
	// lag behind State. They must not call Close, which waits for them.
	OnChange func(state State, cause error)

	// OnRenewal, if not nil, is called after each attempt to renew. The next attempt waits for it,
	// so it must return at once.
	OnRenewal func(took time.Duration, err error)
}

// Validate refuses unsafe timings with the violated inequality and what to change. Errors:
// ErrTimings.
func (c Config) Validate() error {
	return c.withDefaults().validate()
}

func (c Config) withDefaults() Config {
	setDefault(&c.Margin, c.TTL/3)
	setDefault(&c.Interval, c.TTL/5)
	setDefault(&c.Attempt, c.TTL/8)
	setDefault(&c.SuspendWait, c.TTL)
	if c.Clock == nil {
		c.Clock = boottime.System{}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}

func (c Config) validate() error {
	if c.TTL <= 0 || c.TTL%time.Second != 0 {
		return fmt.Errorf("%w: TTL %v: want whole seconds, more than none, as lock services count them", ErrTimings, c.TTL)
	}
	var errs []error
	refuse := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrTimings}, args...)...))
	}
	if need := WriteInFlight + CheckToIssue + c.TTL/ClockRate; c.Margin < need {
		refuse("Margin %v < write in flight %v + check to issue %v + TTL/%d %v = %v: "+
			"a write could land after the lease ended; raise Margin, or TTL",
			c.Margin, WriteInFlight, CheckToIssue, ClockRate, c.TTL/ClockRate, need)
	}
	if need, have := c.Interval+2*c.Attempt, c.TTL-c.Margin; need > have {
		refuse("Interval %v + 2 × Attempt %v = %v > TTL %v − Margin %v = %v: "+
			"one failed renewal would suspend all writes; lower Interval, Attempt or Margin, or raise TTL",
			c.Interval, c.Attempt, need, c.TTL, c.Margin, have)
	}
	if c.Attempt < MinAttempt {
		refuse("Attempt %v < %v: no time for an answer; raise Attempt, or TTL", c.Attempt, MinAttempt)
	}
	if c.Interval < c.Attempt {
		refuse("Interval %v < Attempt %v: the next renewal would be due before the last one is given up; raise Interval, or lower Attempt",
			c.Interval, c.Attempt)
	}
	if c.SuspendWait < 0 {
		refuse("SuspendWait %v < 0: want none (0 is TTL) or a positive time", c.SuspendWait)
	}
	return errors.Join(errs...)
}
