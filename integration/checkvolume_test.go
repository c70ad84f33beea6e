package integration

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// 'lockfs check-volume' finds that all rules hold between two views of a local directory,
// and leaves nothing there, also when it is interrupted.
func TestCheckVolume(t *testing.T) {
	v := newVolume(t)
	v.env = append(v.env, "TMPDIR=/dev/shm") // etcd's fsyncs cost nothing there
	empty := func() {
		t.Helper()
		if left, err := os.ReadDir(v.source); err != nil || len(left) > 0 {
			t.Errorf("left on the volume: %v, %v", left, err)
		}
	}
	status, stdout, stderr := outcome(t, v.command("check-volume", v.source, v.source))
	if status != 0 || strings.Count(stdout, " ok (") < 15 || strings.Contains(stdout, "BROKEN") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
	empty()

	cmd := v.command("check-volume", v.source, v.source)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has its directory on the volume", func() bool {
		names, err := os.ReadDir(v.source)
		return err == nil && len(names) == 1
	})
	if err := cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != 1 {
		t.Errorf("interrupted: status %d, want 1", status)
	}
	empty()

	for _, args := range [][]string{{v.source}, {"--peer", "h:1", v.source, v.source}, {"--peer", "h:1", "--listen", ":0", v.source}, {v.source + "/none", v.source}} {
		if status, _, stderr := outcome(t, v.command(append([]string{"check-volume"}, args...)...)); status != 2 {
			t.Errorf("%v: status %d, want 2: %s", args, status, stderr)
		}
	}
}
