package kubelease

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lockfs/lockfs/lockmgr"
)

// A delegated directory is an entry in the Lease of the directories, and a file's line is another
// Lease. So an entry of a file can be put behind a delegation that the mount did not see. The mount
// looks when its mirror shows the entry: it is then put anew (docs/adr/0039).

var _ lockmgr.Delegator = (*Session)(nil)

// errLate: an entry was put behind a delegation, and is to be put anew.
var errLate = errors.New("the directory was delegated meanwhile")

// MostBelow is 1: each file has a Lease of its own.
func (s *Session) MostBelow() int { return 1 }

// PutBelow implements lockmgr.Delegator. It does not compare that d stands: if that was deleted by
// hand, Watch tells.
func (s *Session) PutBelow(ctx context.Context, d lockmgr.Grant, entries []lockmgr.Entry) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	gone, e := false, entries[0]
	grants, err := s.Acquire(ctx, lockmgr.AcquireRequest{Keys: []lockmgr.Key{e.Key}, Holder: e.Holder, Wait: lockmgr.Retry, Waits: func() {
		gone = true // nobody can have an entry there, unless somebody has deleted the delegation
		cancel()
	}})
	switch {
	case gone:
		return 0, fmt.Errorf("%w: %s, token %d", lockmgr.ErrNotHeld, d.Key, d.Token)
	case err != nil:
		return 0, err
	}
	return grants[0].Token, nil
}

// Stands implements lockmgr.Delegator. It lists the grant's Lease alone, past the limit: a list is of
// the server's newest revision. An entry may outlive its session, so that is read afterwards.
func (s *Session) Stands(ctx context.Context, g lockmgr.Grant) (int64, error) {
	f := *s.b.locks
	f.name = s.b.names.lock(g.Key)
	all, err := f.list(ctx, 0)
	if err != nil {
		return 0, fmt.Errorf("reading whether %s is locked: %w", g.Key, err)
	}
	stands := false
	for i := range all.leases {
		o, err := s.b.mirror.learn(all.era, &all.leases[i])
		if err != nil {
			return 0, fmt.Errorf("%w: %w", lockmgr.ErrUnavailable, err)
		}
		stands = stands || o.find(g) >= 0
	}
	if stands {
		session, err := s.b.getUrgent(ctx, s.name)
		if err != nil {
			return 0, fmt.Errorf("reading whether session %s lives: %w", s.id, err)
		}
		stands = session != nil
	}
	if !stands {
		return 0, fmt.Errorf("%w: %s, token %d", lockmgr.ErrNotHeld, g.Key, g.Token)
	}
	return all.rev, nil
}

// delegations returns the delegations of others above what we want.
func (a *acquisition) delegations() []obstacle {
	a.s.b.mirror.mu.Lock()
	defer a.s.b.mirror.mu.Unlock()
	stand, _ := a.delegated(a.req.Keys)
	return stand
}

// look returns errLate if one of our entries was put too late. awaitMirror comes before. One that was
// put in time is not asked for again.
func (a *acquisition) look() error {
	a.s.b.mirror.mu.Lock()
	defer a.s.b.mirror.mu.Unlock()
	for _, p := range a.places {
		if p.token != 0 && !p.inTime && a.late(p) {
			return errLate
		}
	}
	for _, p := range a.places {
		p.inTime = p.token != 0
	}
	return nil
}

// The methods below need mirror.mu.

// late reports whether our entries in p were put behind a delegation.
func (a *acquisition) late(p *place) bool {
	o := a.s.b.mirror.objects[a.s.b.names.tree()]
	if o == nil || p.keys[0].Kind != lockmgr.File {
		return false
	}
	stand, over := a.delegated(p.keys)
	return o.undelegated > p.token || len(stand) > 0 ||
		slices.ContainsFunc(over, func(session string) bool { return !slices.Contains(p.passed, session) })
}

// delegated returns the delegations of others above files, and the sessions of those that are over.
func (a *acquisition) delegated(keys []lockmgr.Key) (stand []obstacle, over []string) {
	m := a.s.b.mirror
	o := m.objects[m.names.tree()]
	if o == nil {
		return nil, nil
	}
	for _, k := range keys {
		e := a.entry(k)
		for i := range o.entries {
			d := &o.entries[i]
			switch {
			case k.Kind != lockmgr.File || d.Mode != modeDelegated || !d.inWayOf(&e):
			case m.lives(d):
				stand = append(stand, obstacle{o.name, k, *d})
			default:
				over = append(over, d.Session)
			}
		}
	}
	return a.heeded(stand), over
}

// own returns the delegation of this session that k is below, or nil.
func (a *acquisition) own(k lockmgr.Key) *entry {
	m := a.s.b.mirror
	o := m.objects[m.names.tree()]
	if o == nil || k.Kind != lockmgr.File {
		return nil
	}
	i := slices.IndexFunc(o.entries, func(d entry) bool {
		return d.Mode == modeDelegated && d.Session == a.s.id && d.key.Conflicts(k)
	})
	if i < 0 {
		return nil
	}
	return &o.entries[i]
}
