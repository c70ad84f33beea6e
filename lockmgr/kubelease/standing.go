package kubelease

import (
	"fmt"
	"slices"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// Where an acquisition stands. standing, void and across are called with the
// mirror's mu held.

// standing returns the entries in our way in p's line. Errors: ErrSessionLost,
// ErrLockLost.
func (a *acquisition) standing(p *place) (ahead []obstacle, err error) {
	m := a.s.b.mirror
	if err := a.void(p); err != nil {
		return nil, err
	}
	o := m.objects[p.name]
	for _, k := range p.keys {
		e := a.entry(k)
		ahead = append(ahead, m.inLine(o, o.find(a.req.Grant(k, 0)), &e)...)
	}
	return a.heeded(ahead), nil
}

// void returns why an entry that was put does not stand any more, or nil.
func (a *acquisition) void(p *place) error {
	m := a.s.b.mirror
	o := m.objects[p.name]
	switch {
	case m.ended(a.s.id, p.token):
		return lockmgr.ErrSessionLost
	case o != nil && o.broken != nil:
		return fmt.Errorf("%w: %w", lockmgr.ErrLockLost, o.broken)
	case slices.ContainsFunc(p.keys, func(k lockmgr.Key) bool { return o.find(a.req.Grant(k, 0)) < 0 }):
		return fmt.Errorf("%w: the entry for %s was removed", lockmgr.ErrLockLost, p.keys[0])
	}
	return nil
}

// across returns the entries of directories and files that are in each other's
// way with ours, all of which stand.
func (a *acquisition) across() (found []obstacle, err error) {
	for _, p := range a.places {
		if err := a.void(p); err != nil {
			return nil, err
		}
	}
	for _, k := range a.req.Keys {
		if err := a.s.b.mirror.broken(k); err != nil {
			return nil, retry.Refused(err)
		}
		e := a.entry(k)
		found = append(found, a.s.b.mirror.across(&e)...)
	}
	return a.heeded(found), nil
}

func (a *acquisition) deadlocked() bool {
	return slices.ContainsFunc(a.ahead, func(o obstacle) bool { return a.req.Deadlocks(o.entry.grant()) })
}

// contended is the error of a wait that err ended. nil is no wait.
func (a *acquisition) contended(err error) error {
	first := a.ahead[0]
	return &lockmgr.ContendedError{Key: first.wants, Holder: first.entry.Holder, Err: err}
}

// metHolder is contended if the service answers and a holder is known; otherwise nil.
func (a *acquisition) metHolder(cause error) error {
	if len(a.ahead) == 0 {
		a.ahead = a.inTheWay()
	}
	if len(a.ahead) > 0 && a.retrier.Failures() == 0 && a.s.b.mirror.connected() {
		return a.contended(cause)
	}
	return nil
}

func (a *acquisition) grants() []lockmgr.Grant {
	grants := make([]lockmgr.Grant, len(a.req.Keys))
	for i, k := range a.req.Keys {
		grants[i] = a.req.Grant(k, a.tokenOf(k))
	}
	return grants
}

func (a *acquisition) tokenOf(k lockmgr.Key) int64 {
	for _, p := range a.places {
		if slices.Contains(p.keys, k) {
			return p.token
		}
	}
	return 0
}
