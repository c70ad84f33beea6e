package serve

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/fs"
	"github.com/lockfs/lockfs/internal/mounts"
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

// What is mounted below SOURCE asks for no less than it would as SOURCE.
func TestStrictest(t *testing.T) {
	disk, fuse, nfs := mounts.Mount{FSType: "ext4"}, mounts.Mount{FSType: "fuse.glusterfs"}, mounts.Mount{FSType: "nfs4"}
	for _, c := range []struct {
		source fs.Sync
		below  []mounts.Mount
		want   fs.Sync
	}{
		{fs.SyncNever, []mounts.Mount{disk}, fs.SyncNever},
		{fs.SyncNever, []mounts.Mount{fuse}, fs.SyncClose},
		{fs.SyncNever, []mounts.Mount{nfs, fuse}, fs.SyncAlways},
		{fs.SyncAlways, []mounts.Mount{fuse}, fs.SyncAlways},
	} {
		if got := strictest(c.source, c.below); got != c.want {
			t.Errorf("%s above %v: %s, want %s", c.source, c.below, got, c.want)
		}
	}
}

// What is mounted below SOURCE without set-user-ID programs or devices has none through the view. Programs
// can run in the rest of it. (docs/SEMANTICS.md, rule 16.)
func TestAttrsOf(t *testing.T) {
	below := []mounts.Mount{{Flags: "ro,relatime"}, {Flags: "rw,nosuid"}, {Flags: "rw,nodev"}, {Flags: "rw,noexec"}}
	if got, want := int64(attrsOf(below)), int64(unix.ST_NOSUID|unix.ST_NODEV); got != want {
		t.Errorf("got %#x, want %#x", got, want)
	}
}
