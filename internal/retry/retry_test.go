package retry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

var errAnother = errors.New("another failure")

func TestDoRepeatsWhatWasNotAnswered(t *testing.T) {
	refused := fmt.Errorf("%w: %w: too large", ErrUnavailable, ErrRefused)
	for name, want := range map[string]error{
		"answered": nil, "refused": refused, "another failure": errAnother,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var r Retrier
				calls := 0
				err := r.Do(t.Context(), func() error {
					if r.Failures() != calls {
						t.Errorf("call %d after %d failures", calls, r.Failures())
					}
					switch calls++; {
					case calls <= 3:
						return fmt.Errorf("%w: no connection", ErrUnavailable)
					case calls == 4:
						return want
					default:
						return nil
					}
				})
				if !errors.Is(err, want) || calls != 4 {
					t.Errorf("Do returned %v after %d calls, want %v after 4", err, calls, want)
				}
				if want == nil && r.Failures() != 0 {
					t.Errorf("%d failures after an answer", r.Failures())
				}
			})
		})
	}
}

// What must not stop goes on after a refusal, and after any other failure.
func TestAlways(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failures := []error{ErrUnavailable, fmt.Errorf("%w: %w", ErrUnavailable, ErrRefused), errAnother, nil}
		var r Retrier
		calls := 0
		r.Always(t.Context(), func() error { calls++; return failures[calls-1] })
		if calls != len(failures) {
			t.Errorf("%d calls", calls)
		}
		ctx, cancel := context.WithCancel(t.Context())
		r.Always(ctx, func() error { cancel(); return ErrUnavailable })
	})
}

// Both are told: that the context is over, and what was wrong until then.
func TestDoEndsWithItsContext(t *testing.T) {
	why := errors.New("no connection")
	for name, fails := range map[string]func(context.Context) error{
		"in a pause": func(context.Context) error { return why },
		"in a request": func(ctx context.Context) error {
			<-ctx.Done()
			return fmt.Errorf("%w: %w", why, ctx.Err())
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), firstPause/4)
				defer cancel()
				var r Retrier
				calls := 0
				err := r.Do(ctx, func() error {
					calls++
					return fmt.Errorf("%w: %w", ErrUnavailable, fails(ctx))
				})
				want := "lock service unavailable: no connection: context deadline exceeded"
				if calls != 1 || err == nil || err.Error() != want || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrUnavailable) {
					t.Errorf("Do returned %q after %d calls, want %q after 1", err, calls, want)
				}
			})
		})
	}
}

func TestPausesGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Retrier
		pauses := func(n int, first time.Duration) {
			t.Helper()
			for i := range n {
				begun := time.Now()
				if err := r.Pause(t.Context()); err != nil {
					t.Fatal(err)
				}
				mean := min(first<<i, lastPause)
				if d := time.Since(begun); d < mean/2 || d >= mean/2+mean {
					t.Errorf("pause %d took %v, want %v or half of it more or less", i, d, mean)
				}
			}
		}
		pauses(20, firstPause)
		if r.Failures() != 20 {
			t.Errorf("%d failures after 20 pauses", r.Failures())
		}
		r.Answered()
		pauses(1, firstPause)
	})
}

// A deadline of the backend's own is none of its caller's.
func TestFailed(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for name, test := range map[string]struct {
		ctx              context.Context
		refused          bool
		canceled, passes bool
	}{
		"no answer":                   {t.Context(), false, false, true},
		"refused":                     {t.Context(), true, false, false},
		"the caller has gone":         {over, false, true, true},
		"refused when nobody listens": {over, true, true, true},
	} {
		err := Failed(test.ctx, context.DeadlineExceeded, test.refused)
		if !errors.Is(err, ErrUnavailable) || errors.Is(err, context.Canceled) != test.canceled || passing(err) != test.passes {
			t.Errorf("%s: %v", name, err)
		}
		if !test.refused && errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNotable(t *testing.T) {
	var r Retrier
	var notable []int
	for n := 1; n < 20; n++ {
		if r.Notable() {
			notable = append(notable, n)
		}
		r.Delay()
	}
	if want := []int{1, 2, 3, 5, 9, 17}; !slices.Equal(notable, want) {
		t.Errorf("notable were %v, want %v", notable, want)
	}
}
