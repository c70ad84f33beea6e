package integration

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// listed returns what 'lockfs ls PATH' lists, as "path state".
func (v *volume) listed(path string) (lines []string) {
	v.t.Helper()
	status, stdout, stderr := outcome(v.t, v.command("ls", path))
	if status != 0 {
		v.t.Fatalf("ls %s: exit status %d, %s", path, status, stderr)
	}
	for line := range strings.Lines(stdout) {
		if f := strings.Split(line, "  "); f[0] != "PATH" {
			lines = append(lines, f[0])
		}
	}
	return lines
}

// A file of several names is found by each of them, whichever it is held by; and
// what a symbolic link leads to by the link, also if that is yet to be made.
func TestListFollowsLinks(t *testing.T) {
	v := newVolume(t)
	v.inMemory()
	a := v.mount("a")
	v.write("one", "")
	outside := filepath.Join(v.dir, "outside")
	if err := errors.Join(
		os.Mkdir(v.inSource("d"), 0o755), os.Link(v.inSource("one"), v.inSource("d/two")),
		os.Symlink("d", v.inSource("dir")), os.Symlink("d/two", v.inSource("link")),
		os.Symlink("dir/new", v.inSource("dangling")), os.Symlink(a.path("dangling"), outside),
	); err != nil {
		t.Fatal(err)
	}
	p := newAgent(t)
	p.open(a.path("one"), wronly)
	p.open(a.path("dangling"), wronly|create)
	p.open(a.path("other"), wronly|create)
	twice := v.listed(v.inSource("one"))
	if len(twice) != 2 || twice[0] != "one" || !strings.HasPrefix(twice[1], "inode ") {
		t.Errorf("one: %q", twice)
	}
	for path, want := range map[string][]string{
		a.path("d/two"): twice, v.inSource("d/two"): twice, a.path("link"): twice, v.inSource("link"): twice, a.path("dir/two"): twice, v.inSource("dir/two"): twice,
		a.path("dangling"): {"d/new"}, v.inSource("dangling"): {"d/new"}, a.path("dir/new"): {"d/new"}, outside: {"d/new"}, v.inSource("dir"): {"d/new"},
		v.inSource("dir/none"): nil,
	} {
		if got := v.listed(path); !slices.Equal(got, want) {
			t.Errorf("ls %s: %q, want %q", path, got, want)
		}
	}
}
