package kubelease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

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
	// givenUp: its acquisition has failed, and it is being removed.
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

// unwanted reports whether e is an entry of this mount that it has given up, or that nobody claims. It
// is being removed, and in the way of other mounts only.
func (b *Backend) unwanted(e *entry) bool {
	s := b.present.session(e.Session)
	return s != nil && s.claims.of(claimOf(e.grant())) != wanted
}

// removeOrphans removes the session's orphans now and then. There should be none. The mirror
// shows them, so that it costs no request to look for them.
func (s *Session) removeOrphans() {
	s.life.Every(s.b.clean.Orphans, func(ctx context.Context) (err error) {
		for _, name := range s.orphaned() {
			err = errors.Join(err, s.removeFrom(ctx, s.b.leases(), name, slog.LevelError))
		}
		return err
	}, func(err error) {
		s.b.log.Warn("cannot remove entries of this session that nobody claims", "session", s.id, "error", err)
	})
}

// orphans returns the session's orphans in o, which may be nil. What cannot be read is left as it is.
func (s *Session) orphans(o *object) (found []entry) {
	if o == nil || o.broken != nil {
		return nil
	}
	for _, e := range o.entries {
		if e.Session == s.id && s.claims.of(claimOf(e.grant())) == unclaimed {
			found = append(found, e)
		}
	}
	return found
}

// orphaned returns the names of the Leases that have orphans of the session.
func (s *Session) orphaned() (names []string) {
	m := s.b.mirror
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, o := range m.objects {
		if len(s.orphans(o)) > 0 {
			names = append(names, name)
		}
	}
	return names
}

// removeFrom removes the session's orphans from a Lease, by one write in the place of what the mirror
// shows.
func (s *Session) removeFrom(ctx context.Context, by coordinationclient.LeaseInterface, name string, level slog.Level) error {
	var found []entry
	_, err := s.b.changeBy(ctx, by, name, false, func(o *object) (*coordinationv1.Lease, error) {
		if found = s.orphans(o); len(found) == 0 {
			return nil, nil // released since
		}
		kept := s.b.living(o, func(e *entry) bool {
			return slices.ContainsFunc(found, func(orphan entry) bool { return e.of(orphan.grant()) })
		})
		return s.b.names.lockLease(o, found[0].key, kept, false)
	})
	if err != nil {
		return fmt.Errorf("lease %s: %w", name, err)
	}
	for _, e := range found {
		s.b.log.Log(ctx, level, "removed an entry of this session that nobody claims", "session", s.id, "lease", name, lockmgr.LogID(e.AcquisitionID))
	}
	return nil
}
