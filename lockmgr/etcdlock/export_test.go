package etcdlock

import "github.com/lockfs/lockfs/lockmgr"

// Waiting counts the Txns that wait for another to be answered.
func Waiting(s lockmgr.Session) int {
	g := s.(*Session).group
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.waiting)
}
