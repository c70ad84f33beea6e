package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// deletes tells which keys below some prefixes are deleted after rev.
type deletes struct {
	rev     int64
	only    clientv3.WatchChan // of the one prefix; nil: there are several
	ch      chan deleted       // of several
	cancel  context.CancelFunc
	running sync.WaitGroup
}

type deleted struct {
	keys []string
	err  error // the watch ended
}

// watchDeletes watches each of prefixes from now on. Errors: ErrUnavailable.
// The caller stops what it gets.
func (b *Backend) watchDeletes(ctx context.Context, prefixes ...string) (*deletes, error) {
	// RequireLeader: a member cut off from the others ends the watch.
	watching, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	d := &deletes{ch: make(chan deleted), cancel: cancel}
	for _, p := range prefixes {
		feed, rev, err := b.watch(watching, cancel, p, clientv3.WithFilterPut())
		if err != nil {
			d.stop()
			return nil, b.fault(ctx, err)
		}
		d.rev = max(d.rev, rev)
		if len(prefixes) == 1 { // as most have that wait: they need no goroutine
			d.only = feed
			break
		}
		d.running.Go(func() { d.forward(watching, feed) })
	}
	return d, nil
}

// watch returns once the watch stands, with the store's revision at that time:
// whatever happens later arrives. Watch itself has no deadline for this, so
// cancel is called when it takes too long.
//
// Watches share a stream, and with it the login that the stream was opened with.
// That ends before the stream does; after it etcd takes no new watch on it. So
// one that was refused is asked for on another stream next.
func (b *Backend) watch(ctx context.Context, cancel context.CancelFunc, prefix string, opts ...clientv3.OpOption) (clientv3.WatchChan, int64, error) {
	stream := b.watchStream.Load()
	ctx = metadata.AppendToOutgoingContext(ctx, "lockfs-stream", strconv.FormatInt(stream, 10)) // metadata that differs takes another stream
	late := time.AfterFunc(b.timeout, cancel)
	feed := b.client.Watch(ctx, prefix, append(opts, clientv3.WithPrefix(), clientv3.WithCreatedNotify())...)
	first, ok := <-feed
	if !late.Stop() || !ok {
		return nil, 0, fmt.Errorf("no watch of %q within %v", prefix, b.timeout)
	}
	if err := first.Err(); err != nil {
		b.watchStream.CompareAndSwap(stream, stream+1)
		return nil, 0, err
	}
	return feed, first.Header.Revision, nil
}

func (d *deletes) forward(ctx context.Context, feed clientv3.WatchChan) {
	for {
		resp, ok := <-feed
		m := shown(resp, ok)
		select {
		case d.ch <- m:
		case <-ctx.Done():
			return
		}
		if m.err != nil {
			return
		}
	}
}

// shown is what a watch has shown.
func shown(resp clientv3.WatchResponse, ok bool) (m deleted) {
	if !ok {
		m.err = errors.New("watch closed")
	} else if err := resp.Err(); err != nil {
		m.err = err
	}
	for _, ev := range resp.Events {
		m.keys = append(m.keys, string(ev.Kv.Key))
	}
	return m
}

// refreshInterval is how often a waiter reads, although its watch shows nothing. A member
// that hangs, or waits for its disk, tells a watch nothing. It is avoided once it leaves
// such a read without an answer.
const refreshInterval = 5 * time.Second

// next returns the keys deleted next, or none after a while. Errors:
// ErrUnavailable, when the watch ended or ctx did.
func (d *deletes) next(ctx context.Context, while time.Duration) ([]string, error) {
	quiet := time.NewTimer(while)
	defer quiet.Stop()
	var m deleted
	select {
	case m = <-d.ch:
	case resp, ok := <-d.only:
		m = shown(resp, ok)
	case <-quiet.C:
		return nil, nil
	case <-ctx.Done():
		return nil, retry.Ended(ctx)
	}
	if m.err != nil {
		return nil, fmt.Errorf("%w: watch: %v", lockmgr.ErrUnavailable, m.err)
	}
	return m.keys, nil
}

func (d *deletes) stop() {
	d.cancel()
	d.running.Wait()
}
