package lockmgr

import (
	"context"
	"slices"
)

// Exclusive returns the entry of k's exclusive owner on any mount. It asks the service unless this
// mount has the lock. Errors: ErrUnavailable.
func (m *Manager) Exclusive(ctx context.Context, k Key) (e Entry, ok bool, err error) {
	if e, ok = m.ours(k); ok {
		return e, true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.AnswerTimeout)
	defer cancel()
	entries, err := m.backend.Rivals(ctx, k)
	if err != nil {
		return Entry{}, false, err
	}
	for _, e := range entries {
		if e.Key == k && e.Mode == Exclusive && e.Held && !e.Holder.Kept && !m.isOwn(e.Holder.Session) {
			return e, true, nil
		}
	}
	return Entry{}, false, nil
}

// isOwn reports whether a session is this mount's. An entry of such a session whose lock nobody
// has here is idle, or being released.
func (m *Manager) isOwn(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.sessions, func(s *session) bool { return s.backend.ID() == id })
}

func (m *Manager) ours(k Key) (Entry, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.table.slots[k]
	if s == nil || s.exclusive == 0 {
		return Entry{}, false
	}
	for _, l := range s.locks {
		if l.grant.Mode == Exclusive && !l.releasing && !l.lost() && l.idle == nil {
			h := l.holder
			h.Turn, h.Fencing = l.turn, l.fencing
			return Entry{Key: k, Mode: Exclusive, Holder: h, Token: l.grant.Token, Held: true}, true
		}
	}
	return Entry{}, false
}
