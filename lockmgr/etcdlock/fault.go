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

// fault maps a request's error to ErrSessionLost or ErrUnavailable, see retry.Failed.
func (b *Backend) fault(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return lockmgr.SessionLost(err)
	case ctx.Err() == nil && errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("%w: %w: %w", lockmgr.ErrUnavailable, errFull, err)
	default:
		return retry.Failed(ctx, err, refused(err) || b.client.Ctx().Err() != nil)
	}
}

// refused reports whether a repeated request would get the same answer, such as permission denied.
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
