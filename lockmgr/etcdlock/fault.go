package etcdlock

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// fault returns the lockmgr error of a failed request that was sent under ctx:
// ErrSessionLost, or ErrUnavailable. The latter wraps ctx's error if ctx is
// over, and only then: a deadline of our own is none of the caller's.
func (b *Backend) fault(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return lockmgr.SessionLost(err)
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", lockmgr.ErrUnavailable, ctx.Err())
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("%w: %w: %w", lockmgr.ErrUnavailable, errFull, err)
	case refused(err), b.client.Ctx().Err() != nil:
		return fmt.Errorf("%w: %w: %w", lockmgr.ErrUnavailable, retry.ErrRefused, err)
	default:
		return fmt.Errorf("%w: %v", lockmgr.ErrUnavailable, err)
	}
}

// refused reports whether err is an answer that the same request would get again,
// such as permission denied.
func refused(err error) bool {
	code := status.Code(err)
	var answer rpctypes.EtcdError
	if errors.As(err, &answer) {
		code = answer.Code()
	}
	switch code {
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
		return true
	default:
		return false
	}
}
