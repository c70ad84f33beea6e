package renew

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lockfs/lockfs/internal/boottime"
)

// What a write may take after its check. Margin must cover the sum, and the
// clocks' rate error over one TTL:
//
//	Margin ≥ WriteInFlight + CheckToIssue + TTL/ClockRate
//
// With Margin = TTL/3 that is a TTL of 3 s or more.
const (
	// WriteInFlight (W) is how long an issued write may take to reach the
	// volume. A local disk's page cache takes microseconds; the rest is for a
	// network volume's retransmission. Raise Margin for a volume that needs more.
	WriteInFlight = 750 * time.Millisecond

	// CheckToIssue (D) is how long a thread may stand between the check and
	// the system call: preempted, in a garbage collection, or out of CPU quota
	// for two of the kernel's 100 ms periods.
	CheckToIssue = 200 * time.Millisecond

	// ClockRate: over a time t, our clock and the service's drift apart by at
	// most t/ClockRate. NTP slews either by at most 500 ppm.
	ClockRate = 1000

	// MinAttempt is the shortest Attempt: a lock service that writes to a slow
	// disk needs as long to answer, and attempts must not flood one that is
	// coming up (failed ones are a quarter of this apart).
	MinAttempt = 100 * time.Millisecond

	// MinTTL is the shortest TTL that the defaults of the other fields allow.
	MinTTL = 3 * time.Second
)

// Config says how a Session keeps its lease.
type Config struct {
	// TTL is how long the lease lives after the service last extended it: what
	// the service granted, if that is less than what was asked. Whole seconds,
	// because lock services round: a lease that is shorter than we believe is
	// one that others get while we write. Required.
	TTL time.Duration

	// Margin is how long before the lease may end the last write is issued, see
	// WriteInFlight. Zero: TTL/3.
	Margin time.Duration

	// Interval is the time from one renewal to the next, while they succeed.
	// Zero: TTL/5, which with the other defaults leaves room for three full
	// attempts before the deadline.
	Interval time.Duration

	// Attempt bounds one renewal, and one Verify. A failed renewal is repeated
	// after a quarter of it, counted from when it was sent. Zero: TTL/8.
	Attempt time.Duration

	// SuspendWait is how long a session stays Suspended, and so how long
	// writers wait, before it is Lost. Zero: TTL, time enough for a lock
	// service to elect a leader or to restart.
	SuspendWait time.Duration

	// Clock is what deadlines are judged by. nil: boottime.System.
	Clock boottime.Clock

	// Logger gets each change of state. nil: slog.Default().
	Logger *slog.Logger

	// OnChange, if not nil, is called for each change of state, and for the
	// first renewal that fails or is overdue while Held: then state is Held
	// and cause is not nil, and dirty data should go to the volume while it
	// may. Held with a nil cause is the end of a suspension.
	//
	// Calls come one at a time, in order, from their own goroutine. They may lag behind
	// State. A slow call delays only the calls after it. No call may use Close, which waits
	// for the last of them.
	OnChange func(state State, cause error)

	// OnRenewal, if not nil, is called after each attempt to renew, with its duration and its
	// error. The next attempt waits for it, so it must return at once.
	OnRenewal func(took time.Duration, err error)
}

// Validate refuses timings that do not add up, with an error that wraps
// ErrTimings and gives the inequality, its numbers and what to change. Zero
// values stand for their defaults.
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
