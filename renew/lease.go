package renew

import (
	"context"
	"errors"
)

// Lease is what the lock service grants and Session keeps alive. Its methods
// return soon after ctx ends; Session.Close waits for them.
type Lease interface {
	// Renew asks the service once to extend the lease by its TTL. nil means
	// that the service did, at some time after Renew was called. ErrGone means
	// that the lease is no more; any other error says nothing.
	Renew(ctx context.Context) error

	// Verify asks whether what was acquired under the lease still stands. It
	// is called after a suspension, when the lease itself was just renewed.
	// ErrGone means that something was lost; any other error says nothing.
	Verify(ctx context.Context) error

	// Done is closed when the service reports the end of the lease by itself.
	// A nil channel is one that never does.
	Done() <-chan struct{}
}

var (
	// ErrGone: the lock service says that the lease, or what it held, is no more.
	ErrGone = errors.New("lease gone")

	// ErrUnanswered: no renewal was answered in time.
	ErrUnanswered = errors.New("no renewal was answered in time")

	// ErrClosed: the session was closed by its user.
	ErrClosed = errors.New("session closed")

	// ErrTimings: a Config whose timings do not add up.
	ErrTimings = errors.New("unsafe lease timings")
)
