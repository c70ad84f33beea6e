package commands

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// listedBy returns what 'lockfs ls PATH' lists, as "path state".
func listedBy(v *lab.Volume, path string) (lines []string) {
	v.T.Helper()
	status, stdout, stderr := lab.Outcome(v.T, v.Command("ls", path))
	if status != 0 {
		v.T.Fatalf("ls %s: exit status %d, %s", path, status, stderr)
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
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	v.Write("one", "")
	outside := filepath.Join(v.Dir, "outside")
	if err := errors.Join(
		os.Mkdir(v.InSource("d"), 0o755), os.Link(v.InSource("one"), v.InSource("d/two")),
		os.Symlink("d", v.InSource("dir")), os.Symlink("d/two", v.InSource("link")),
		os.Symlink("dir/new", v.InSource("dangling")), os.Symlink(a.Path("dangling"), outside),
	); err != nil {
		t.Fatal(err)
	}
	p := lab.NewAgent(t)
	p.Open(a.Path("one"), unix.O_WRONLY)
	p.Open(a.Path("dangling"), unix.O_WRONLY|unix.O_CREAT)
	p.Open(a.Path("other"), unix.O_WRONLY|unix.O_CREAT)
	twice := listedBy(v, v.InSource("one"))
	if len(twice) != 2 || twice[0] != "one" || !strings.HasPrefix(twice[1], "inode ") {
		t.Errorf("one: %q", twice)
	}
	for path, want := range map[string][]string{
		a.Path("d/two"): twice, v.InSource("d/two"): twice, a.Path("link"): twice, v.InSource("link"): twice, a.Path("dir/two"): twice, v.InSource("dir/two"): twice,
		a.Path("dangling"): {"d/new"}, v.InSource("dangling"): {"d/new"}, a.Path("dir/new"): {"d/new"}, outside: {"d/new"}, v.InSource("dir"): {"d/new"},
		v.InSource("dir/none"): nil,
	} {
		if got := listedBy(v, path); !slices.Equal(got, want) {
			t.Errorf("ls %s: %q, want %q", path, got, want)
		}
	}
}

// An embedded etcd that needs long for its start, as on a slow disk, is waited for.
func TestListAwaitsTheService(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	v.Mount("a")
	etcd := v.EtcdPID()
	lab.Freeze(t, etcd)
	defer unix.Kill(etcd, unix.SIGCONT)
	cmd := v.Command("ls", v.Source)
	ended := make(chan string, 1)
	go func() {
		status, _, stderr := lab.Outcome(t, cmd)
		ended <- fmt.Sprintf("%d %s", status, stderr)
	}()
	select {
	case how := <-ended:
		t.Fatal("it has not waited: ", how)
	case <-time.After(3 * time.Second): // longer than a takeover
	}
	if err := unix.Kill(etcd, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if how := <-ended; how != "0 " {
		t.Error("it ended with ", how)
	}
}
