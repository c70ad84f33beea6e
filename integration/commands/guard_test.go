package commands

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// While the daemon is away, nobody writes to the bare directory below the
// mount, root neither, no user takes it for an empty volume, and the next
// daemon mounts there.
func TestGuard(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	v := lab.NewVolume(t, "--guard")
	bare := filepath.Join(v.Dir, "m") // everybody may write to it
	if err := errors.Join(os.Mkdir(bare, 0o777), os.Chmod(bare, 0o777), os.Chmod(v.Dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	m := v.Mount("m")
	t.Cleanup(func() { _ = exec.Command("chattr", "-i", m.Dir).Run() }) // after the unmount
	if strings.Contains(m.Log.String(), "cannot be guarded") {
		t.Skip(m.Log)
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
		refused(0, "echo x >"+m.Path("f"), toRoot)
		refused(65534, "echo x >"+m.Path("f"), toUsers)
		refused(65534, "ls "+m.Dir, toUsers)
	}
	p := lab.NewAgent(t)
	p.Must(lab.Call{Op: "close", FD: p.Open(m.Path("f"), unix.O_WRONLY|unix.O_CREAT)})
	m.Kill()
	away("not connected", "not connected")
	if err := unix.Unmount(m.Dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	away("not permitted", "denied")
	m = v.Mount("m")
	p.Must(lab.Call{Op: "close", FD: p.Open(m.Path("g"), unix.O_WRONLY|unix.O_CREAT)})
	if status := m.Stop(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	away("not permitted", "denied")
}

// A dead view stays until the next one is mounted, also if that takes long or fails: what programs
// wrote meanwhile would be below it, where nobody finds it.
func TestDeadViewStaysUntilReplaced(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	m := v.Mount("m")
	m.Kill()
	next := v.Start("m", "--endpoints", "http://127.0.0.1:1")
	<-next.Done
	if !strings.Contains(next.Log.String(), "connecting to etcd") {
		t.Errorf("it has ended otherwise: %s", next.Log)
	}
	if err := os.WriteFile(m.Path("f"), nil, 0o644); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("a write below the dead view: %v", err)
	}
	v.Mount("m")
	v.Write("g", "")
	if _, err := os.Stat(m.Path("g")); err != nil {
		t.Error(err)
	}
}

// Daemons that start at once on one mountpoint, where a dead view may be, leave one view. The others
// say that it is there.
func TestDaemonsAtOnceOnOneMountpoint(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	v.Mount("m").Kill()
	for range 2 {
		var started, left []*lab.Mount
		for range 5 {
			started = make([]*lab.Mount, 6)
			for i := range started {
				started[i] = v.Start("m")
			}
			lab.Eventually(t, "all but one end", func() bool {
				left = slices.DeleteFunc(slices.Clone(started), (*lab.Mount).Ended)
				return len(left) <= 1
			})
			if !slices.ContainsFunc(started, (*lab.Mount).WasTooSlow) {
				break
			}
			t.Log("some were too slow to see another view: once again")
			for _, m := range left {
				m.Stop()
			}
		}
		for _, m := range started {
			if log := m.Log.String(); m.Ended() && !strings.Contains(log, "is already a lockfs view of") {
				t.Errorf("it has ended otherwise: %s", log)
			}
		}
		if len(left) == 0 {
			t.Fatal("no daemon is left")
		}
		m := left[0]
		lab.Eventually(t, "the view is there", func() bool { return strings.Contains(m.Log.String(), "msg=mounted") })
		v.Write("f", "")
		if _, err := os.Stat(m.Path("f")); err != nil {
			t.Error(err)
		}
		if status := m.Stop(); status != 0 { // the next ones find the bare directory
			t.Errorf("exit status %d", status)
		}
		if err := os.Remove(m.Path("f")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("another view was below: %v", err)
		}
	}
}
