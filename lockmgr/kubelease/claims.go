package kubelease

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/lockfs/lockfs/lockmgr"
)

// claims are the entries of a session that somebody here answers for: from
// before they are put, until they are known to be gone or nobody takes care of them
// any more. An entry of the session that is not claimed is a ghost: its owner's id
// is made for one acquisition, which is over.
type claims struct {
	mu      sync.Mutex
	entries map[claim]struct{}
}

type claim struct {
	key   lockmgr.Key
	mode  lockmgr.Mode
	owner uuid.UUID
}

func claimOf(g lockmgr.Grant) claim { return claim{g.Key, g.Mode, g.Owner} }

func (a *acquisition) claimed() []claim {
	list := make([]claim, len(a.req.Keys))
	for i, k := range a.req.Keys {
		list[i] = claim{k, a.req.Mode, a.req.Holder.Owner}
	}
	return list
}

func (c *claims) add(entries ...claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = make(map[claim]struct{})
	}
	for _, e := range entries {
		c.entries[e] = struct{}{}
	}
}

func (c *claims) drop(entries ...claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		delete(c.entries, e)
	}
}

func (c *claims) has(e claim) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.entries[e]
	return ok
}

// exorcise removes the session's ghosts now and then. Nothing depends on it
// while everything else works. It asks the server nothing unless there are any.
func (s *Session) exorcise() {
	for {
		select {
		case <-time.After(s.b.clean.Ghosts):
		case <-s.over.Done():
			return
		}
		for _, ghost := range s.ghosts() {
			if err := s.banish(s.over, ghost); err != nil && s.over.Err() == nil {
				s.b.log.Warn("cannot remove an entry of this session that nobody claims", "session", s.id, "lease", ghost.object, "err", err)
			}
		}
	}
}

func (s *Session) ghosts() (found []obstacle) {
	m := s.b.mirror
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.objects {
		for _, e := range o.entries {
			if e.Session == s.id && !s.claims.has(claim{e.key, e.mode(), e.Owner}) {
				found = append(found, obstacle{object: o.name, entry: e})
			}
		}
	}
	return found
}

func (s *Session) banish(ctx context.Context, ghost obstacle) error {
	g := &ghost.entry
	o, err := s.b.change(ctx, ghost.object, true, func(o *object) (*coordinationv1.Lease, error) {
		if o.find(g.key, g.mode(), g.Owner) < 0 {
			return nil, nil // released since
		}
		kept := s.b.living(o, func(e *entry) bool { return e.is(g.key, g.mode(), g.Owner) })
		return s.b.names.lockLease(o, g.key, kept, false)
	})
	if err == nil && o != nil {
		s.b.log.Error("removed an entry of this session that nobody claims", "session", s.id, "lease", ghost.object, "owner", g.Owner)
	}
	return err
}
