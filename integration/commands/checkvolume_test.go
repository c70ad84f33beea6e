package commands

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// 'lockfs check-volume' finds that all rules hold between two views of a local directory,
// and leaves nothing there, also when it is interrupted.
func TestCheckVolume(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	v.Env = append(v.Env, "TMPDIR=/dev/shm") // etcd's fsyncs cost nothing there
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount the directory a second time")
	}
	twin := filepath.Join(v.Dir, "twin")
	if err := errors.Join(os.Mkdir(twin, 0o755), unix.Mount(v.Source, twin, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(twin, unix.MNT_DETACH) })
	empty := func() {
		t.Helper()
		if left, err := os.ReadDir(v.Source); err != nil || len(left) > 0 {
			t.Errorf("left on the volume: %v, %v", left, err)
		}
	}
	status, stdout, stderr := lab.Outcome(t, v.Command("check-volume", v.Source, twin))
	if status != 0 || strings.Count(stdout, " ok (") < 15 || strings.Contains(stdout, "BROKEN") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	empty()

	for how, end := range map[string]func(cmd *exec.Cmd, output io.Closer) error{
		"interrupted":         func(cmd *exec.Cmd, _ io.Closer) error { return cmd.Process.Signal(unix.SIGINT) },
		"nobody reads it now": func(_ *exec.Cmd, output io.Closer) error { return output.Close() },
	} {
		cmd := v.Command("check-volume", v.Source, twin)
		output, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		lab.Eventually(t, "it has its directory on the volume", func() bool {
			names, err := os.ReadDir(v.Source)
			return err == nil && len(names) == 1
		})
		if err := end(cmd, output); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if status := cmd.ProcessState.ExitCode(); status != 1 {
			t.Errorf("%s: status %d, want 1", how, status)
		}
		empty()
	}

	for _, args := range [][]string{{v.Source}, {"--peer", "h:1", v.Source, v.Source}, {"--peer", "h:1", "--listen", ":0", v.Source}, {v.Source + "/none", v.Source}} {
		if status, _, stderr := lab.Outcome(t, v.Command(append([]string{"check-volume"}, args...)...)); status != 2 {
			t.Errorf("%v: status %d, want 2: %s", args, status, stderr)
		}
	}
}
