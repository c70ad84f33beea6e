package etcdlock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
)

// countingWatcher counts the events of a file's entries that arrive.
type countingWatcher struct {
	clientv3.Watcher
	path   string
	events atomic.Int64
}

func (w *countingWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	in, out := w.Watcher.Watch(ctx, key, opts...), make(chan clientv3.WatchResponse)
	go func() {
		defer close(out)
		for resp := range in {
			if strings.Contains(key, w.path) {
				w.events.Add(int64(len(resp.Events)))
			}
			select {
			case out <- resp:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

// In a long line an entry that goes wakes a few, and everybody gets the lock in
// turn, whoever leaves the line before.
func TestLongLine(t *testing.T) {
	const waiters = 30
	client := dial(t)
	watcher := &countingWatcher{Watcher: client.Watcher, path: "/f//"}
	client.Watcher = watcher
	b, etcd := newVolume(t, client)
	s := open(t, b)

	type waiter struct {
		got    <-chan lockmgrtest.Answer
		cancel context.CancelFunc
		entry  string
	}
	held := must(t, s, lockmgr.Queue, file("f"))
	var line []waiter
	for i := range waiters {
		ctx, cancel := context.WithCancel(within(t, patience))
		defer cancel()
		req := request(lockmgr.Queue, file("f"))
		line = append(line, waiter{start(ctx, s, req), cancel, etcd.file("f") + req.Holder.AcquisitionID.String()})
		eventually(t, "it is in line", func() bool { return len(entries(t, b)) == i+2 })
	}
	leave := func(i int) {
		line[i].cancel()
		a := await(t, line[i].got)
		var contended *lockmgr.ContendedError
		if !errors.As(a.Err, &contended) || !errors.Is(a.Err, context.Canceled) {
			t.Errorf("who left got %v", a.Err)
		}
		line[i].got = nil
	}
	remove := func(i int) {
		if _, err := etcd.Delete(t.Context(), line[i].entry); err != nil {
			t.Fatal(err)
		}
		if a := await(t, line[i].got); !errors.Is(a.Err, lockmgr.ErrLockLost) {
			t.Errorf("who was removed got %v", a.Err)
		}
		line[i].got = nil
	}
	for _, i := range []int{20, 3, 19, 18, 0} {
		leave(i)
	}
	remove(25)
	for i, w := range line {
		if w.got == nil {
			continue
		}
		for _, later := range line[i:] {
			if len(later.got) > 0 {
				t.Fatalf("somebody behind %d has the lock while it is held", i)
			}
		}
		release(t, s, held...)
		a := await(t, w.got)
		if a.Err != nil {
			t.Fatal(a.Err)
		}
		held = a.Grants
	}
	release(t, s, held...)
	// All that each sees is of those next ahead, of its landmarks and its own.
	if n := watcher.events.Load(); n > waiters*8 {
		t.Errorf("%d waiters were told of %d events", waiters, n)
	}
}
