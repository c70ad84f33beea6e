package lockmgrtest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/lockmgr"
)

// PutBreak is lockmgr.Breaker's; what is put is kept for ever.
func (m *Memory) PutBreak(ctx context.Context, b lockmgr.Break) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.answers(ctx); err != nil {
		return err
	}
	m.breaks = append(m.breaks, b)
	m.wake()
	return nil
}

// DropBreak is lockmgr.Breaker's.
func (m *Memory) DropBreak(ctx context.Context, id uuid.UUID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.answers(ctx); err != nil {
		return err
	}
	m.breaks = slices.DeleteFunc(m.breaks, func(b lockmgr.Break) bool { return b.ID == id })
	return nil
}

// WatchBreaks is lockmgr.Breaker's. Breaks of the time when the service was away are told when
// it is back.
func (m *Memory) WatchBreaks(ctx context.Context, found func(lockmgr.Break)) {
	told := make(map[uuid.UUID]bool)
	for {
		m.mu.Lock()
		changed := m.changed
		var news []lockmgr.Break
		if m.answers(ctx) == nil {
			news = slices.Clone(m.breaks)
		}
		m.mu.Unlock()
		for _, b := range news {
			if !told[b.ID] {
				told[b.ID] = true
				found(b)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// AwaitGone is lockmgr.Breaker's.
func (m *Memory) AwaitGone(ctx context.Context, g lockmgr.Grant) error {
	for {
		m.mu.Lock()
		changed := m.changed
		there := slices.ContainsFunc(m.entries, func(e *entry) bool { return e.Grant == g })
		gone := !there && m.answers(ctx) == nil
		m.mu.Unlock()
		if gone {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// SessionTTL is lockmgr.Breaker's.
func (m *Memory) SessionTTL(ctx context.Context, id string) (time.Duration, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.answers(ctx); err != nil {
		return 0, err
	}
	s := m.open[id]
	if s == nil {
		return 0, fmt.Errorf("%w: session %s", lockmgr.ErrSessionLost, id)
	}
	return s.ttl, nil
}

// Revoke is lockmgr.Breaker's.
func (m *Memory) Revoke(ctx context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.answers(ctx); err != nil {
		return err
	}
	if s := m.open[id]; s != nil {
		m.end(s)
	}
	return nil
}
