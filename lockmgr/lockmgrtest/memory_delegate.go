package lockmgrtest

import (
	"context"
	"slices"

	"github.com/lockfs/lockfs/lockmgr"
)

var _ lockmgr.Delegator = (*memorySession)(nil)

// MostBelow is small, so that a few files need several PutBelow.
func (s *memorySession) MostBelow() int { return 3 }

// PutBelow is lockmgr.Delegator's.
func (s *memorySession) PutBelow(ctx context.Context, d lockmgr.Grant, entries []lockmgr.Entry) (int64, error) {
	a := memoryAcquire{s: s}
	if err := a.putBelow(ctx, d, entries); err != nil {
		return 0, err
	}
	grants, err := a.answer()
	if err != nil {
		return 0, err
	}
	return grants[0].Token, nil
}

// Stands is lockmgr.Delegator's.
func (s *memorySession) Stands(ctx context.Context, d lockmgr.Grant) (int64, error) {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if err := s.m.answers(ctx); err != nil {
		return 0, err
	}
	if !slices.ContainsFunc(s.m.entries, func(e *entry) bool { return e.Grant == d && e.session == s }) {
		return 0, lockmgr.ErrNotHeld
	}
	return s.m.rev, nil
}

func (a *memoryAcquire) putBelow(ctx context.Context, d lockmgr.Grant, entries []lockmgr.Entry) error {
	m := a.s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.s.ended() {
		return lockmgr.ErrSessionLost
	}
	if err := m.answers(ctx); err != nil {
		return err
	}
	if !slices.ContainsFunc(m.entries, func(e *entry) bool { return e.Grant == d && e.session == a.s }) {
		return lockmgr.ErrNotHeld
	}
	m.rev++
	for _, e := range entries {
		e.Token = m.rev
		a.grants = append(a.grants, e.Grant())
		m.entries = append(m.entries, &entry{Grant: e.Grant(), holder: e.Holder, session: a.s})
		if e.Key.Kind == lockmgr.Tree {
			m.tree = m.rev
		}
	}
	return nil
}

// take puts a delegation.
func (a *memoryAcquire) take(ctx context.Context) error {
	m, k := a.s.m, a.req.Keys[0]
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.s.ended() {
		return lockmgr.ErrSessionLost
	}
	if err := m.answers(ctx); err != nil {
		return err
	}
	for _, e := range m.entries {
		if e.Key.Conflicts(k) && (e.session != a.s || e.Key.Kind == lockmgr.Tree) {
			return &lockmgr.ContendedError{Key: k, Holder: e.holder}
		}
	}
	a.put()
	return nil
}

// others leaves out the session's own delegations. m.mu is held.
func (a *memoryAcquire) others(ahead []*entry) []*entry {
	return slices.DeleteFunc(ahead, func(e *entry) bool { return e.Mode == lockmgr.Delegated && e.session == a.s })
}

// delegated reports whether another session has a directory delegated that is in the way. m.mu
// is held.
func (a *memoryAcquire) delegated() bool {
	return slices.ContainsFunc(a.s.m.entries, func(e *entry) bool {
		return e.Mode == lockmgr.Delegated && e.session != a.s && slices.ContainsFunc(a.req.Keys, e.Key.Conflicts)
	})
}
