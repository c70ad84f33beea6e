package kubelease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/internal/lifetime"
)

// All requests but the watch go through the methods of this file. Their errors
// are those of fault.

// leases are the Leases as the locks' requests reach them, within QPS.
func (b *Backend) leases() coordinationclient.LeaseInterface {
	return b.client.locks.Leases(b.space)
}

// urgent reaches them past the limit: for the sessions.
func (b *Backend) urgent() coordinationclient.LeaseInterface {
	return b.client.sessions.Leases(b.space)
}

// bounded is the context of one request.
func (b *Backend) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(b.logged(ctx), b.timeout)
}

// logged has client-go log to the backend's logger.
func (b *Backend) logged(ctx context.Context) context.Context {
	return klog.NewContext(ctx, logr.FromSlogHandler(quiet{b.log.Handler()}))
}

// quiet logs everything as debugging: client-go returns its errors as well, and a cancelled
// request is an error to it.
type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelDebug)
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return q.Handler.Handle(ctx, r)
}

func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }
func (q quiet) WithGroup(name string) slog.Handler       { return quiet{q.Handler.WithGroup(name)} }

// get reads the Lease of that name as it is now; nil if there is none.
func (b *Backend) get(ctx context.Context, name string) (*object, error) {
	return b.getBy(ctx, b.leases(), name)
}

// getUrgent is get for sessions.
func (b *Backend) getUrgent(ctx context.Context, name string) (*object, error) {
	return b.getBy(ctx, b.urgent(), name)
}

func (b *Backend) getBy(ctx context.Context, from coordinationclient.LeaseInterface, name string) (*object, error) {
	bounded, cancel := b.bounded(ctx)
	defer cancel()
	_, era := b.mirror.newest()
	lease, err := from.Get(bounded, name, metav1.GetOptions{})
	if err != nil {
		if err = fault(ctx, err); errors.Is(err, errAbsent) {
			return nil, nil
		}
		return nil, err
	}
	return b.mirror.learn(era, lease)
}

// write puts lease in the place of o, or creates it where o is nil. While the locks are handed on,
// it waits.
func (b *Backend) write(ctx context.Context, to coordinationclient.LeaseInterface, o *object, lease *coordinationv1.Lease) (*object, error) {
	if b.outgoing.Enter(ctx) != nil {
		return nil, retry.Ended(ctx)
	}
	defer b.outgoing.Leave()
	sent := b.unanswered.begin(o, lease)
	written, err := b.send(ctx, to, o, lease)
	b.unanswered.end(sent, err)
	return written, err
}

