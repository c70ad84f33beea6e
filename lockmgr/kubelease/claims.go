package kubelease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/lockfs/lockfs/lockmgr"
)

// claims are the entries of a session that an acquisition, or a lock, answers for: from
// before they are put until they are known to be gone, or are given up. An entry of the
// session that is not claimed is an orphan: its id was made for one acquisition, which is
// over.
type claims struct {
	mu      sync.Mutex
	entries map[claim]fate // GUARDED_BY(mu)
}

// fate is what becomes of a claimed entry.
type fate uint8

const (
	unclaimed fate = iota
	wanted
	// givenUp: its acquisition has failed, and it is being removed. It is not in the
	// way of this mount's requests.
	givenUp
)

// claim is a grant whose token is not known yet.
type claim lockmgr.Grant

func claimOf(g lockmgr.Grant) claim {
	g.Token = 0
	return claim(g)
}

func (a *acquisition) claimed() []claim {
	list := make([]claim, len(a.req.Keys))
	for i, k := range a.req.Keys {
		list[i] = claim(a.req.Grant(k, 0))
	}
	return list
}

func (c *claims) add(entries ...claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = make(map[claim]fate)
	}
	for _, e := range entries {
		c.entries[e] = wanted
	}
}

func (c *claims) giveUp(entries ...claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		c.entries[e] = givenUp
	}
}

func (c *claims) drop(entries ...claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		delete(c.entries, e)
	}
}

func (c *claims) of(e claim) fate {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries[e]
}

// hasGivenUp reports whether e is an entry that this mount has given up.
func (b *Backend) hasGivenUp(e *entry) bool {
	s := b.present.session(e.Session)
	return s != nil && s.claims.of(claimOf(e.grant())) == givenUp
}

// removeOrphans removes the session's orphans now and then. There should be none. The mirror
// shows them, so that it costs no request to look for them.
func (s *Session) removeOrphans() {
	s.life.Every(s.b.clean.Orphans, func(ctx context.Context) (err error) {
		for _, orphan := range s.orphans() {
			err = errors.Join(err, s.removeOrphan(ctx, orphan, slog.LevelError))
		}
		return err
	}, func(err error) {
		s.b.log.Warn("cannot remove entries of this session that nobody claims", "session", s.id, "error", err)
	})
}

func (s *Session) orphans() (found []obstacle) {
	m := s.b.mirror
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.objects {
		for _, e := range o.entries {
			if e.Session == s.id && s.claims.of(claimOf(e.grant())) == unclaimed {
				found = append(found, obstacle{object: o.name, entry: e})
			}
		}
	}
	return found
}

func (s *Session) removeOrphan(ctx context.Context, orphan obstacle, level slog.Level) error {
	g := orphan.entry.grant()
	found := false
	_, err := s.b.change(ctx, orphan.object, true, func(o *object) (*coordinationv1.Lease, error) {
		if found = o.find(g) >= 0; !found {
			return nil, nil // released since
		}
		kept := s.b.living(o, func(e *entry) bool { return e.of(g) })
		return s.b.names.lockLease(o, g.Key, kept, false)
	})
	if err == nil && found {
		s.b.log.Log(ctx, level, "removed an entry of this session that nobody claims", "session", s.id, "lease", orphan.object, lockmgr.LogID(g.AcquisitionID))
	}
	if err != nil {
		return fmt.Errorf("lease %s: %w", orphan.object, err)
	}
	return nil
}
