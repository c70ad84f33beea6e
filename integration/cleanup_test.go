package integration

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// 'lockfs cleanup' takes off a machine what lockfs has left there, and deletes nothing
// of a volume: it does nothing while a view below is served, or a daemon lives, and
// removes nothing but its own and what is empty.
func TestCleanup(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	lost, kept := newVolume(t, "--guard"), newVolume(t, "--guard")
	views := filepath.Join(kept.dir, "views")
	for _, name := range []string{"lost", "kept", "empty"} {
		if err := os.MkdirAll(filepath.Join(views, name, "view"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = exec.Command("chattr", "-R", "-i", views, filepath.Join(kept.dir, "again")).Run() }) // after the unmounts
	data := func() {
		t.Helper()
		if got := kept.read("dir/file"); got != "precious" {
			t.Fatalf("the volume's file holds %q", got)
		}
		if fi, err := os.Stat(filepath.Join(kept.source, "nothing")); err != nil || !fi.IsDir() {
			t.Fatalf("an empty directory of the volume: %v", err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(kept.source, "dir"), 0o755), os.Mkdir(filepath.Join(kept.source, "nothing"), 0o755)); err != nil {
		t.Fatal(err)
	}
	kept.write("dir/file", "precious")
	cleanup := func(status int, says string, dirs ...string) {
		t.Helper()
		got, stdout, stderr := outcome(t, kept.command(append([]string{"cleanup"}, dirs...)...))
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
	at := func(name string) string { return "../" + filepath.Base(kept.dir) + "/views/" + name + "/view" }
	dead, living := lost.mount(at("lost")), kept.mount(at("kept"))
	dead.kill()
	if err := os.RemoveAll(lost.source); err != nil {
		t.Fatal(err)
	}

	cleanup(1, "a view of "+kept.source+" is served at "+living.dir, views)
	if err := unix.Access(dead.dir, unix.F_OK); err != unix.ENOTCONN {
		t.Errorf("something was done though: a dead view answers %v", err)
	}
	cleanup(1, "a daemon lives", kept.state) // which has no view below
	freeze(t, living.cmd.Process.Pid)
	cleanup(1, "is served at", views)
	if err := living.cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	cleanup(1, "is in a view of "+kept.source, filepath.Join(living.dir, "dir"))
	cleanup(1, "the root of a volume", kept.source)
	living.stop()

	stray := filepath.Join(views, "lost", "stray")
	if err := os.WriteFile(stray, []byte("somebody's"), 0o644); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(views, "empty", "view")
	run(t, "mount", "-t", "tmpfs", "none", other)
	cleanup(1, "none (tmpfs) is mounted at "+other, views)
	run(t, "umount", other)
	if err := unix.Access(dead.dir, unix.F_OK); err != unix.ENOTCONN {
		t.Errorf("something was done though: a dead view answers %v", err)
	}

	cleanup(1, "left "+stray, views)
	there("lost/stray", true)
	there("lost/view", false)
	there("kept", false)
	there("empty", false)
	if err := os.Remove(stray); err != nil {
		t.Fatal(err)
	}
	cleanup(0, "removed "+views, views)
	there(".", false)
	cleanup(0, "", views)
	cleanup(1, "left "+filepath.Join(kept.state, "embedded"), kept.state)
	if left, err := os.ReadDir(kept.state); err != nil || len(left) != 1 {
		t.Errorf("the state directory holds %v, %v", left, err)
	}
	again := kept.mount("again")
	newAgent(t).open(again.path("dir/file"), wronly)
}
