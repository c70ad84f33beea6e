package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// mountWatch hears of breaks, recalls for this mount, and the end of its sessions. It is one
// goroutine and three watches for any number of locks, and runs while there are listeners.
type mountWatch struct {
	b    *Backend
	come chan struct{} // receives when a listener has come; capacity 1

	mu        sync.Mutex             // held while listeners are called
	listeners map[*listener]struct{} // GUARDED_BY(mu)
	end       func()                 // GUARDED_BY(mu); nil: not running
}

// listener hears of the keys below prefix. Its functions return soon.
type listener struct {
	prefix string
	found  func(*mvccpb.KeyValue) // a key stands or is put, perhaps repeated; may be nil
	gone   func()                 // the key prefix itself is gone; may be nil
}

func newMountWatch(b *Backend) *mountWatch {
	return &mountWatch{b: b, come: make(chan struct{}, 1), listeners: make(map[*listener]struct{})}
}

// listen tells l what stands and what changes, until leave. A restarted watch repeats what stands.
func (w *mountWatch) listen(l *listener) (leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listeners[l] = struct{}{}
	if w.end == nil {
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { w.run(ctx) })
		w.end = func() { cancel(); running.Wait() }
	}
	select {
	case w.come <- struct{}{}:
	default:
	}
	return func() { w.leave(l) }
}

func (w *mountWatch) leave(l *listener) {
	w.mu.Lock()
	delete(w.listeners, l)
	end := w.end
	if len(w.listeners) > 0 || end == nil {
		w.mu.Unlock()
		return
	}
	w.end = nil
	w.mu.Unlock()
	end()
}

func (w *mountWatch) run(ctx context.Context) {
	var r retry.Retrier
	r.Always(ctx, func() error {
		err := w.follow(ctx, &r)
		if errors.Is(err, retry.ErrRefused) && ctx.Err() == nil && r.Notable() {
			w.b.log.Error("breaks and recalls cannot be watched: until they can, 'lockfs break' needs --force for locks of this mount, and other mounts may wait for a kept lock until it was idle for --keep",
				"error", err, "failures", r.Failures()+1)
		}
		return err
	})
}

// follow tells the listeners what the watches show, until one of the watches ends. A watch that
// hangs shows nothing, so follow also reads the keys now and then. Errors: ErrUnavailable, or
// worse.
func (w *mountWatch) follow(ctx context.Context, r *retry.Retrier) error {
	following, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	feeds, err := w.begin(following, cancel)
	if err != nil {
		return w.b.fault(ctx, err)
	}
	select {
	case <-w.come: // the first read shows the new listener what stands
	default:
	}
	unread := true
	var reading chan error // nil: no read is under way
	late := time.NewTimer(w.b.janitor)
	defer late.Stop()
	for {
		if unread && reading == nil {
			unread, reading = false, make(chan error, 1)
			answer := reading
			running.Go(func() { answer <- w.read(following) })
		}
		var resp clientv3.WatchResponse
		var ok bool
		select {
		case resp, ok = <-feeds[0]:
		case resp, ok = <-feeds[1]:
		case resp, ok = <-feeds[2]:
		case err := <-reading:
			if err != nil {
				return err
			}
			r.Answered()
			reading = nil
			late.Reset(w.b.janitor/2 + rand.N(w.b.janitor))
			continue
		case <-w.come:
			unread = true
			continue
		case <-late.C:
			unread = true
			continue
		}
		if err := resp.Err(); err != nil {
			return w.b.fault(ctx, err)
		}
		if !ok {
			return fmt.Errorf("%w: watch closed", lockmgr.ErrUnavailable)
		}
		for _, ev := range resp.Events {
			w.tell(ev)
		}
	}
}

func (w *mountWatch) begin(ctx context.Context, cancel context.CancelFunc) (feeds [3]clientv3.WatchChan, err error) {
	for i, k := range w.kinds() {
		// RequireLeader: a member cut off from the others ends the watch.
		if feeds[i], _, err = w.b.watch(clientv3.WithRequireLeader(ctx), cancel, k.prefix, k.filter); err != nil {
			return feeds, err
		}
	}
	return feeds, nil
}

// newMount draws the first half of a mount's leases, so the session records have one prefix.
func newMount() clientv3.LeaseID { return clientv3.LeaseID(0x1000_0000+rand.Int64N(0x7000_0000)) << 32 }

func mountOf(lease clientv3.LeaseID) string { return fmt.Sprintf("%08x", lease>>32) }

// kind describes one of the watches.
type kind struct {
	prefix string
	filter clientv3.OpOption   // of the watch
	read   []clientv3.OpOption // of a read beside it
}

func (w *mountWatch) kinds() [3]kind {
	return [...]kind{
		{w.b.keys.broken(""), clientv3.WithFilterDelete(), nil},
		{w.b.keys.recall(mountOf(w.b.leases), ""), clientv3.WithFilterDelete(), nil},
		{w.b.keys.session(mountOf(w.b.leases)), clientv3.WithFilterPut(), []clientv3.OpOption{clientv3.WithKeysOnly()}},
	}
}

func (w *mountWatch) tell(ev *clientv3.Event) {
	key := string(ev.Kv.Key)
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.listeners {
		switch {
		case ev.IsCreate() || ev.IsModify():
			l.find(ev.Kv)
		case key == l.prefix && l.gone != nil:
			l.gone()
		}
	}
}

func (l *listener) find(kv *mvccpb.KeyValue) {
	if l.found != nil && strings.HasPrefix(string(kv.Key), l.prefix) {
		l.found(kv)
	}
}

// A key that read misses is gone only for listeners that came before the read was sent.
func (w *mountWatch) read(ctx context.Context) error {
	w.mu.Lock()
	since := make([]*listener, 0, len(w.listeners))
	for l := range w.listeners {
		since = append(since, l)
	}
	w.mu.Unlock()
	var gets []clientv3.Op
	for _, k := range w.kinds() {
		gets = append(gets, clientv3.OpGet(k.prefix, append(k.read, clientv3.WithPrefix())...))
	}
	resp, err := w.b.txn(ctx, nil, gets, nil)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	stands := make(map[string]bool)
	for _, answer := range resp.Responses {
		for _, kv := range answer.GetResponseRange().Kvs {
			stands[string(kv.Key)] = true
			for l := range w.listeners {
				l.find(kv)
			}
		}
	}
	for _, l := range since {
		if _, stays := w.listeners[l]; stays && l.gone != nil && !stands[l.prefix] {
			l.gone()
		}
	}
	return nil
}
