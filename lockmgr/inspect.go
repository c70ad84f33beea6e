package lockmgr

import (
	"context"
	"slices"
)

// FencingToken returns the fencing token of k's exclusive owner on any mount. If that mount is this
// one, the token is larger than all that other owners of the file have had: see Settle.
// FencingToken asks the service, unless this mount has told the token before. Errors:
// ErrUnavailable, ErrLockLost.
func (m *Manager) FencingToken(ctx context.Context, k Key) (token int64, ok bool, err error) {
	for {
		token, err = m.settled(ctx, func() *lock { return m.exclusive(k) })
		if token != 0 || err != nil {
			return token, err == nil, err
		}
		e, ok, err := m.others(ctx, k)
		if ok || err != nil {
			return e.FencingToken(), ok, err
		}
		if _, ok = m.ours(k); !ok { // else it has been granted meanwhile
			return 0, false, nil
		}
	}
}

// FencingToken is Manager.FencingToken of an exclusive lock that the hold has, best one of that kind.
func (h *Hold) FencingToken(ctx context.Context, kind Kind) (token int64, ok bool, err error) {
	token, err = h.m.settled(ctx, func() (found *lock) {
		for _, l := range h.locks {
			if l.grant.Mode == Exclusive && !l.releasing && !l.lost() && (found == nil || l.grant.Key.Kind == kind) {
				found = l
			}
		}
		return found
	})
	return token, token != 0, err
}

// settled returns the token of the lock that find returns with m.mu; 0: it returns nil.
func (m *Manager) settled(ctx context.Context, find func() *lock) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, m.outage.patience(outageWait))
	defer cancel()
	m.mu.Lock()
	defer m.mu.Unlock()
	for l := find(); l != nil; l = find() {
		if l.unsettled || l.below == nil && !l.told {
			if again, err := m.settle(ctx, l); err != nil {
				return 0, err
			} else if again {
				continue
			}
			l.told = l.looked && !l.changes
			l.rewrite()
		}
		return l.token(), nil
	}
	return 0, nil
}

// Exclusive returns the entry of k's exclusive owner on any mount. It asks the service unless this
// mount has the lock. Errors: ErrUnavailable.
func (m *Manager) Exclusive(ctx context.Context, k Key) (e Entry, ok bool, err error) {
	if e, ok = m.ours(k); ok {
		return e, true, nil
	}
	return m.others(ctx, k)
}

// others returns the entry of k's exclusive owner on another mount.
func (m *Manager) others(ctx context.Context, k Key) (e Entry, ok bool, err error) {
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
	l := m.exclusive(k)
	if l == nil {
		return Entry{}, false
	}
	h := l.holder
	h.Turn, h.Fencing = l.turn, l.fencing
	return Entry{Key: l.grant.Key, Mode: l.grant.Mode, Holder: h, Token: l.grant.Token, Held: true}, true
}

// exclusive returns the lock of k's exclusive owner on this mount, or nil. m.mu is held.
func (m *Manager) exclusive(k Key) *lock {
	s := m.table.slots[k]
	if s == nil || s.exclusive == 0 {
		return nil
	}
	i := slices.IndexFunc(s.locks, func(l *lock) bool {
		return l.grant.Mode == Exclusive && !l.releasing && !l.lost() && l.idle == nil
	})
	if i < 0 {
		return nil
	}
	return s.locks[i]
}
