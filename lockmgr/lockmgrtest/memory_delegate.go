package lockmgrtest

import (
	"context"
	"slices"

	"github.com/lockfs/lockfs/lockmgr"
)

var _ lockmgr.Delegator = (*memorySession)(nil)

// Delegate is lockmgr.Delegator's.
func (s *memorySession) Delegate(ctx context.Context, k lockmgr.Key, h lockmgr.Holder) (lockmgr.Grant, error) {
	req := lockmgr.AcquireRequest{Keys: []lockmgr.Key{k}, Mode: lockmgr.Delegated, Holder: h, Keep: true}
	a := memoryAcquire{s: s, req: req}
	if err := a.take(ctx); err != nil {
		return lockmgr.Grant{}, err
	}
	grants, err := a.answer()
	if err != nil {
		return lockmgr.Grant{}, err
	}
	return grants[0], nil
}

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
