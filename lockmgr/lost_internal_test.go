package lockmgr

import (
	"testing"

	"github.com/lockfs/lockfs/renew"
)

// The end of a delegation's entry is noticed by several: what is asked for its locks, the look at
// the session's entries, and the check after a suspension. The last of them finds nothing to lose.
func TestDelegationLostTwice(t *testing.T) {
	sess := &session{renewal: new(renew.Session), locks: make(map[*lock]struct{})}
	d := &delegation{key: Key{Tree, "d"}, lock: &lock{grant: Grant{Key: Key{Tree, "d"}, Mode: Delegated}, sess: sess}, phase: delegationStands}
	m := &Manager{dels: map[string]*delegation{"d": d}, table: table{slots: make(map[Key]*slot)}}
	found := m.locksOf(sess)
	if len(found) != 1 {
		t.Fatalf("%d locks", len(found))
	}
	m.mu.Lock()
	m.loseDelegation(d, errDeleted)
	m.mu.Unlock()
	m.lockLost(found[0], errDeleted)
}
