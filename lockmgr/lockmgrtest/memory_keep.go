package lockmgrtest

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/lockmgr"
)

// recall asks for the entries ahead that may be kept: all of them, for a request that does not
// wait. m.mu is held.
func (a *memoryAcquire) recall(ahead []*entry) {
	m := a.s.m
	r := lockmgr.Recall{ID: a.record, Try: a.req.Wait == lockmgr.NoWait}
	for _, e := range ahead {
		if e.keep {
			r.Entries = append(r.Entries, e.AcquisitionID)
		}
	}
	if r.Try && len(r.Entries) < len(ahead) { // something else is in the way
		delete(m.recalls, a.record)
	}
	if len(r.Entries) == 0 || r.Try && (len(r.Entries) < len(ahead) || r.ID != uuid.Nil) {
		return
	}
	if r.ID == uuid.Nil {
		r.ID = uuid.New()
		a.record = r.ID
	}
	if slices.Equal(m.recalls[r.ID].Entries, r.Entries) {
		return
	}
	m.recalls[r.ID] = r
	m.wake()
}

// recalls reports whether a recall stands that no mount has answered. m.mu is held.
func (a *memoryAcquire) recalls() bool {
	_, ok := a.s.m.recalls[a.record]
	return ok
}

func (a *memoryAcquire) endRecall() {
	a.s.m.mu.Lock()
	defer a.s.m.mu.Unlock()
	delete(a.s.m.recalls, a.record)
}

// WatchRecalls is lockmgr.Recaller's.
func (m *Memory) WatchRecalls(ctx context.Context, found func(lockmgr.Recall)) {
	for {
		m.mu.Lock()
		changed := m.changed
		m.mu.Unlock()
		recalls, _ := m.Recalls(ctx) // if it is down, there will be a change
		for _, r := range recalls {
			found(r)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// Recalls is lockmgr.Recaller's.
func (m *Memory) Recalls(ctx context.Context) (recalls []lockmgr.Recall, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.answers(ctx); err != nil {
		return nil, err
	}
	for _, r := range m.recalls {
		recalls = append(recalls, r)
	}
	return recalls, nil
}

// InUse is lockmgr.Recaller's.
func (m *Memory) InUse(ctx context.Context, id uuid.UUID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.answers(ctx); err != nil {
		return err
	}
	delete(m.recalls, id)
	m.wake()
	return nil
}

// DescribesAfter is lockmgr.Recaller's.
func (m *Memory) DescribesAfter() time.Duration { return time.Second }

// Describe is lockmgr.Recaller's.
func (m *Memory) Describe(ctx context.Context, entries []lockmgr.Entry) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.answers(ctx); err != nil {
		return err
	}
	for _, d := range entries {
		for _, e := range m.entries {
			if e.Grant == d.Grant() {
				e.holder = d.Holder
			}
		}
	}
	return nil
}
