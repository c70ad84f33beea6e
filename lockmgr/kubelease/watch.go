package kubelease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/internal/retry"
)

// watch keeps the mirror up to date until the backend is closed. Whatever goes
// wrong, it reads all and watches from there.
func (b *Backend) watch() {
	var r retry.Retrier
	for {
		err := b.listAndWatch(&r)
		if b.ctx.Err() != nil {
			return
		}
		if n := r.Failures(); n&(n-1) == 0 { // the first, second, fourth, …
			b.log.Warn("the watch of the locks has ended; reading them all, to watch again", "err", err, "failures", n)
		}
		if r.Pause(b.ctx) != nil {
			return
		}
	}
}

// listAndWatch returns why the watch cannot go on: ErrUnavailable, or worse.
func (b *Backend) listAndWatch(r *retry.Retrier) error {
	all, err := b.list(b.ctx)
	if err != nil {
		return err
	}
	if err := b.mirror.replace(all); err != nil {
		return err
	}
	for rev := all.rev; ; {
		if rev, err = b.watchFrom(r, all.era, rev); err != nil {
			return err
		}
	}
}

// The server ends a watch after a time that differs from mount to mount.
const (
	watchTime = 5 * time.Minute
	// watchStuck is how long the news of our own write may take.
	watchStuck = 3 * time.Second
)

// watchFrom follows the changes after rev until the server ends the watch, as
// it does now and then, and returns the revision up to which they were seen.
func (b *Backend) watchFrom(r *retry.Retrier, of era, rev int64) (int64, error) {
	ctx, cancel := context.WithCancel(b.logged(b.ctx))
	defer cancel()
	defer context.AfterFunc(of, cancel)()
	start := time.Now()
	seconds := int64((watchTime + rand.N(watchTime)) / time.Second)
	begun := time.AfterFunc(b.timeout, cancel)
	w, err := b.client.sessions.Leases(b.space).Watch(ctx, metav1.ListOptions{
		LabelSelector: b.names.selector(), ResourceVersion: strconv.FormatInt(rev, 10),
		AllowWatchBookmarks: true, TimeoutSeconds: &seconds,
	})
	if err != nil {
		return 0, watchFault(err)
	}
	defer w.Stop()
	if !begun.Stop() {
		return 0, fmt.Errorf("%w: no watch within %v", lockmgr.ErrUnavailable, b.timeout)
	}
	b.mirror.watched(cancel)
	defer b.mirror.watched(nil)
	tick := time.NewTicker(watchStuck / 3)
	defer tick.Stop()
	for {
		select {
		case ev, open := <-w.ResultChan():
			switch {
			case open:
			case b.ctx.Err() != nil:
				return 0, b.ctx.Err()
			case of.Err() != nil:
				return 0, fmt.Errorf("%w: the API server's etcd was set back", lockmgr.ErrUnavailable)
			case time.Since(start) < watchStuck:
				return 0, fmt.Errorf("%w: the watch ended at once", lockmgr.ErrUnavailable)
			default:
				return rev, nil
			}
			next, err := b.event(of, ev)
			if err != nil {
				return 0, err
			}
			if next > rev {
				r.Answered()
				rev = next
			}
		case <-tick.C:
			if b.mirror.stuck(watchStuck) {
				return 0, fmt.Errorf("%w: the watch does not show what was written", lockmgr.ErrUnavailable)
			}
		}
	}
}

// event takes in one event of an era's watch and returns its revision.
func (b *Backend) event(of era, ev watch.Event) (int64, error) {
	if ev.Type == watch.Error {
		return 0, watchFault(apierrors.FromObject(ev.Object))
	}
	lease, ok := ev.Object.(*coordinationv1.Lease)
	if !ok {
		return 0, fmt.Errorf("%w: the watch shows a %T", lockmgr.ErrUnavailable, ev.Object)
	}
	rev, err := strconv.ParseInt(lease.ResourceVersion, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: the watch shows resourceVersion %q", lockmgr.ErrUnavailable, lease.ResourceVersion)
	}
	if ev.Type == watch.Bookmark {
		b.mirror.passed(of, rev)
		return rev, nil
	}
	return rev, b.mirror.changed(of, lease, ev.Type == watch.Deleted)
}

// watchFault is fault for the watch, of which no failure is final: a 410 says
// that the revision is too old to watch from.
func watchFault(err error) error {
	if err = fault(context.Background(), err); errors.Is(err, errAbsent) || errors.Is(err, errMoved) {
		return fmt.Errorf("%w: %v", lockmgr.ErrUnavailable, err)
	}
	return err
}
