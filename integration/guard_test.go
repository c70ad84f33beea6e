package integration

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// While the daemon is away, nobody writes to the bare directory below the
// mount, root neither, no user takes it for an empty volume, and the next
// daemon mounts there.
func TestGuard(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	v := newVolume(t, "--guard")
	bare := filepath.Join(v.dir, "m") // everybody may write to it
	if err := errors.Join(os.Mkdir(bare, 0o777), os.Chmod(bare, 0o777), os.Chmod(v.dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	m := v.mount("m")
	t.Cleanup(func() { _ = exec.Command("chattr", "-i", m.dir).Run() }) // after the unmount
	if strings.Contains(m.log.String(), "cannot be guarded") {
		t.Skip(m.log)
	}
	refused := func(uid uint32, script, want string) {
		t.Helper()
		cmd := exec.Command("sh", "-c", script)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%s as user %d: %v, %s; want %q", script, uid, err, out, want)
		}
	}
	away := func(toRoot, toUsers string) {
		t.Helper()
		refused(0, "echo x >"+m.path("f"), toRoot)
		refused(65534, "echo x >"+m.path("f"), toUsers)
		refused(65534, "ls "+m.dir, toUsers)
	}
	p := newAgent(t)
	p.must(call{Op: "close", FD: p.open(m.path("f"), wronly|create)})
	m.kill()
	away("not connected", "not connected")
	if err := unix.Unmount(m.dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	away("not permitted", "denied")
	m = v.mount("m")
	p.must(call{Op: "close", FD: p.open(m.path("g"), wronly|create)})
	if status := m.stop(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	away("not permitted", "denied")
}
