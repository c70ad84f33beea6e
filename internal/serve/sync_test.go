package serve

import (
	"testing"

	"github.com/lockfs/lockfs/fs"
)

// By default nothing that a frozen machine has is sent after the thaw by a client that
// nobody can refuse. (docs/SEMANTICS.md, rule 19.)
func TestSyncFor(t *testing.T) {
	for _, c := range []struct {
		fstype  string
		network bool
		want    fs.Sync
	}{
		{"nfs", true, fs.SyncAlways},
		{"nfs4", true, fs.SyncAlways},
		{"ceph", true, fs.SyncClose},
		{"fuse.glusterfs", true, fs.SyncClose},
		{"ext4", false, fs.SyncNever},
	} {
		if got := syncFor(c.fstype, c.network); got != c.want {
			t.Errorf("%s: %s, want %s", c.fstype, got, c.want)
		}
	}
}
