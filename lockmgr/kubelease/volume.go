package kubelease

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// VolumeRecord creates want as the record of the volume if there is none, and
// returns the one that stands: want's bytes, or those that another mount put first.
// From then on the backend opens sessions only while that record stands.
// It tries until ctx ends. Errors: ErrUnavailable, wrapping ctx's.
func (b *Backend) VolumeRecord(ctx context.Context, want []byte) (stored []byte, err error) {
	b.start() // it begins to see which other mounts live
	var record string
	var r retry.Retrier
	err = r.Do(ctx, func() error {
		o, err := b.change(ctx, b.names.record(), true, func(o *object) (*coordinationv1.Lease, error) {
			if o != nil {
				return nil, nil
			}
			return b.recordLease(nil, string(want), ""), nil
		})
		if err == nil {
			record = o.lease.Annotations[noteRecord]
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("volume record: %w", err)
	}
	b.volume.Store(&record)
	return []byte(record), nil
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

// ReplaceVolumeRecord puts want in the place of old, while no session of the volume lives,
// and opens sessions only while want stands. It tries until ctx ends, or a session that it
// found is seen to be renewed. It waits for the end of the session of a dead mount, and ends
// it if no other mount is there to do so. Errors: *lockmgr.VolumeInUseError;
// lockmgr.ErrVolumeChanged when old is not the record any more; ErrUnavailable, wrapping
// ctx's.
//
// No request looks at the sessions and writes the record. So the record is marked first, and
// then the sessions are read. OpenSession creates a session first, and then reads the record.
// One of the two sees the other.
func (b *Backend) ReplaceVolumeRecord(ctx context.Context, old, want []byte) error {
	if err := b.mirrored(ctx); err != nil {
		return fmt.Errorf("volume record: %w", err)
	}
	for {
		var r retry.Retrier
		err := r.Do(ctx, func() error { return b.replaceRecord(ctx, string(old), string(want)) })
		if inUse := new(lockmgr.VolumeInUseError); errors.As(err, &inUse) && b.awaitEnd(ctx) {
			continue
		}
		if err != nil {
			return fmt.Errorf("volume record: %w", err)
		}
		record := string(want)
		b.volume.Store(&record)
		return nil
	}
}

// awaitEnd reports whether a session has ended, before one was renewed or ctx
// ended.
func (b *Backend) awaitEnd(ctx context.Context) bool {
	before := b.mirror.of(kindSession)
	var names []string
	for _, o := range before {
		names = append(names, o.name)
	}
	e := b.mirror.listen(names...)
	defer b.mirror.unlisten(e)
	pulses := b.pulses(ctx)
	for {
		for _, o := range before {
			if b.mirror.at(o.name) == nil {
				return true
			}
		}
		now := b.pulses(ctx)
		for name, rev := range now {
			if was, ok := pulses[name]; ok && rev != was {
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

func (b *Backend) replaceRecord(ctx context.Context, old, want string) error {
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
		return nil
	}
	if err != nil {
		return err
	}
	st, err := b.snapshot(ctx, b.client.locks)
	var sessions map[string]lockmgr.SessionInfo
	if err == nil {
		sessions, err = st.sessions()
	}
	record := want
	if err != nil || len(sessions) > 0 {
		record = old
	}
	// This fails if the mark was taken away.
	_, werr := b.write(ctx, b.leases(), marked, b.recordLease(marked, record, ""))
	switch {
	case err != nil:
		return err
	case len(sessions) > 0:
		return &lockmgr.VolumeInUseError{Sessions: slices.Collect(maps.Values(sessions))}
	case errors.Is(werr, errMoved):
		return fmt.Errorf("%w: the volume's record was written by another mount", lockmgr.ErrUnavailable)
	}
	return werr
}

// markLasts is how long a mark of the record is respected: it stands for milliseconds,
// unless its owner has died.
const markLasts = 5 * time.Second

// volumeStands returns nil if the record is still the one that VolumeRecord saw. A session
// opened beside another record would be a mount of another policy. If the record was deleted
// with everything else, it is put again, and the session is worth another try.
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
		stored, err := b.VolumeRecord(ctx, []byte(*seen))
		if err == nil && string(stored) == *seen {
			err = fmt.Errorf("%w: the volume's record was gone", lockmgr.ErrUnavailable)
		} else if err == nil {
			b.volume.Store(seen)
			err = lockmgr.ErrVolumeChanged
		}
		return err
	}
	if o.lease.Annotations[noteRecord] != *seen {
		return lockmgr.ErrVolumeChanged
	}
	if o.lease.Annotations[notePending] == "" {
		return nil
	}
	if have := b.mirror.at(o.name); have == nil || have.rev != o.rev || b.mirror.clock.Now().Sub(have.seen) < markLasts {
		return fmt.Errorf("%w: the volume's record is being replaced", lockmgr.ErrUnavailable)
	}
	if _, err := b.write(ctx, b.leases(), o, b.recordLease(o, *seen, "")); err != nil {
		return fmt.Errorf("%w: %w", lockmgr.ErrUnavailable, err)
	}
	return nil
}
