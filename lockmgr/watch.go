package lockmgr

import (
	"context"
	"slices"
)

// watchEntries watches, until ctx ends, that the entries of a session's locks stand: after a
// mistaken delete, the next owner is granted the key at once.
func (m *Manager) watchEntries(ctx context.Context, s *session) {
	s.backend.Watch(ctx, func() []Grant { return m.grantsOf(s) }, func(g Grant) {
		m.mu.Lock()
		l := m.lockOf(s, g)
		m.mu.Unlock()
		if l != nil && ctx.Err() == nil {
			m.lockLost(l, errDeleted)
		}
	})
}

func (m *Manager) grantsOf(s *session) []Grant {
	m.mu.Lock()
	defer m.mu.Unlock()
	grants := make([]Grant, 0, len(s.locks))
	for l := range s.locks {
		if !l.releasing && l.below == nil {
			grants = append(grants, l.grant)
		}
	}
	for _, d := range m.dels {
		if d.lock.sess == s && d.stands() {
			grants = append(grants, d.lock.grant)
		}
	}
	return grants
}

// lockOf finds the lock of g; nil while it is being released. m.mu is held.
func (m *Manager) lockOf(s *session, g Grant) *lock {
	if g.Mode == Delegated {
		if d := m.dels[g.Key.Path]; d != nil && d.lock.grant == g {
			return d.lock
		}
		return nil
	}
	slot := m.table.slots[g.Key]
	if slot == nil {
		return nil
	}
	i := slices.IndexFunc(slot.locks, func(l *lock) bool { return l.sess == s && l.grant == g && !l.releasing })
	if i < 0 {
		return nil
	}
	return slot.locks[i]
}
