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
)

// deletes tells which keys below some prefixes are deleted after rev.
type deletes struct {
	rev     int64
	only    clientv3.WatchChan // of a single prefix; nil: several
	ch      chan deleted       // of several prefixes
	cancel  context.CancelFunc
	running sync.WaitGroup
}

type deleted struct {
	keys []string
	err  error // the watch ended
}

// watchDeletes watches prefixes from now on, until the caller calls stop. Errors: ErrUnavailable.
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
		if len(prefixes) == 1 { // the usual case, which needs no goroutine
			d.only = feed
			break
		}
		d.running.Go(func() { d.forward(watching, feed) })
	}
	return d, nil
}

// watch returns once the watch stands, with the store's revision; Watch has no timeout for this.
// Watches share a stream and its login. After the login expires, etcd refuses new watches on that
// stream, so after a refusal the next watch uses another. It does so also after a watch that was not
// answered in time: if etcd refuses a watch just when the last other one of its stream ends, the
// client's goroutine for the stream waits for ever, and takes no further watch.
func (b *Backend) watch(ctx context.Context, cancel context.CancelFunc, prefix string, opts ...clientv3.OpOption) (clientv3.WatchChan, int64, error) {
	stream := b.watchStream.Load()
	ctx = metadata.AppendToOutgoingContext(ctx, "lockfs-stream", strconv.FormatInt(stream, 10)) // other metadata, other stream
	another := func() { b.watchStream.CompareAndSwap(stream, stream+1) }
	late := time.AfterFunc(b.timeout, cancel)
	feed := b.client.Watch(ctx, prefix, append(opts, clientv3.WithPrefix(), clientv3.WithCreatedNotify())...)
	first, ok := receive(ctx, feed)
	inTime := late.Stop()
	if !inTime {
		another()
	}
	if !inTime || !ok {
		return nil, 0, fmt.Errorf("no watch of %q within %v", prefix, b.timeout)
	}
	if err := first.Err(); err != nil {
		another()
		return nil, 0, err
	}
	return feed, first.Header.Revision, nil
}

// receive is <-feed for as long as ctx lasts. The client closes a feed when ctx ends, but not if the
// goroutine that would do it waits for ever.
func receive(ctx context.Context, feed clientv3.WatchChan) (resp clientv3.WatchResponse, ok bool) {
	select {
	case resp, ok = <-feed:
	case <-ctx.Done():
	}
	return resp, ok
}

func (d *deletes) forward(ctx context.Context, feed clientv3.WatchChan) {
	for {
		m := shown(receive(ctx, feed))
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

// refreshInterval is how often a waiter reads beside its watch: a member that hangs or waits for
// its disk shows a watch nothing. members then avoids one that leaves the read unanswered.
const refreshInterval = 5 * time.Second

// next returns the keys deleted next, or none after while. Errors: ErrUnavailable.
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
	if m.err != nil { // ctx may have ended it
		return nil, retry.Failed(ctx, fmt.Errorf("watch: %w", m.err), false)
	}
	return m.keys, nil
}

func (d *deletes) stop() {
	d.cancel()
	d.running.Wait()
}
