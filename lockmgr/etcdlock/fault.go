package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockfs/lockfs/lockmgr"
)

// errRefused marks a failure that the same request would meet again, such as
// permission denied or a closed client.
var errRefused = errors.New("refused")

// fault returns the lockmgr error of a failed request that was sent under ctx:
// ErrSessionLost, or ErrUnavailable. The latter wraps ctx's error if ctx is
// over, and only then: a deadline of our own is none of the caller's.
func (b *Backend) fault(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return fmt.Errorf("%w: %w", lockmgr.ErrSessionLost, err)
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", lockmgr.ErrUnavailable, ctx.Err())
	case refused(err), b.client.Ctx().Err() != nil:
		return fmt.Errorf("%w: %w: %w", lockmgr.ErrUnavailable, errRefused, err)
	default:
		return fmt.Errorf("%w: %v", lockmgr.ErrUnavailable, err)
	}
}

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
