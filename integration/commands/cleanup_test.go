package commands

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// 'lockfs cleanup' takes off a machine what lockfs has left there, and deletes nothing
// of a volume: it does nothing while a view below is served, or a daemon lives, and
// removes nothing but its own and what is empty.
func TestCleanup(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	lost, kept := lab.NewVolume(t, "--guard"), lab.NewVolume(t, "--guard")
	views := filepath.Join(kept.Dir, "views")
	for _, name := range []string{"lost", "kept", "empty"} {
		if err := os.MkdirAll(filepath.Join(views, name, "view"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = exec.Command("chattr", "-R", "-i", views, filepath.Join(kept.Dir, "again")).Run() }) // after the unmounts
	data := func() {
		t.Helper()
		if got := kept.Read("dir/file"); got != "precious" {
			t.Fatalf("the volume's file holds %q", got)
		}
		if fi, err := os.Stat(filepath.Join(kept.Source, "nothing")); err != nil || !fi.IsDir() {
			t.Fatalf("an empty directory of the volume: %v", err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(kept.Source, "dir"), 0o755), os.Mkdir(filepath.Join(kept.Source, "nothing"), 0o755)); err != nil {
		t.Fatal(err)
	}
	kept.Write("dir/file", "precious")
	cleanup := func(status int, says string, dirs ...string) {
		t.Helper()
		got, stdout, stderr := lab.Outcome(t, kept.Command(append([]string{"cleanup"}, dirs...)...))
		if got != status || !strings.Contains(stdout+stderr, says) {
			t.Errorf("cleanup %q: exit status %d, %s%s; want %d and %q", dirs, got, stdout, stderr, status, says)
		}
		data()
	}
	there := func(name string, want bool) {
		t.Helper()
		if _, err := os.Lstat(filepath.Join(views, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	at := func(name string) string { return "../" + filepath.Base(kept.Dir) + "/views/" + name + "/view" }
	dead, living := lost.Mount(at("lost")), kept.Mount(at("kept"))
	dead.Kill()
	if err := os.RemoveAll(lost.Source); err != nil {
		t.Fatal(err)
	}

	cleanup(1, "a view of "+kept.Source+" is served at "+living.Dir, views)
	dead.MustBeDead()
	cleanup(1, "a daemon lives", kept.State) // which has no view below
	lab.Freeze(t, living.Cmd.Process.Pid)
	cleanup(1, "is served at", views)
	if err := living.Cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	cleanup(1, "is in a view of "+kept.Source, filepath.Join(living.Dir, "dir"))
	cleanup(1, "the root of a volume", kept.Source)
	living.Stop()

	stray := filepath.Join(views, "lost", "stray")
	if err := os.WriteFile(stray, []byte("somebody's"), 0o644); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(views, "empty", "view")
	lab.Run(t, "mount", "-t", "tmpfs", "none", other)
	cleanup(1, "none (tmpfs) is mounted at "+other, views)
	lab.Run(t, "umount", other)
	dead.MustBeDead()

	cleanup(0, "unmounted the dead view at "+dead.Dir, filepath.Join(views, "lost", "view"))
	there("lost/view", false)
	cleanup(1, "left "+stray, views)
	there("lost/stray", true)
	there("kept", false)
	there("empty", false)
	if err := os.Remove(stray); err != nil {
		t.Fatal(err)
	}
	cleanup(0, "removed "+views, views)
	there(".", false)
	cleanup(0, "", views)
	killed := kept.Mount("killed")
	killed.Kill() // its sockets stay
	cleanup(0, "unmounted", killed.Dir)
	cleanup(1, "left "+filepath.Join(kept.State, "embedded"), kept.State)
	if left, err := os.ReadDir(kept.State); err != nil || len(left) != 1 {
		t.Errorf("the state directory holds %v, %v", left, err)
	}
	again := kept.Mount("again")
	lab.NewAgent(t).Open(again.Path("dir/file"), unix.O_WRONLY)
}
