package embedetcd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestUnusableDir(t *testing.T) {
	tmp := t.TempDir()
	file := filepath.Join(tmp, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(tmp, "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	tests := map[string]string{
		"empty":         "",
		"relative":      "state",
		"too long":      filepath.Join(tmp, strings.Repeat("x", maxSocketPath)),
		"not for a URL": filepath.Join(tmp, "a%20b"),
		"a file":        file,
		"below a file":  filepath.Join(file, "state"),
		"a link":        link,
	}
	if os.Geteuid() == 0 {
		theirs := filepath.Join(tmp, "theirs")
		if err := os.Mkdir(theirs, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(theirs, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		tests["another user's"] = theirs
	}
	for name, dir := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := Start(t.Context(), Config{Dir: dir, Source: dir})
			if !errors.Is(err, ErrStateDir) {
				t.Fatalf("Start = %v, %v, want ErrStateDir", s, err)
			}
			t.Log(err)
		})
	}
}

func TestLongestSocketPath(t *testing.T) {
	base := stateDir(t)
	dir := filepath.Join(base, strings.Repeat("x", maxSocketPath-len(socketPath(base))-1))
	if n := len(socketPath(dir)); n != maxSocketPath {
		t.Fatalf("socket path of %d bytes, want %d", n, maxSocketPath)
	}
	connect(t, start(t, dir))
}

func TestStateDir(t *testing.T) {
	t.Setenv(envStateDir, "/state/")
	if dir, err := StateDir(); dir != "/state" || err != nil {
		t.Errorf("with %s: %q, %v", envStateDir, dir, err)
	}
	t.Setenv(envStateDir, "state")
	if dir, err := StateDir(); !errors.Is(err, ErrStateDir) {
		t.Errorf("with a relative %s: %q, %v", envStateDir, dir, err)
	}
	t.Setenv(envStateDir, "")
	t.Setenv("XDG_STATE_HOME", "/home/u/state")
	want := "/home/u/state/lockfs"
	if os.Geteuid() == 0 {
		want = "/var/lib/lockfs"
	}
	if dir, err := StateDir(); dir != want || err != nil {
		t.Errorf("by default: %q, %v, want %q", dir, err, want)
	}
}

func TestDirForMeets(t *testing.T) {
	source := t.TempDir()
	want := dirFor(t, source)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(source, link); err != nil {
		t.Fatal(err)
	}
	if got := dirFor(t, link); got != want {
		t.Errorf("through a link: %s, want %s", got, want)
	}
	if os.Geteuid() != 0 {
		return
	}
	bind := t.TempDir()
	if err := unix.Mount(source, bind, "", unix.MS_BIND, ""); err != nil {
		t.Skip("no bind mounts here:", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(bind, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if got := dirFor(t, bind); got != want {
		t.Errorf("through a bind mount: %s, want %s", got, want)
	}
}

// Most file systems give a new directory the inode number of one just removed.
func TestDirForNewDirectory(t *testing.T) {
	source := filepath.Join(t.TempDir(), "source")
	seen := map[string]bool{}
	for range 3 {
		if err := os.Mkdir(source, 0o700); err != nil {
			t.Fatal(err)
		}
		if lifelongHandle(source) == nil {
			t.Skip("no lifelong handles on this file system")
		}
		dir := dirFor(t, source)
		if seen[dir] {
			t.Errorf("a new directory has the state of a removed one: %s", dir)
		}
		seen[dir] = true
		if err := os.Remove(source); err != nil {
			t.Fatal(err)
		}
	}
	t.Log(seen)
}

func dirFor(t *testing.T, source string) string {
	t.Helper()
	dir, err := DirFor("/state", source)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
