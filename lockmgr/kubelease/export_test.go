package kubelease

import (
	"strconv"

	"github.com/lockfs/lockfs/lockmgr"
)

// BreakWatch ends the watch of a backend, with that of the pulses, and reports
// whether there was one.
func BreakWatch(b *Backend) bool {
	if k := b.keeping.Load(); k != nil {
		k.pulses.breakWatch()
	}
	return b.mirror.breakWatch()
}

func (m *mirror) breakWatch() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopWatch != nil {
		m.stopWatch()
	}
	return m.stopWatch != nil
}

// Keepers is how many mounts keep watch.
const Keepers = keepers

// Keeps reports whether the backend watches the pulses.
func Keeps(b *Backend) bool {
	k := b.keeping.Load()
	return k != nil && k.pulses.connected()
}

// SeeMore has a backend have seen more than the store has, as if that was restored.
func SeeMore(b *Backend) { b.mirror.passed(b.mirror.store.Era, 1<<62) }

// SeeLater has a backend have seen the Lease of k as of the newest revision there is,
// as if the store was restored and counts on from a later one.
func SeeLater(b *Backend, k lockmgr.Key) {
	m := b.mirror
	m.mu.Lock()
	defer m.mu.Unlock()
	later := *m.objects[m.names.lock(k)]
	later.rev = m.asOf
	m.put(&later)
}

// RenewedLater has a session have been renewed last when the store does not know of it.
func RenewedLater(s lockmgr.Session) {
	later := *s.(*Session).pulse
	later.lease = later.lease.DeepCopy()
	later.rev++
	later.lease.ResourceVersion = strconv.FormatInt(later.rev, 10)
	s.(*Session).pulse = &later
}

// Connected reports whether the backend's watch stands.
func Connected(b *Backend) bool { return b.mirror.connected() }

// Forget has a session not know any more of what it holds.
func Forget(s lockmgr.Session, g lockmgr.Grant) { s.(*Session).claims.drop(claimOf(g)) }

// Orphans is how many entries of a session its mount sees that nobody claims.
func Orphans(s lockmgr.Session) (n int) {
	m := s.(*Session).b.mirror
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.objects {
		n += len(s.(*Session).orphans(o))
	}
	return n
}

// Mirrors reports whether the backend's mirror shows the Lease of k.
func Mirrors(b *Backend, k lockmgr.Key) bool { return b.mirror.at(b.names.lock(k)) != nil }

// Unanswered is how many writes there were no answer to, and may yet come.
func Unanswered(b *Backend) int {
	return len(b.unanswered.those(func(*sentWrite) bool { return true }))
}
