package csi

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockfs/lockfs/internal/config"
	"github.com/lockfs/lockfs/internal/mounts"
)

func TestShareOf(t *testing.T) {
	for _, c := range []struct {
		id, volume, dir string
		want            share
		code            codes.Code
	}{
		{id: "a/v", want: share{"a/v", "."}},
		{id: "a/v/x/y", want: share{"a/v", "x/y"}},
		{id: "a/v//x/./y/", want: share{"a/v", "x/y"}},
		{id: "any", volume: "a/v", want: share{"a/v", "."}},
		{id: "any", volume: "v", dir: "/x", want: share{"default/v", "x"}},
		{id: "b/w", volume: "a/v", want: share{"a/v", "."}},
		{id: "v", code: codes.InvalidArgument},
		{id: "a/v/../x", code: codes.InvalidArgument},
		{id: "any", volume: "a/v", dir: "x/..", code: codes.InvalidArgument},
		{id: "a/v", dir: "x", code: codes.InvalidArgument},
	} {
		got, err := shareOf(c.id, map[string]string{keyVolume: c.volume, keyDirectory: c.dir})
		if status.Code(err) != c.code || err == nil && got != c.want {
			t.Errorf("%q %q %q: %+v, %v", c.id, c.volume, c.dir, got, err)
		}
		if err != nil {
			continue
		}
		if again, err := shareOf(got.id(), nil); again != got || err != nil {
			t.Errorf("the handle %s is %+v, %v", got.id(), again, err)
		}
	}
}

// A claim's name is one name in the volume, and another name another.
func TestLeaf(t *testing.T) {
	names := []string{"pvc-1", "pvc-1.removed", ".", "..", "", ".lockfs-claims", "a/b", "a\nb", strings.Repeat("x", 64), strings.Repeat("x", 65), "A", "a"}
	seen := make(map[string]string)
	for _, name := range names {
		l := leaf(name)
		if other, ok := seen[l]; ok {
			t.Errorf("%q and %q are both %s", name, other, l)
		}
		seen[l] = name
		if l == "" || strings.ContainsAny(l, "/\n") || strings.HasPrefix(l, ".") || strings.HasSuffix(l, removed) || len(l) > 63 {
			t.Errorf("%q is %q", name, l)
		}
	}
	if leaf("pvc-1") != "pvc-1" {
		t.Error(leaf("pvc-1"))
	}
}

func TestOptions(t *testing.T) {
	f, err := config.Parse("f", []byte("volumes:\n- {name: v, source: /s, mountpoint: /m, endpoints: ['http://e'], wait: 2m, flock: cluster, readLocks: true}"))
	if err != nil {
		t.Fatal(err)
	}
	v := f.Volumes[0]
	for flag, code := range map[string]codes.Code{
		"ro": codes.OK, "noexec": codes.OK, "wait=2m": codes.OK, "wait=120s": codes.OK, "flock=cluster": codes.OK, "readLocks=true": codes.OK,
		"ttl=15s": codes.OK, "suspendWait=15s": codes.OK,
		"wait=30s": codes.FailedPrecondition, "flock=local": codes.FailedPrecondition, "wait=-1": codes.FailedPrecondition,
		"rw,ro": codes.InvalidArgument, "suid": codes.InvalidArgument, "wait=soon": codes.InvalidArgument, "flock=": codes.InvalidArgument,
		"source=/s": codes.InvalidArgument, "policy=[]": codes.InvalidArgument, "what=1": codes.InvalidArgument, "wait=[": codes.InvalidArgument,
	} {
		if _, err := options(v, []string{flag}); status.Code(err) != code {
			t.Errorf("%s: %v, want %v", flag, err, code)
		}
	}
	if a, err := options(v, []string{"ro", "nosuid"}); a != mounts.ReadOnly|mounts.NoSUID || err != nil {
		t.Errorf("%v, %v", a, err)
	}
}

// The daemon mounts where a symbolic link leads, and the mount table has no links.
func TestMountpointBehindALink(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "view"), 0o755), os.Symlink("view", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	d := New(Config{KubeletDir: "/k"})
	table := []mounts.Mount{
		{ID: 1, Point: filepath.Join(dir, "view"), FSType: mounts.FSType, Source: "a/v", Device: "0:2"},
		{ID: 2, Point: "/k/old", FSType: mounts.FSType, Source: "a/v", Device: "0:1"},
	}
	view, ok := viewOf(table, config.Volume{Mountpoint: filepath.Join(dir, "link")})
	if !ok || view.ID != 1 {
		t.Errorf("%+v, %v", view, ok)
	}
	if old := d.outdated(table, view); len(old) != 1 || old[0].ID != 2 {
		t.Errorf("%+v", old)
	}
}

func TestTopmost(t *testing.T) {
	table := []mounts.Mount{
		{ID: 1, Point: "/"},
		{ID: 2, Parent: 1, Point: "/data"},
		{ID: 3, Parent: 2, Point: "/data"}, // covers it
		{ID: 4, Parent: 3, Point: "/data/conf"},
	}
	found := topmost(table, func(m mounts.Mount) bool { return m.Point == "/data" })
	if len(found) != 1 || found[0].ID != 3 {
		t.Errorf("%+v", found)
	}
	if n, ok := nested(table, found[0]); !ok || n.ID != 4 {
		t.Errorf("%+v, %v", n, ok)
	}
	if n, ok := nested(table, table[3]); ok {
		t.Errorf("%+v", n)
	}
}

// What lies beside the way to a mount, or below it, covers nothing.
func TestTopmostOnAPath(t *testing.T) {
	table := []mounts.Mount{
		{ID: 1, Parent: 1, Point: "/"}, // the kernel's first is its own parent
		{ID: 2, Parent: 1, Point: "/a"},
		{ID: 3, Parent: 2, Point: "/a"},
		{ID: 4, Parent: 3, Point: "/a/b/c"},
		{ID: 5, Parent: 3, Point: "/a/b/cc"},
		{ID: 6, Parent: 3, Point: "/a/b/c/d"}, // of another place: it would be on 4
		{ID: 7, Parent: 4, Point: "/a/b/c/e"},
		{ID: 8, Parent: 2, Point: "/a/b/c"},
		{ID: 9, Parent: 8, Point: "/a/b/c"},
		{ID: 10, Parent: 11, Point: "/x"}, // the table changed as it was read
		{ID: 11, Parent: 10, Point: "/x"},
	}
	var ids []int
	for _, m := range topmost(table, func(mounts.Mount) bool { return true }) {
		ids = append(ids, m.ID)
	}
	if want := []int{1, 3, 4, 5, 7}; !slices.Equal(ids, want) {
		t.Errorf("%v, want %v", ids, want)
	}
}
