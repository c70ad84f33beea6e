package kubelease_test

import (
	"errors"
	"testing"

	"github.com/lockfs/lockfs/lockmgr"
)

// A lock stands only while its session does, also if its mount has not heard yet that the session was
// revoked, and if the dead entry is still there. It is asked for without reading all Leases.
func TestStands(t *testing.T) {
	t.Parallel()
	for what, req := range map[string]lockmgr.AcquireRequest{
		"a file":      request(lockmgr.NoWait, file("f")),
		"a directory": {Keys: []lockmgr.Key{tree("d")}, Mode: lockmgr.Delegated, Keep: true, Holder: request(lockmgr.NoWait, file("f")).Holder},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			name, l := newName(), &link{}
			b := newBackendAt(t, l.to(as(mountUser)), name)
			s := open(t, b)
			g := acquire(t, s, req)
			keepsWatch(t, b, s) // which takes lists
			before := l.count("list")
			if rev, err := s.(lockmgr.Delegator).Stands(within(t, patience), g); err != nil || rev < g.Token {
				t.Errorf("revision %d after token %d, %v", rev, g.Token, err)
			}
			if what == "a file" && l.count("list") > before {
				t.Error("all Leases of the volume were read")
			}
			l.hung.Store(true)
			expire(t, s)
			if rev, err := s.(lockmgr.Delegator).Stands(within(t, patience), g); !errors.Is(err, lockmgr.ErrNotHeld) {
				t.Errorf("its session was revoked, and it stands at %d: %v", rev, err)
			}
			l.hung.Store(false)
			l.hangUp()
		})
	}
}
