package fs

import "context"

// housekeeping is what a view does beside its requests.
type housekeeping struct {
	do      func(ctx context.Context)
	going   chan struct{} // full while it goes on
	cancel  context.CancelFunc
	stopped chan struct{} // closed when it has ended
}

func newHousekeeping(do func(ctx context.Context)) housekeeping {
	return housekeeping{do: do, going: make(chan struct{}, 1)}
}

func (k *housekeeping) begin() {
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	k.cancel, k.stopped = cancel, stopped
	go func() {
		defer close(stopped)
		k.do(ctx)
	}()
	k.going <- struct{}{}
}

// beginNothing is begin for a view that cannot go on: end then has nothing to wait for.
func (k *housekeeping) beginNothing() { k.going <- struct{}{} }

// end ends the housekeeping, and waits for it until ctx ends: it may be flushing a file of a volume
// that does not answer. After an error, the housekeeping begins again when it has ended.
func (k *housekeeping) end(ctx context.Context) error {
	select {
	case <-k.going:
	case <-ctx.Done():
		return ctx.Err()
	}
	k.cancel()
	select {
	case <-k.stopped:
		return nil
	case <-ctx.Done():
		go func() {
			<-k.stopped
			k.begin()
		}()
		return ctx.Err()
	}
}
