package kubelease

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/lockfs/lockfs/lockmgr"
)

// note is a Recall in the Lease of the entries that it names, by a request that does not stand
// in line there. It goes with the entries.
type note struct {
	ID uuid.UUID `json:"id"`
	lockmgr.Recall
}

// recallsOf returns the recalls that a Lease shows: whoever is in line behind an entry that may
// be kept recalls it.
func recallsOf(entries []entry, notes []note) (found []lockmgr.Recall) {
	var kept []*entry
	for i := range entries {
		e := &entries[i]
		r := lockmgr.Recall{ID: uuid.UUID(e.AcquisitionID)}
		for _, k := range kept {
			if k.inWayOf(e) {
				r.Entries = append(r.Entries, k.AcquisitionID)
			}
		}
		if len(r.Entries) > 0 {
			found = append(found, r)
		}
		if e.Keep {
			kept = append(kept, e)
		}
	}
	for _, n := range notes {
		n.Recall.ID = n.ID
		found = append(found, n.Recall)
	}
	return found
}

// setNotes writes those notes into lease, which has entries, that name one of these.
func setNotes(lease *coordinationv1.Lease, entries []entry, notes []note) error {
	notes = slices.DeleteFunc(slices.Clone(notes), func(n note) bool {
		return !slices.ContainsFunc(entries, func(e entry) bool { return slices.Contains(n.Entries, e.AcquisitionID) })
	})
	delete(lease.Annotations, noteRecalls)
	delete(lease.Labels, labelRecalls)
	if len(notes) > 0 {
		text, err := json.Marshal(notes)
		if err != nil {
			return fmt.Errorf("kubelease: recalls: %w", err)
		}
		lease.Annotations[noteRecalls] = string(text)
	}
	if len(recallsOf(entries, notes)) > 0 {
		lease.Labels[labelRecalls] = "true"
	}
	return nil
}

// noted is a note of an acquisition.
type noted struct {
	object  string // the name of the Lease
	id      uuid.UUID
	entries []lockmgr.AcquisitionID
	rev     int64 // of the Lease with the note; 0: it is not known to be there
}

func (a *acquisition) hasRecalled(id lockmgr.AcquisitionID) bool {
	return slices.ContainsFunc(a.noted, func(n *noted) bool { return slices.Contains(n.entries, id) })
}

// recall notes a recall of the entries ahead that may be kept and that it has not recalled, in
// each of their Leases. An error means that one could not be noted.
func (a *acquisition) recall(ctx context.Context) error {
	fresh := len(a.noted)
	for _, o := range a.ahead {
		if !o.entry.Keep || a.hasRecalled(o.entry.AcquisitionID) {
			continue
		}
		i := slices.IndexFunc(a.noted[fresh:], func(n *noted) bool { return n.object == o.object })
		if i < 0 {
			i = len(a.noted) - fresh
			a.noted = append(a.noted, &noted{object: o.object, id: uuid.New()})
		}
		n := a.noted[fresh+i]
		n.entries = append(n.entries, o.entry.AcquisitionID)
	}
	for _, n := range a.noted {
		if n.rev != 0 {
			continue
		}
		if err := a.s.b.putNote(ctx, n, a.req.Wait == lockmgr.NoWait); err != nil {
			return err
		}
	}
	return nil
}

// putNote notes a recall, if an entry stands that it names.
func (b *Backend) putNote(ctx context.Context, n *noted, try bool) error {
	o, err := b.change(ctx, n.object, false, func(o *object) (*coordinationv1.Lease, error) {
		if o.notedAt(n.id) >= 0 || !o.hasAny(n.entries) {
			return nil, nil
		}
		return b.noting(o, append(slices.Clip(o.notes), note{ID: n.id, Recall: lockmgr.Recall{Entries: n.entries, Try: try}}))
	})
	if err == nil {
		n.rev = max(o.revision(), 1)
	}
	return err
}

// dropNote takes a recall out of its Lease.
func (b *Backend) dropNote(ctx context.Context, name string, id uuid.UUID) error {
	_, err := b.change(ctx, name, false, func(o *object) (*coordinationv1.Lease, error) {
		i := o.notedAt(id)
		if i < 0 {
			return nil, nil
		}
		return b.noting(o, slices.Delete(slices.Clone(o.notes), i, i+1))
	})
	return err
}

// noting returns the Lease that o, which is not nil, becomes with other notes.
func (b *Backend) noting(o *object, notes []note) (*coordinationv1.Lease, error) {
	entries := b.living(o, func(*entry) bool { return false })
	lease, err := b.names.lockLease(o, lockmgr.Key{}, entries, false)
	if err == nil {
		err = setNotes(lease, entries, notes)
	}
	return lease, err
}

func (o *object) notedAt(id uuid.UUID) int {
	if o == nil || o.broken != nil {
		return -1
	}
	return slices.IndexFunc(o.notes, func(n note) bool { return n.ID == id })
}

func (o *object) hasAny(ids []lockmgr.AcquisitionID) bool {
	return o != nil && o.broken == nil && slices.ContainsFunc(o.entries, func(e entry) bool { return slices.Contains(ids, e.AcquisitionID) })
}

