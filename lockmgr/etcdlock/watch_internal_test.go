package etcdlock

import (
	"context"
	"errors"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

// A wait that its caller ends also ends its watch. Whichever is seen first, the error says that the caller did it: it
// is not a fault of the lock service.
func TestEndedWaitSaysSo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ended := make(chan clientv3.WatchResponse)
	close(ended)
	for range 100 { // select takes either
		_, err := (&deletes{only: ended}).next(ctx, refreshInterval)
		if !errors.Is(err, context.Canceled) || !errors.Is(err, lockmgr.ErrUnavailable) {
			t.Fatalf("got %v, want that of the caller", err)
		}
	}
}
