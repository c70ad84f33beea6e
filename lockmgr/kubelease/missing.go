package kubelease

import (
	"context"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

const (
	// missPause is how long a session leaves between two looks for its entries.
	missPause = time.Second
	// missAtLeast is how often it looks although no entry was seen to go: one may have
	// gone before the mount knew of the grant.
	missAtLeast = 30 * time.Second
)

// Watch is lockmgr.Session's. It costs no request: the mirror tells when an entry of the
// session has gone, also by a release.
func (s *Session) Watch(ctx context.Context, held func() []lockmgr.Grant, gone func(lockmgr.Grant)) {
	m := s.b.mirror
	e := m.listen(s.id)
	defer m.unlisten(e)
	for {
		for _, g := range s.missing(held()) { // at first of a session that was another process's
			s.claims.drop(claimOf(g))
			gone(g)
		}
		select {
		case <-time.After(missPause):
		case <-ctx.Done():
			return
		}
		select {
		case <-e.ch:
		case <-time.After(missAtLeast):
		case <-s.life.Over.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// missing returns which of grants the mirror does not have any more.
func (s *Session) missing(grants []lockmgr.Grant) (missing []lockmgr.Grant) {
	m := s.b.mirror
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, g := range grants {
		if m.asOf >= g.Token && !m.has(g) {
			missing = append(missing, g)
		}
	}
	return missing
}
