package status

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Only the user of a daemon can reach it.
func TestOnlyItsUserAsks(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(socketsIn(dir), 0o777); err != nil {
		t.Fatal(err)
	}
	stop, err := Listen(dir, func(context.Context) Daemon { return Daemon{PID: 7} })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if fi, err := os.Stat(socketsIn(dir)); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("the directory has mode %v, %v", fi.Mode(), err)
	}
	if daemons, err := Ask(t.Context(), dir); err != nil || len(daemons) != 1 || daemons[0].PID != 7 {
		t.Errorf("%+v, %v", daemons, err)
	}
	other := t.TempDir()
	if err := os.Symlink(dir, socketsIn(other)); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(other, nil); err == nil {
		t.Error("it answers in a directory that it does not own")
	}
}

// A dead daemon's socket is nobody's, and goes with the next daemon. One that takes the
// question and does not answer is told of.
func TestDeadAndMuteDaemons(t *testing.T) {
	dir := t.TempDir()
	if err := own(socketsIn(dir)); err != nil {
		t.Fatal(err)
	}
	listen := func(name string) *net.UnixListener {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(socketsIn(dir), name), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		return l
	}
	listen("dead").Close()
	listen(hidden + "made").Close() // as if it were to listen yet
	if daemons, err := Ask(t.Context(), dir); err != nil || len(daemons) != 0 {
		t.Errorf("%+v, %v", daemons, err)
	}
	defer listen("mute").Close()
	there := func(made error) {
		t.Helper()
		for name, want := range map[string]error{"dead": unix.ENOENT, hidden + "made": made, "mute": nil} {
			if _, err := os.Lstat(filepath.Join(socketsIn(dir), name)); !errors.Is(err, want) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	sweep(socketsIn(dir), inUse)
	there(nil)
	Sweep(dir) // when no daemon starts
	there(unix.ENOENT)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if daemons, err := Ask(ctx, dir); err != nil || len(daemons) != 1 || daemons[0].Error == "" || daemons[0].Views == nil {
		t.Errorf("a mute daemon: %+v, %v", daemons, err)
	}
}