// mayTryRecall reports whether all that is ahead may be kept, and was not recalled.
func (a *acquisition) mayTryRecall() bool {
	return len(a.ahead) > 0 && !slices.ContainsFunc(a.ahead, func(o obstacle) bool {
		return !o.entry.Keep || a.hasRecalled(o.entry.AcquisitionID)
	})
}

// tryRecall is for a request that does not wait. It recalls what is ahead, and waits until that
// is given back, or a mount says that it is in use.
func (a *acquisition) tryRecall(ctx context.Context) (given bool) {
	m := a.s.b.mirror
	var names []string
	for _, o := range a.ahead {
		names = append(names, o.object)
	}
	slices.Sort(names)
	e := m.listen(slices.Compact(names)...)
	defer m.unlisten(e)
	ctx, cancel := context.WithTimeout(ctx, a.s.b.timeout)
	defer cancel()
	if err := a.recall(ctx); err != nil {
		return false
	}
	for {
		given, inUse := a.answered()
		if given || inUse {
			return given
		}
		select {
		case <-e.ch:
		case <-ctx.Done():
			return false // the holder does not answer: it has the lock
		}
	}
}

// answered reports whether all entries that were recalled are gone, or a note is gone before
// its entries.
func (a *acquisition) answered() (given, inUse bool) {
	m := a.s.b.mirror
	m.mu.Lock()
	defer m.mu.Unlock()
	given = true
	for _, n := range a.noted {
		o := m.objects[n.object]
		if o == nil || !slices.ContainsFunc(o.entries, func(e entry) bool { return slices.Contains(n.entries, e.AcquisitionID) && m.lives(&e) }) {
			continue
		}
		given = false
		inUse = inUse || o.rev >= n.rev && o.notedAt(n.id) < 0
	}
	return given, inUse
}

// endRecall drops the notes that stand, in the background. One that may be put late stands as
// long as an entry that it names.
func (a *acquisition) endRecall() {
	for _, n := range a.noted {
		if a.s.b.mirror.at(n.object).notedAt(n.id) < 0 {
			continue
		}
		a.s.life.Go(func() {
			ctx, cancel := context.WithTimeout(a.s.life.Over, a.s.b.timeout)
			defer cancel()
			if err := a.s.b.dropNote(ctx, n.object, n.id); err != nil {
				a.s.b.log.Debug("a recall stands until the lock is released", "lease", n.object, "error", err)
			}
		})
	}
}

// WatchRecalls is lockmgr.Recaller's: it listens to the one watch.
func (b *Backend) WatchRecalls(ctx context.Context, found func(lockmgr.Recall)) {
	if err := b.mirrored(ctx); err != nil {
		return
	}
	m := b.mirror
	e := m.listen(aRecall)
	defer m.unlisten(e)
	told := make(map[uuid.UUID]bool)
	for {
		stand := make(map[uuid.UUID]bool)
		for _, r := range m.standingRecalls() {
			if stand[r.ID] = true; !told[r.ID] {
				found(r)
			}
		}
		told = stand
		select {
		case <-e.ch:
		case <-ctx.Done():
			return
		}
	}
}

// Recalls is lockmgr.Recaller's: one read of the Leases that show recalls, past the limit.
func (b *Backend) Recalls(ctx context.Context) (found []lockmgr.Recall, err error) {
	f := *b.locks
	f.selector = b.names.recalls()
	all, err := f.list(ctx, 0)
	if err != nil {
		return nil, fmt.Errorf("reading recalls: %w", err)
	}
	for i := range all.leases {
		o, err := b.mirror.learn(all.era, &all.leases[i])
		if err != nil {
			return nil, fmt.Errorf("%w: %w", lockmgr.ErrUnavailable, err)
		}
		found = append(found, o.recalls...)
	}
	return found, nil
}

// InUse is lockmgr.Recaller's: the note goes before its entries.
func (b *Backend) InUse(ctx context.Context, id uuid.UUID) error {
	if name := b.mirror.noted(id); name != "" {
		return b.dropNote(ctx, name, id)
	}
	return nil // the request is over
}

// Describe is lockmgr.Recaller's: a write for each entry, within the limit.
func (b *Backend) Describe(ctx context.Context, entries []lockmgr.Entry) error {
	for _, e := range entries {
		_, err := b.change(ctx, b.names.lock(e.Key), false, func(o *object) (*coordinationv1.Lease, error) {
			if o.find(e.Grant()) < 0 || o.broken != nil {
				return nil, nil
			}
			entries := b.living(o, func(*entry) bool { return false })
			for i := range entries {
				if entries[i].of(e.Grant()) {
					session := entries[i].Session
					entries[i].Holder = e.Holder
					entries[i].Session = session
				}
			}
			return b.names.lockLease(o, e.Key, entries, false)
		})
		if err != nil {
			return fmt.Errorf("describing locks: %w", err)
		}
	}
	return nil
}

// DescribesAfter is lockmgr.Recaller's. A lock that is kept for as long as by default is not
// described while it is idle.
func (b *Backend) DescribesAfter() time.Duration { return 2 * time.Second }
