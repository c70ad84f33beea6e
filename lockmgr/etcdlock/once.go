package etcdlock

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// once keeps clientv3 from sending a write again by itself. clientv3 does that when the answer is
// Canceled or DeadlineExceeded and ctx lives: it takes the answer for its own time limit. But a
// member that stops answers so too, and may have carried the write out. The answer to a second copy
// then hides what the first one did. After Unavailable, clientv3 repeats nothing but reads, and
// revokes.
func once(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	if code := status.Code(err); ctx.Err() == nil && (code == codes.Canceled || code == codes.DeadlineExceeded) {
		return status.Errorf(codes.Unavailable, "etcd answered: %v", err)
	}
	return err
}
