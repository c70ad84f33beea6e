package embedetcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestModes(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	start(t, dir)
	for path, want := range map[string]os.FileMode{
		dir:             os.ModeDir | 0o700,
		socketPath(dir): os.ModeSocket | 0o600,
		lockPath(dir):   0o600,
		dataPath(dir):   os.ModeDir | 0o700,
	} {
		eventually(t, "the modes are right", func() error { // etcd answers before its socket has its mode
			fi, err := os.Lstat(path)
			if err == nil && fi.Mode() != want {
				err = fmt.Errorf("%s: mode %v, want %v", path, fi.Mode(), want)
			}
			return err
		})
	}
}

// The only way in is the socket: nothing listens on TCP, or on a unix socket
// in the abstract namespace, which has no mode.
func TestListensOnItsSocketOnly(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	start(t, dir)
	ours := map[string]bool{} // inodes of the process's sockets
	for _, to := range descriptors(t, etcdPID(t, dir)) {
		if inode, ok := strings.CutPrefix(to, "socket:["); ok {
			ours[strings.TrimSuffix(inode, "]")] = true
		}
	}
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6"} {
		for _, f := range procNet(t, table) {
			if len(f) > 9 && ours[f[9]] {
				t.Errorf("%s socket at %s", table, f[1])
			}
		}
	}
	var listening []string
	for _, f := range procNet(t, "unix") {
		const acceptsConnections = "00010000" // __SO_ACCEPTCON
		if len(f) > 7 && ours[f[6]] && f[3] == acceptsConnections {
			listening = append(listening, f[7])
		}
	}
	if want := []string{socketPath(dir)}; !slices.Equal(listening, want) {
		t.Errorf("listening unix sockets %q, want %q", listening, want)
	}
}

// procNet returns the fields of each line of a table of sockets.
func procNet(t *testing.T, table string) (lines [][]string) {
	t.Helper()
	b, err := os.ReadFile("/proc/net/" + table)
	if errors.Is(err, os.ErrNotExist) {
		return nil // no IPv6
	}
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		lines = append(lines, strings.Fields(line))
	}
	return lines
}

// descriptors returns what a process has open.
func descriptors(t *testing.T, pid int) (targets []string) {
	t.Helper()
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(fds) == 0 {
		t.Fatalf("descriptors of %d: %v, %v", pid, fds, err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil {
			targets = append(targets, to)
		}
	}
	return targets
}

// go-fuse leaves /dev/fuse open across exec.
func TestInheritsNoDescriptors(t *testing.T) {
	t.Parallel()
	leaked := filepath.Join(t.TempDir(), "leaked")
	fd, err := unix.Open(leaked, unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	dir := stateDir(t)
	start(t, dir)
	if slices.Contains(descriptors(t, etcdPID(t, dir)), leaked) {
		t.Errorf("the etcd process has %s open", leaked)
	}
}

func TestStartGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	launch(t, dir).waitReady(t)
	pid := etcdPID(t, dir)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(pid, syscall.SIGCONT)
	eventually(t, "etcd is stopped", func() error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && !strings.Contains(string(stat), ") T ") {
			err = fmt.Errorf("state: %s", stat)
		}
		return err
	})

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := Start(ctx, Config{Dir: dir, Source: dir})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), fmt.Sprint("pid ", pid)) {
		t.Errorf("Start = %v, want the deadline and pid %d", err, pid)
	}
}

// etcd calls os.Exit when its data is damaged. It must not be our exit.
func TestDamagedData(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"member/snap/db", "member/wal/*.wal"} {
		t.Run(strings.ReplaceAll(file, "/", "_"), func(t *testing.T) {
			t.Parallel()
			dir := stateDir(t)
			start(t, dir).Close()
			found, err := filepath.Glob(filepath.Join(dataPath(dir), file))
			if err != nil || len(found) == 0 {
				t.Fatal(found, err)
			}
			if err := os.WriteFile(found[0], bytes.Repeat([]byte("damaged "), 1<<13), 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := Start(t.Context(), Config{Dir: dir, Source: dir})
			var exit *ExitError
			if !errors.As(err, &exit) || exit.Reason == "" {
				t.Fatalf("Start = %v, %v, want an *ExitError with a reason", s, err)
			}
			t.Log(err)

			if err := os.RemoveAll(dataPath(dir)); err != nil {
				t.Fatal(err)
			}
			start(t, dir)
		})
	}
}

func TestQuietWhenAllIsWell(t *testing.T) {
	dir := stateDir(t)
	var log bytes.Buffer
	for range 2 {
		s, err := Start(t.Context(), Config{Dir: dir, Source: dir, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	// What etcd itself warns of on a slow machine is none of ours.
	var ours []string
	for line := range strings.Lines(log.String()) {
		if !strings.Contains(line, "level=WARN msg=etcd ") {
			ours = append(ours, line)
		}
	}
	if len(ours) != 2 || strings.Count(strings.Join(ours, ""), "msg=\"serving ") != 2 {
		t.Errorf("two starts logged:\n%s", &log)
	}
}

func TestChildByHand(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{childName, t.TempDir()}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 {
		t.Errorf("%v: %s", err, out)
	}
}

// Two state directories, as of two users, would be two lock services for one
// SOURCE: the second is refused, and may serve when the first is gone.
func TestOneServicePerSource(t *testing.T) {
	source := t.TempDir()
	first, err := Start(t.Context(), Config{Dir: stateDir(t), Source: source})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	other := stateDir(t)
	if s, err := Start(t.Context(), Config{Dir: other, Source: source}); !errors.Is(err, ErrServedElsewhere) {
		if s != nil {
			s.Close()
		}
		t.Fatalf("a second service for one SOURCE: %v", err)
	}
	first.Close()
	second, err := Start(t.Context(), Config{Dir: other, Source: source})
	if err != nil {
		t.Fatal(err)
	}
	second.Close()
}

// An etcd that has lost its log takes the next requests for ones that its database has carried out, and
// answers none of them. Its mount says what to do.
func TestLostLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir)
	c := connect(t, s)
	for range 200 {
		holdKey(t, c)
	}
	if _, err := c.Defragment(t.Context(), s.Endpoint()); err != nil { // which writes the database
		t.Fatal(err)
	}
	s.Close()
	if err := os.RemoveAll(filepath.Join(dataPath(dir), "member", "wal")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s, err := Start(ctx, Config{Dir: dir, Source: dir})
	if err == nil {
		s.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "remove that directory") {
		t.Errorf("Start: %v", err)
	}
}