// send is write at any time.
//
// The UID keeps the server from creating a Lease that is not there any more.
func (b *Backend) send(ctx context.Context, to coordinationclient.LeaseInterface, o *object, lease *coordinationv1.Lease) (*object, error) {
	bounded, cancel := b.bounded(ctx)
	defer cancel()
	_, era := b.mirror.newest()
	var err error
	if o == nil {
		lease, err = to.Create(bounded, lease, metav1.CreateOptions{})
	} else {
		lease.UID, lease.ResourceVersion = o.lease.UID, o.lease.ResourceVersion
		lease, err = to.Update(bounded, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		err = fault(ctx, err)
		if errors.Is(err, errAbsent) {
			if o != nil {
				return nil, errMoved
			}
			return nil, retry.Refused(fmt.Errorf("there is no namespace %s", b.space))
		}
		return nil, err
	}
	return b.mirror.wrote(era, lease)
}

// remove deletes the Lease of that name; if o is not nil, only if it is o still.
// found says that it was there: one that is gone needs no removal.
func (b *Backend) remove(ctx context.Context, to coordinationclient.LeaseInterface, name string, o *object) (found bool, err error) {
	var opts metav1.DeleteOptions
	if o != nil {
		opts.Preconditions = &metav1.Preconditions{UID: &o.lease.UID, ResourceVersion: &o.lease.ResourceVersion}
	}
	if b.outgoing.Enter(ctx) != nil {
		return false, retry.Ended(ctx)
	}
	defer b.outgoing.Leave()
	bounded, cancel := b.bounded(ctx)
	defer cancel()
	if err := to.Delete(bounded, name, opts); err != nil {
		if err = fault(ctx, err); errors.Is(err, errAbsent) {
			err = nil
		}
		return false, err
	}
	return true, nil
}

// atOnce is how many urgent requests one mount sends side by side. A server that has to serve
// others tells it to wait.
const atOnce = 16

// each calls do for all of list, some at a time. Of several errors it returns one that is worth
// another try.
func each[T any](ctx context.Context, list []T, do func(T) error) error {
	if len(list) == 0 {
		return nil
	}
	failed := make([]error, len(list))
	workqueue.ParallelizeUntil(ctx, atOnce, len(list), func(i int) { failed[i] = do(list[i]) })
	if ctx.Err() != nil {
		return retry.Ended(ctx)
	}
	var last error
	for _, err := range failed {
		if err != nil && !errors.Is(err, retry.ErrRefused) {
			return err
		}
		last = cmp.Or(err, last)
	}
	return last
}

// list reads all Leases of a feed as they are now, or as many as limit says, if that
// is not 0, or one.
func (f *feed) list(ctx context.Context, limit int64) (reading, error) {
	b := f.b
	bounded, cancel := context.WithTimeout(b.logged(ctx), listTimeouts*b.timeout)
	defer cancel()
	_, own := f.m.newest()
	newest, era := b.mirror.newest()
	opts := metav1.ListOptions{LabelSelector: f.selector, Limit: limit}
	if f.name != "" {
		opts.FieldSelector = "metadata.name=" + f.name
	}
	list, err := f.from.Leases(b.space).List(bounded, opts)
	if err != nil {
		if err = fault(ctx, err); errors.Is(err, errAbsent) {
			err = fmt.Errorf("%w: %w", lockmgr.ErrUnavailable, err)
		}
		return reading{}, err
	}
	rev, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
	if err != nil {
		return reading{}, fmt.Errorf("%w: the list has resourceVersion %q", retry.ErrRefused, list.ResourceVersion)
	}
	if before, now := f.m.wentBack(list.Items, rev); now < before {
		era = b.setBack(before, now, era)
	} else {
		era = b.saw(rev, newest, era)
	}
	if !f.m.pulses {
		own = era
	}
	return reading{list.Items, rev, own}, nil
}

// saw notes the revision of an answer, to a request that was sent when newest had been seen
// of an era. If rev is smaller, the etcd was restored, and all sessions end. It returns the
// era of rev.
func (b *Backend) saw(rev, newest int64, of lifetime.Era) lifetime.Era {
	if rev >= newest {
		return of
	}
	return b.setBack(newest, rev, of)
}

// setBack ends an era: the store was at revision from and is at to now. It returns the next.
func (b *Backend) setBack(from, to int64, of lifetime.Era) lifetime.Era {
	now, ended := b.mirror.setBack(of)
	if ended {
		b.log.Error("the API server's etcd was set back while this mount was up: its locks are lost", "from", from, "to", to)
	}
	return now
}

// listTimeouts is how many requests' time a list may take.
const listTimeouts = 3

// edit returns the Lease that replaces o, which may be nil. It returns nil to leave o.
type edit func(o *object) (*coordinationv1.Lease, error)

// change edits and writes a Lease, again and again until no other write comes between. It
// returns the Lease as it is then. If the edit refuses what the mirror shows, it is asked
// again with what the server has.
func (b *Backend) change(ctx context.Context, name string, fresh bool, e edit) (*object, error) {
	return b.changeBy(ctx, b.leases(), name, fresh, e)
}

func (b *Backend) changeBy(ctx context.Context, by coordinationclient.LeaseInterface, name string, fresh bool, e edit) (*object, error) {
	var r retry.Retrier
	var o *object
	var err error
	for {
		if fresh {
			if o, err = b.getBy(ctx, by, name); err != nil {
				return nil, err
			}
		} else {
			o = b.mirror.at(name)
		}
		lease, err := e(o)
		if err != nil && !fresh {
			fresh = true
			continue
		}
		if err != nil || lease == nil {
			return o, err
		}
		written, err := b.write(ctx, by, o, lease)
		if !errors.Is(err, errMoved) {
			return written, err
		}
		if fresh { // another write was faster, twice
			if r.Pause(ctx) != nil {
				return nil, retry.Ended(ctx)
			}
		}
		fresh = true
	}
}
