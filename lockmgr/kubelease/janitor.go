package kubelease

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// JanitorConfig says how often the janitor cleans up. Zero values stand for the defaults.
type JanitorConfig struct {
	// Interval is how long the elected janitor waits between two searches. Zero: a minute.
	Interval time.Duration
	// Free is how long the Lease of a lock without entries is kept. Zero: an hour,
	// longer than any request is on its way.
	Free time.Duration
	// MaxFree is how many such Leases are kept for that long. While there are more, the
	// oldest are deleted once they have been free for Free/60. Zero: 1,000. Those in the way of
	// a late request do not count, and are kept.
	MaxFree int
	// Breaks is how long the record of a broken lock is kept. Zero: a day.
	Breaks time.Duration
	// Orphans is the average time after which a session looks again for entries of its own
	// that nobody here claims. Zero: half a minute.
	Orphans time.Duration
	// Election is how long an elected janitor is waited for. Zero: 2 minutes.
	Election time.Duration
}

func (c JanitorConfig) withDefaults() JanitorConfig {
	c.Interval = cmp.Or(c.Interval, time.Minute)
	c.Free = cmp.Or(c.Free, time.Hour)
	c.MaxFree = cmp.Or(c.MaxFree, 1000)
	c.Breaks = cmp.Or(c.Breaks, 24*time.Hour)
	c.Orphans = cmp.Or(c.Orphans, 30*time.Second)
	c.Election = cmp.Or(c.Election, 2*time.Minute)
	return c
}

// janitor deletes Leases that are not needed, while this mount is elected. Two janitors at
// once do no harm: a Lease that has changed since it was seen is not deleted.
func (b *Backend) janitor() {
	ctx := b.logged(b.ctx)
	for ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: b.space, Name: b.names.janitor()},
				Client:     b.client.sessions,
				LockConfig: resourcelock.ResourceLockConfig{Identity: uuid.NewString()},
				Labels:     map[string]string{labelKind: kindJanitor},
			},
			LeaseDuration: b.clean.Election,
			RenewDeadline: b.clean.Election * 2 / 3,
			RetryPeriod:   b.clean.Election / 4,
			Name:          b.names.volume,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: b.cleanUp,
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			b.log.Error("cannot run the janitor: the Leases of unused locks are not deleted", "error", err)
			return
		}
		elector.Run(ctx) // until another is elected
	}
}

// cleanUp looks around until ctx ends.
func (b *Backend) cleanUp(ctx context.Context) {
	for {
		for _, o := range b.useless() {
			_, err := b.remove(ctx, b.leases(), o.name, o)
			if err != nil && !errors.Is(err, errMoved) && ctx.Err() == nil {
				b.log.Warn("cannot delete a Lease that nobody needs", "lease", o.name, "error", err)
				break
			}
		}
		select {
		case <-time.After(b.clean.Interval):
		case <-ctx.Done():
			return
		}
	}
}

// useless returns the Leases to be deleted: breaks, and locks that are free. How
// long they were is judged by when this mount saw them change, by its own clock.
// One that may have been created to make a late creation void is kept for all of Free; of a table
// nobody can tell.
// The directories' Lease stays: its version, and a dead mount's delegation in it, tell what has
// been. See Undisturbed, and acquisition.late.
func (b *Backend) useless() (found []*object) {
	m := b.mirror
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now()
	var free, fences []*object
	for _, o := range m.objects {
		switch o.kind {
		case kindBreak:
			if now.Sub(o.seen) > b.clean.Breaks {
				found = append(found, o)
			}
		case kindFile, kindInode:
			switch {
			case o.broken != nil || slices.ContainsFunc(o.entries, func(e entry) bool { return m.lives(&e) }):
			case o.lease.Annotations[noteFence] != "":
				fences = append(fences, o)
			default:
				free = append(free, o)
			}
		case kindTable:
			if o.broken == nil && len(m.livingRows(o)) == 0 {
				fences = append(fences, o)
			}
		}
	}
	slices.SortFunc(free, func(x, y *object) int { return cmp.Compare(x.seen, y.seen) })
	for i, o := range free {
		age := now.Sub(o.seen)
		if age > b.clean.Free || age > b.clean.Free/60 && len(free)-i > b.clean.MaxFree {
			found = append(found, o)
		}
	}
	for _, o := range fences {
		if now.Sub(o.seen) > b.clean.Free {
			found = append(found, o)
		}
	}
	return found
}
