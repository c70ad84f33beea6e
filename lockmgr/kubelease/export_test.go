package kubelease

import "github.com/lockfs/lockfs/lockmgr"

// BreakWatch ends the watch of a backend and reports whether there was one.
func BreakWatch(b *Backend) bool {
	b.mirror.mu.Lock()
	defer b.mirror.mu.Unlock()
	stop := b.mirror.stopWatch
	if stop != nil {
		stop()
	}
	return stop != nil
}

// SeeMore has a backend have seen more than the store has, as if that was restored.
func SeeMore(b *Backend) { b.mirror.passed(b.mirror.era, 1<<62) }

// Connected reports whether the backend's watch stands.
func Connected(b *Backend) bool { return b.mirror.connected() }

// Forget has a session not know any more of what it holds.
func Forget(s lockmgr.Session, g lockmgr.Grant) { s.(*Session).claims.drop(claimOf(g)) }

// Ghosts is how many entries of a session its mount sees that nobody claims.
func Ghosts(s lockmgr.Session) int { return len(s.(*Session).ghosts()) }
