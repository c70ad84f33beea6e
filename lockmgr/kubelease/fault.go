package kubelease

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// errMoved: the Lease is not the version that the request wanted to replace. The request
// was not carried out, or it was by an earlier attempt of the client's. After a Create there need not
// be a Lease: a ResourceQuota answers Conflict while many are created at once.
var errMoved = errors.New("the lease has changed")

// errAbsent: there is no such Lease.
var errAbsent = errors.New("no such lease")

// errAway marks an ErrUnavailable that says only that the server was not reached, or that it
// asks for fewer requests.
var errAway = errors.New("no answer")

// errBehind marks the error of a watch from a revision that the server no longer knows.
var errBehind = errors.New("the watch is behind")

// fault returns the error of a failed request that was sent under ctx: errMoved,
// errAbsent or lockmgr.ErrUnavailable, see retry.Failed.
func fault(ctx context.Context, err error) error {
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return errMoved
	case apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err): // not a proxy's 404
		return errAbsent
	case ctx.Err() == nil && away(err):
		return fmt.Errorf("%w: %w: %v", lockmgr.ErrUnavailable, errAway, err)
	default:
		return retry.Failed(ctx, err, refused(err))
	}
}

func away(err error) bool {
	return apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
		utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err)
}

// refused reports whether err is an answer that the same request would get again, such as
// that a Lease is too large. Forbidden is not: an API server that has just started says so
// while it does not know its roles yet.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsMethodNotSupported(err) || apierrors.IsRequestEntityTooLargeError(err)
}
