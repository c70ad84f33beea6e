package kubelease

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/internal/retry"
)

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
		return fmt.Errorf("%w: %w: %w", lockmgr.ErrUnavailable, retry.ErrRefused, err)
	default:
		return fmt.Errorf("%w: %v", lockmgr.ErrUnavailable, err)
	}
}

// refused reports whether err is an answer that the same request would get again,
// such as that a Lease is too large. Not so what is forbidden, for it may be allowed
// a moment later: so answers an API server that has just started and does not know
// its roles yet.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsMethodNotSupported(err) || apierrors.IsRequestEntityTooLargeError(err)
}
