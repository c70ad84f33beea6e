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
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/internal/lifetime"
)

// feed keeps a mirror up to date, by one watch.
type feed struct {
	b        *Backend
	m        *mirror
	selector string
	name     string                                     // "", or of the only Lease that list reads
	from     coordinationclient.CoordinationV1Interface // for reading all
}

// pulseFeed returns the feed of a new mirror, which mirrors the pulses.
func (b *Backend) pulseFeed() *feed {
	m := newMirror(b.names, b.mirror.clock)
	m.pulses = true
	return &feed{b: b, m: m, selector: b.names.pulses(), from: b.client.sessions}
}

// follow feeds the mirror until ctx ends. Whatever goes wrong, it reads all and
// watches from there; but not because the server was away, or asks for less.
func (f *feed) follow(ctx context.Context) {
	var r retry.Retrier
	var at reading // what was read last; its rev is how far the watch has come since
	for {
		err := f.advance(ctx, &r, &at)
		if ctx.Err() != nil {
			return
		}
		if r.Notable() {
			f.b.log.Warn("the watch of the locks has ended; it begins again", "of", f.selector, "error", err, "failures", r.Failures())
		}
		if r.Pause(ctx) != nil {
			return
		}
		if errors.Is(err, errBehind) {
			f.b.pause(ctx, rand.N(readSpread))
		}
	}
}

// readSpread is over what time the mounts read all Leases again, whose watches the server
// ended all at once.
const readSpread = time.Second

// advance reads all, unless the watch can go on from at, and watches until that
// cannot go on. Errors: ErrUnavailable, or worse.
func (f *feed) advance(ctx context.Context, r *retry.Retrier, at *reading) error {
	for {
		err := f.begin(ctx, at)
		if err == nil {
			err = f.watchFrom(ctx, r, at)
		}
		switch {
		case errors.Is(err, errAway):
			return err
		case err != nil:
			*at = reading{}
			return err
		}
	}
}

// begin reads all, or makes sure that the store is the one that was watched: a watch
// from a revision that another has not reached shows nothing.
func (f *feed) begin(ctx context.Context, at *reading) error {
	if at.era != nil {
		if _, err := f.list(ctx, 1); err != nil || at.era.Err() == nil {
			return err
		}
	}
	all, err := f.list(ctx, 0)
	if err != nil {
		return err
	}
	if err := f.m.replace(all); err != nil {
		return err
	}
	*at = reading{rev: all.rev, era: all.era}
	return nil
}

// The server ends a watch after a time that differs from mount to mount.
const (
	watchTime = 5 * time.Minute
	// watchStuck is how long the news of our own write may take.
	watchStuck = 3 * time.Second
	// watchTries is how many watches may end at once and show nothing.
	watchTries = 3
)

// watchFrom follows the changes after at until the server ends the watch, as it does
// now and then, and moves at to what was seen.
func (f *feed) watchFrom(parent context.Context, r *retry.Retrier, at *reading) error {
	b := f.b
	ctx, cancel := context.WithCancel(b.logged(parent))
	defer cancel()
	defer context.AfterFunc(at.era, cancel)()
	start := time.Now()
	seconds := int64((watchTime + rand.N(watchTime)) / time.Second)
	begun := time.AfterFunc(b.timeout, cancel)
	w, err := b.client.sessions.Leases(b.space).Watch(ctx, metav1.ListOptions{
		LabelSelector: f.selector, ResourceVersion: strconv.FormatInt(at.rev, 10),
		AllowWatchBookmarks: true, TimeoutSeconds: &seconds,
	})
	if err != nil {
		return watchFault(err)
	}
	defer w.Stop()
	if !begun.Stop() {
		return fmt.Errorf("%w: no watch within %v", lockmgr.ErrUnavailable, b.timeout)
	}
	f.m.watched(cancel)
	defer f.m.watched(nil)
	tick := time.NewTicker(watchStuck / 3)
	defer tick.Stop()
	for {
		select {
		case ev, open := <-w.ResultChan():
			switch {
			case open:
			case parent.Err() != nil:
				return parent.Err()
			case at.era.Err() != nil:
				return fmt.Errorf("%w: the API server's etcd was set back", lockmgr.ErrUnavailable)
			case time.Since(start) < watchStuck && r.Failures() < watchTries:
				return fmt.Errorf("%w: %w: the watch ended at once", lockmgr.ErrUnavailable, errAway)
			case time.Since(start) < watchStuck:
				return fmt.Errorf("%w: the watch ended at once", lockmgr.ErrUnavailable)
			default:
				return nil
			}
			rev, err := f.event(at.era, ev)
			if err != nil {
				return err
			}
			if rev > at.rev {
				r.Answered()
				at.rev = rev
			}
		case <-tick.C:
			if f.m.stuck(watchStuck) {
				return fmt.Errorf("%w: the watch does not show what was written", lockmgr.ErrUnavailable)
			}
		}
	}
}

// event takes in one event of an era's watch and returns its revision.
func (f *feed) event(of lifetime.Era, ev watch.Event) (int64, error) {
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
		f.m.passed(of, rev)
		return rev, nil
	}
	return rev, f.m.changed(of, lease, ev.Type == watch.Deleted)
}

// watchFault is fault for the watch, of which no failure is final.
func watchFault(err error) error {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return fmt.Errorf("%w: %w: %v", lockmgr.ErrUnavailable, errBehind, err)
	}
	if err = fault(context.Background(), err); errors.Is(err, errAbsent) || errors.Is(err, errMoved) {
		return fmt.Errorf("%w: %v", lockmgr.ErrUnavailable, err)
	}
	return err
}
