package lifetime

import (
	"context"
	"fmt"
	"sync"
)

// Outgoing counts the requests under way that can change something in the lock service, and can
// stop them. The zero value lets them pass.
type Outgoing struct {
	mu       sync.Mutex
	underWay int           // GUARDED_BY(mu)
	thawed   chan struct{} // GUARDED_BY(mu); closed when requests go on; nil: they do
	none     chan struct{} // GUARDED_BY(mu); closed when underWay becomes 0; nil: nobody waits
}

// Enter begins a request, which ends with Leave. While requests are stopped, it waits. Errors:
// ctx's, and nothing has begun.
func (o *Outgoing) Enter(ctx context.Context) error {
	for {
		o.mu.Lock()
		thawed := o.thawed
		if thawed == nil {
			o.underWay++
			o.mu.Unlock()
			return nil
		}
		o.mu.Unlock()
		select {
		case <-thawed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Leave ends a request, with or without an answer.
func (o *Outgoing) Leave() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.underWay--; o.underWay == 0 && o.none != nil {
		close(o.none)
		o.none = nil
	}
}

// Freeze stops requests until thaw, and returns when none is under way. Errors: ctx's, and requests
// go on.
func (o *Outgoing) Freeze(ctx context.Context) (thaw func(), err error) {
	o.mu.Lock()
	thawed, none := make(chan struct{}), make(chan struct{})
	o.thawed = thawed
	if o.underWay == 0 {
		close(none)
	} else {
		o.none = none
	}
	o.mu.Unlock()
	thaw = sync.OnceFunc(func() {
		o.mu.Lock()
		o.thawed, o.none = nil, nil
		o.mu.Unlock()
		close(thawed)
	})
	select {
	case <-none:
		return thaw, nil
	case <-ctx.Done():
		thaw()
		return nil, fmt.Errorf("requests to the lock service are under way: %w", ctx.Err())
	}
}
