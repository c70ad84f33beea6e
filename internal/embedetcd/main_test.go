package embedetcd

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// envMount makes the test binary a mount's process: it joins the lock service
// in the directory named, says so, and leaves when its stdin ends.
const envMount = "LOCKFS_TEST_MOUNT"

// patience bounds every wait for another process; none should need a tenth of it.
const patience = 5 * time.Minute

func TestMain(m *testing.M) {
	if dir := os.Getenv(envMount); dir != "" {
		os.Exit(runMount(dir))
	}
	os.Exit(m.Run())
}

func runMount(dir string) int {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := Start(ctx, Config{Dir: dir, Source: dir, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	s.Close()
	return 0
}

// mount is a process that runs runMount.
type mount struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   *bufio.Reader
}

// launch starts a mount's process; it is killed and reaped with the test.
func launch(t *testing.T, dir string) *mount {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envMount+"="+dir)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	m := &mount{cmd: cmd, stdin: stdin, out: bufio.NewReader(stdout)}
	t.Cleanup(func() { m.kill() })
	return m
}

// waitReady returns when the process has joined.
func (m *mount) waitReady(t *testing.T) {
	t.Helper()
	line, err := m.out.ReadString('\n') // it ends by itself after patience
	if err != nil || line != "ready\n" {
		t.Fatalf("mount process said %q, %v", line, err)
	}
}

// kill ends the process as kill -9 does, and reaps it.
func (m *mount) kill() {
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
}

func (m *mount) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := m.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// stateDir returns a directory for one SOURCE. At the end of the test it
// waits for the etcd in it to end, which it does with the mounts: register
// it before them.
func stateDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() {
		eventually(t, "the lock service ends with its last mount", func() error {
			f, err := tryLock(lockPath(dir))
			if err == nil {
				f.Close()
			}
			return err
		})
	})
	return dir
}

// start joins from the test process itself.
func start(t *testing.T, dir string) *Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := Start(ctx, Config{Dir: dir, Source: dir, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// etcdPID returns the process that serves dir.
func etcdPID(t *testing.T, dir string) int {
	t.Helper()
	b, err := os.ReadFile(lockPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// etcdPIDs returns every etcd process on dir.
func etcdPIDs(t *testing.T, dir string) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if string(b) == childName+"\x00"+dir+"\x00" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// eventually waits until cond returns nil.
func eventually(t *testing.T, what string, cond func() error) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := cond()
		if err == nil {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("%s: not within %s: %v", what, patience, err)
		case <-tick.C:
		}
	}
}
