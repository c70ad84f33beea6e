package renew

import (
	"context"
	"errors"
)

// Lease is what the lock service grants. Its methods return soon after ctx ends.
type Lease interface {
	// Renew asks once to extend the lease by its TTL. nil: the service did, after Renew was
	// called. ErrGone: the lease is gone. Any other error proves nothing.
	Renew(ctx context.Context) error

	// Verify asks, after a suspension and a renewal, whether what was acquired still stands.
	// ErrGone: something was lost. Any other error proves nothing.
	Verify(ctx context.Context) error

	// Done is closed when the service reports the end of the lease. It may be nil.
	Done() <-chan struct{}
}

var (
	// ErrGone: the lock service says that the lease, or what it held, is gone.
	ErrGone = errors.New("lease gone")

	// ErrUnanswered: no renewal was answered in time.
	ErrUnanswered = errors.New("no renewal was answered in time")

	// ErrClosed: the session was closed by its user.
	ErrClosed = errors.New("session closed")
	// ErrHandedOn: another process keeps the lease alive. It is an ErrClosed.
	ErrHandedOn error = handedOn{}

	// ErrTimings: a Config whose timings do not add up.
	ErrTimings = errors.New("unsafe lease timings")
)

type handedOn struct{}

func (handedOn) Error() string        { return "another process has the session" }
func (handedOn) Is(target error) bool { return target == ErrClosed }
