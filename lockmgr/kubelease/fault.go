package kubelease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/lockfs/lockfs/lockmgr"
)

// errRefused marks a failure that the same request would meet again, such as a
// Lease that is too large.
var errRefused = errors.New("refused")

// errMoved: the Lease is not what the request wanted to replace. The request
// was not carried out, or it was by an attempt that the client repeated.
var errMoved = errors.New("the lease has changed")

// errAbsent: there is no such Lease.
var errAbsent = errors.New("no such lease")

// fault returns the error of a failed request that was sent under ctx: errMoved,
// errAbsent or lockmgr.ErrUnavailable. The last wraps ctx's error if ctx is over,
// and only then: a deadline of our own is none of the caller's.
func fault(ctx context.Context, err error) error {
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return errMoved
	case apierrors.IsNotFound(err):
		return errAbsent
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", lockmgr.ErrUnavailable, ctx.Err())
	case refused(err):
		return fmt.Errorf("%w: %w: %w", lockmgr.ErrUnavailable, errRefused, err)
	default:
		return fmt.Errorf("%w: %v", lockmgr.ErrUnavailable, err)
	}
}

// refused does not count what is forbidden: it may be allowed a moment later. So
// answers an API server that has just started and does not know its roles yet.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsMethodNotSupported(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// passing reports whether a request that failed with err is worth repeating.
func passing(err error) bool {
	return errors.Is(err, lockmgr.ErrUnavailable) && !errors.Is(err, errRefused)
}

const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
)

// retrier repeats what the service did not answer. The zero value is ready.
type retrier struct {
	failures int // in a row
}

// answered notes that the service did answer.
func (r *retrier) answered() { r.failures = 0 }

// do calls op until it succeeds, ctx is over, or op fails for good. It returns
// op's last error, wrapping ctx's if that is what ended it, or nil.
func (r *retrier) do(ctx context.Context, op func() error) error {
	for {
		err := op()
		if err == nil {
			r.answered()
			return nil
		}
		over := ctx.Err()
		if !passing(err) || over != nil && errors.Is(err, over) {
			return err
		}
		if perr := r.pause(ctx); perr != nil {
			return fmt.Errorf("%w: %w", err, perr)
		}
	}
}

// pause waits a little longer after each failure in a row, with jitter so that
// mounts do not come back together. It returns ctx's error when that ends first.
func (r *retrier) pause(ctx context.Context) error {
	d := min(firstPause<<min(r.failures, 10), lastPause)
	r.failures++
	t := time.NewTimer(d/2 + rand.N(d))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
