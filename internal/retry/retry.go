// Package retry repeats requests that the lock service did not answer: those of lockmgr
// and of its backends. Waiting for a holder is never done so.
package retry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// ErrUnavailable: the lock service gave no answer. lockmgr exports it.
var ErrUnavailable = errors.New("lock service unavailable")

// ErrRefused marks an ErrUnavailable that a repeated request would get again.
var ErrRefused = errors.New("refused")

// Failed returns the ErrUnavailable of a request that failed with err, with ErrRefused if refused.
// It wraps ctx's error only if ctx is over: a backend's own deadline is not the caller's.
func Failed(ctx context.Context, err error, refused bool) error {
	switch {
	case ctx.Err() != nil:
		return Ended(ctx)
	case refused:
		return Refused(err)
	default:
		return fmt.Errorf("%w: %v", ErrUnavailable, err)
	}
}

// Ended returns the ErrUnavailable of a request, or a wait for one, that ctx has ended.
func Ended(ctx context.Context) error { return fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err()) }

// Refused returns the ErrUnavailable of a request that is not worth repeating because of err.
func Refused(err error) error { return fmt.Errorf("%w: %w: %w", ErrUnavailable, ErrRefused, err) }

func passing(err error) bool {
	return errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrRefused)
}

const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
)

// Retrier repeats requests without an answer. The zero value is ready.
type Retrier struct {
	failures int
}

// Failures returns the number of failures in a row.
func (r *Retrier) Failures() int { return r.failures }

// Notable reports whether to log one more failure in a row: the 1st, 2nd, 3rd, 5th, 9th …
func (r *Retrier) Notable() bool { return r.failures&(r.failures-1) == 0 }

// Answered notes an answer of the service.
func (r *Retrier) Answered() { r.failures = 0 }

// Do calls op until it succeeds, ctx is over, or op fails for good: not with ErrUnavailable, or
// with ErrRefused. It returns op's last error, wrapping ctx's if that ended it.
func (r *Retrier) Do(ctx context.Context, op func() error) error {
	for {
		err := op()
		if err == nil {
			r.Answered()
			return nil
		}
		over := ctx.Err()
		if !passing(err) || over != nil && errors.Is(err, over) {
			return err
		}
		if perr := r.Pause(ctx); perr != nil {
			return fmt.Errorf("%w: %w", err, perr)
		}
	}
}

// Always calls op until it succeeds or ctx is over: a watch must survive an operator's mistake.
func (r *Retrier) Always(ctx context.Context, op func() error) {
	for op() != nil && r.Pause(ctx) == nil {
	}
}

// Delay counts a failure, and returns a pause that grows, with jitter so that mounts do not return
// together.
func (r *Retrier) Delay() time.Duration {
	d := min(firstPause<<min(r.failures, 10), lastPause)
	r.failures++
	return d/2 + rand.N(d)
}

// Pause waits for the Delay. It returns ctx's error when that ends first.
func (r *Retrier) Pause(ctx context.Context) error {
	t := time.NewTimer(r.Delay())
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
