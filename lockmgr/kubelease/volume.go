package kubelease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// record is that of the volume, as this backend has seen it.
type record struct {
	value  string
	admits func(stored []byte) bool // whether another is as good
}

// VolumeRecord creates want as the record of the volume if there is none, and
// returns the one that stands: want's bytes, or those that another mount put first.
// From then on the backend opens sessions only while that record stands, or a later one that
// admits says yes to. It tries until ctx ends. Errors: ErrUnavailable, wrapping ctx's.
func (b *Backend) VolumeRecord(ctx context.Context, want []byte, admits func(stored []byte) bool) (stored []byte, err error) {
	b.start() // it begins to see which other mounts live
	value, err := b.putRecord(ctx, string(want))
	if err != nil {
		return nil, err
	}
	b.volume.Store(&record{value, admits})
	return []byte(value), nil
}

func (b *Backend) putRecord(ctx context.Context, want string) (stored string, err error) {
	var r retry.Retrier
	err = r.Do(ctx, func() error {
		o, err := b.change(ctx, b.names.record(), true, func(o *object) (*coordinationv1.Lease, error) {
			if o != nil {
				return nil, nil
			}
			return b.recordLease(nil, want, ""), nil
		})
		if err == nil {
			stored = o.lease.Annotations[noteRecord]
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("volume record: %w", err)
	}
	return stored, nil
}

// recordLease is the Lease of the volume's record; pending is what is about to
// replace it, "" if nothing is.
func (b *Backend) recordLease(o *object, record, pending string) *coordinationv1.Lease {
	lease := b.names.newLease(b.names.record(), kindVolume)
	if o != nil {
		lease = o.lease.DeepCopy()
	}
	lease.Annotations[noteRecord] = record
	delete(lease.Annotations, notePending)
	if pending != "" {
		lease.Annotations[notePending] = pending
	}
	return lease
}

// ReplaceVolumeRecord puts want in the place of old, if every live session of the volume is of a
// mount that enforces the policy. Afterwards the backend opens sessions only while want stands. It
// tries until ctx ends, or until a session that is in the way is seen to be renewed. It waits for
// the end of a dead mount's session, and ends that session itself if no other mount is there to do
// so. Errors: *lockmgr.VolumeInUseError; lockmgr.ErrVolumeChanged when old is not the record any
// more; ErrUnavailable, wrapping ctx's.
//
// No single request can both read the sessions and write the record. So the record is marked first,
// and then the sessions are read. OpenSession does it the other way round: it creates a session
// first, and then reads the record. So at least one of the two sees the other.
func (b *Backend) ReplaceVolumeRecord(ctx context.Context, old, want []byte, policy string) error {
	if err := b.mirrored(ctx); err != nil {
		return fmt.Errorf("volume record: %w", err)
	}
	for {
		var inTheWay []string
		var r retry.Retrier
		err := r.Do(ctx, func() (err error) {
			inTheWay, err = b.replaceRecord(ctx, string(old), string(want), policy)
			return err
		})
		if errors.As(err, new(*lockmgr.VolumeInUseError)) && b.awaitEnd(ctx, inTheWay) {
			continue
		}
		if err != nil {
			return fmt.Errorf("volume record: %w", err)
		}
		next := record{value: string(want)}
		if seen := b.volume.Load(); seen != nil {
			next.admits = seen.admits
		}
		b.volume.Store(&next)
		return nil
	}
}

// awaitEnd returns true when one of the sessions has ended, and false when one of them was renewed
// first, or ctx has ended.
func (b *Backend) awaitEnd(ctx context.Context, ids []string) bool {
	var names []string
	for _, id := range ids {
		names = append(names, b.names.session(id))
	}
	e := b.mirror.listen(names...)
	defer b.mirror.unlisten(e)
	pulses := b.pulses(ctx)
	seen := map[string]bool{} // sessions that the mirror has shown: it may not know all of them yet
	for {
		for _, name := range names {
			switch there := b.mirror.at(name) != nil; {
			case there:
				seen[name] = true
			case seen[name]:
				return true
			}
		}
		now := b.pulses(ctx)
		for _, id := range ids {
			name := b.names.pulse(id)
			if rev, was := now[name], pulses[name]; rev != "" && was != "" && rev != was {
				return false
			}
		}
		if pulses == nil {
			pulses = now
		}
		select {
		case <-e.ch:
		case <-time.After(reapInterval):
		case <-ctx.Done():
			return false
		}
	}
}

// pulses returns the versions of all pulses, none if they cannot be read.
func (b *Backend) pulses(ctx context.Context) map[string]string {
	all, err := b.pulseFeed().list(ctx, 0)
	if err != nil {
		return nil
	}
	found := make(map[string]string)
	for _, lease := range all.leases {
		found[lease.Name] = lease.ResourceVersion
	}
	return found
}

// replaceRecord tries once. After a *lockmgr.VolumeInUseError it returns the sessions that are in the
// way.
func (b *Backend) replaceRecord(ctx context.Context, old, want, policy string) (inTheWay []string, err error) {
	mark := uuid.NewString()
	done := errors.New("done")
	marked, err := b.change(ctx, b.names.record(), true, func(o *object) (*coordinationv1.Lease, error) {
		switch {
		case o != nil && o.lease.Annotations[noteRecord] == want:
			return nil, done // an earlier answer was lost
		case o == nil || o.lease.Annotations[noteRecord] != old:
			return nil, lockmgr.ErrVolumeChanged
		}
		return b.recordLease(o, old, mark), nil
	})
	if errors.Is(err, done) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	st, err := b.snapshot(ctx, b.client.locks)
	var sessions map[string]lockmgr.SessionInfo
	if err == nil {
		sessions, err = st.sessions()
	}
	inUse := &lockmgr.VolumeInUseError{}
	for id, s := range sessions {
		if !s.Enforces(policy) {
			inTheWay = append(inTheWay, id)
			inUse.Sessions = append(inUse.Sessions, s)
		}
	}
	next := want
	if err != nil || len(inTheWay) > 0 {
		next = old
	}
	// This fails if the mark was taken away.
	_, werr := b.write(ctx, b.leases(), marked, b.recordLease(marked, next, ""))
	switch {
	case err != nil:
		return nil, err
	case len(inTheWay) > 0:
		return inTheWay, inUse
	case errors.Is(werr, errMoved):
		return nil, fmt.Errorf("%w: the volume's record was written by another mount", lockmgr.ErrUnavailable)
	}
	return nil, werr
}

// markLasts is how long a mark of the record is respected: it stands for milliseconds,
// unless its owner has died.
const markLasts = 5 * time.Second

// volumeStands returns nil if the record is still the one that this backend has seen, or one that is
// as good. A session opened beside another record would be a mount of another policy. If the record
// was deleted with everything else, it is put again, and the session is worth another try.
func (b *Backend) volumeStands(ctx context.Context) error {
	seen := b.volume.Load()
	if seen == nil {
		return nil // it is not a mount of the volume
	}
	o, err := b.getUrgent(ctx, b.names.record())
	if err != nil {
		return err
	}
	if o == nil {
		stored, err := b.putRecord(ctx, seen.value)
		if err == nil && stored == seen.value {
			err = fmt.Errorf("%w: the volume's record was gone", lockmgr.ErrUnavailable)
		} else if err == nil {
			err = lockmgr.ErrVolumeChanged
		}
		return err
	}
	if stored := o.lease.Annotations[noteRecord]; stored != seen.value {
		if seen.admits == nil || !seen.admits([]byte(stored)) {
			return lockmgr.ErrVolumeChanged
		}
		seen = &record{stored, seen.admits}
		b.volume.Store(seen)
	}
	if o.lease.Annotations[notePending] == "" {
		return nil
	}
	if have := b.mirror.at(o.name); have == nil || have.rev != o.rev || b.mirror.clock.Now().Sub(have.seen) < markLasts {
		return fmt.Errorf("%w: the volume's record is being replaced", lockmgr.ErrUnavailable)
	}
	if _, err := b.write(ctx, b.leases(), o, b.recordLease(o, seen.value, "")); err != nil {
		return fmt.Errorf("%w: %w", lockmgr.ErrUnavailable, err)
	}
	return nil
}
