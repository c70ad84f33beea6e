// Package integration tests lockfs as its users run it: real processes, real
// mounts, a real etcd.
package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lockfs is the program under test. It has the race detector if the tests have.
var lockfs string

// programEnv names one that is built already.
const programEnv = "LOCKFS_TEST_PROGRAM"

func TestMain(m *testing.M) {
	os.Exit(mainOf(m, role{env: actorEnv, serve: serveActor}, writerRole))
}

// role is what a test binary is in place of the tests, if an environment variable is set:
// a program of theirs.
type role struct {
	env   string
	serve func()
}

// mainOf is the main function of a test binary, which may have roles of its own. It returns
// the exit status.
func mainOf(m *testing.M, roles ...role) int {
	for _, r := range append(roles, role{agentEnv, serveAgent}, role{clientEnv, serveClient}, role{memberEnv, serveMember}, role{stagedEnv, serveStaged}) {
		if os.Getenv(r.env) != "" {
			r.serve()
			return 0
		}
	}
	defer stopServer()
	return runTests(m)
}

func runTests(m *testing.M) int {
	// Who has the tests ignore a signal, as nohup does, does not mean their programs:
	// those begin with the default for what the tests catch.
	for _, sig := range []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	// Of all that the tests start. The default is a second at each exit.
	os.Setenv("GORACE", "halt_on_error=1 atexit_sleep_ms=0")
	dir, err := os.MkdirTemp("", "lockfs-bin")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // other users run it as well
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	lockfs = filepath.Join(dir, "lockfs")
	if built := os.Getenv(programEnv); built != "" {
		lockfs = built
		return m.Run()
	}
	build := exec.Command("go", "build", "-o", lockfs, "github.com/lockfs/lockfs/cmd/lockfs")
	if raceDetector() {
		build.Args = slices.Insert(build.Args, 2, "-race")
	} else {
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is released
	}
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build lockfs:", err)
		return 1
	}
	return m.Run()
}

// raceDetector reports whether the tests were built with -race.
func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// shortTTL is for the tests that wait for a lease to end. The others keep the
// default: a machine under load may stand still for longer than this allows.
const shortTTL = 3 * time.Second

// volume is one shared directory and the state of its embedded etcd.
type volume struct {
	t      *testing.T
	dir    string // of the test
	source string
	state  string // directory of the embedded etcd's
	env    []string
	args   []string      // of each mount
	caches *clientConfig // each mount has a caching client of its own; nil: it has not
	// clients are directories of one network volume, each in a mount of a client of its
	// own, and by is which of them a mount is over.
	clients []string
	by      map[string]string
	own     map[string]*netClient // the caching backings, by the mount's name
	via     []string              // the command that runs lockfs; none if empty
}

// inMemory keeps the state of the embedded etcd where fsync costs nothing, for
// tests that take thousands of locks.
func (v *volume) inMemory() {
	v.t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "lfs")
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { os.RemoveAll(dir) })
	v.state = dir
	v.env = append(v.env, "LOCKFS_STATE_DIR="+dir)
}

// command is lockfs with the volume's environment.
func (v *volume) command(args ...string) *exec.Cmd {
	args = slices.Concat(v.via, []string{lockfs}, args)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = v.env
	return cmd
}

// mount is one lockfs process and its view.
type mount struct {
	t    *testing.T
	vol  *volume
	name string
	dir  string
	cmd  *exec.Cmd
	log  *logBuffer
	done chan struct{} // closed when the process has ended
	err  error         // then: how
}

// mount starts a lockfs process and returns when its view is there.
func (v *volume) mount(name string, args ...string) *mount {
	v.t.Helper()
	m := v.start(name, args...)
	m.appears()
	return m
}

// appears returns when the view is there.
func (m *mount) appears() {
	m.t.Helper()
	eventually(m.t, m.name+" is mounted", func() bool {
		select {
		case <-m.done:
			m.t.Fatalf("lockfs mount %s ended: %v\n%s", m.name, m.err, m.log)
		default:
		}
		return fsType(m.dir) == unix.FUSE_SUPER_MAGIC
	})
}

// start starts a lockfs process, over a client of its own if the volume has such.
func (v *volume) start(name string, args ...string) *mount {
	v.t.Helper()
	if !v.hasClients() {
		return v.startOver(v.source, name, args...)
	}
	own := []string{"--name", filepath.Base(v.source), "--endpoints", v.endpoint()}
	return v.startOver(v.client(name), name, append(own, args...)...)
}

// hasClients reports whether each mount has a client of the volume of its own.
func (v *volume) hasClients() bool { return v.caches != nil || v.clients != nil }

// startOver starts one over a directory.
func (v *volume) startOver(source, name string, args ...string) *mount {
	v.t.Helper()
	m := &mount{t: v.t, vol: v, name: name, dir: filepath.Join(v.dir, name), log: &logBuffer{}, done: make(chan struct{})}
	if err := os.Mkdir(m.dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		v.t.Fatal(err)
	}
	m.cmd = v.command(slices.Concat([]string{"mount", "--node", name}, v.args, args, []string{source, m.dir})...)
	m.cmd.Stderr = m.log
	if err := m.cmd.Start(); err != nil {
		v.t.Fatal(err)
	}
	go func() {
		m.err = m.cmd.Wait()
		close(m.done)
	}()
	v.t.Cleanup(m.cleanup)
	return m
}

// cleanup leaves nothing behind, whatever the test did, and looks for what no
// test allows.
func (m *mount) cleanup() {
	_ = m.cmd.Process.Signal(unix.SIGCONT)
	_ = m.cmd.Process.Signal(unix.SIGTERM)
	select {
	case <-m.done:
	case <-time.After(20 * time.Second):
		m.t.Errorf("%s does not end on SIGTERM", m.name)
		_ = m.cmd.Process.Signal(unix.SIGQUIT) // its log says where it hangs
		select {
		case <-m.done:
		case <-time.After(20 * time.Second):
			_ = m.cmd.Process.Kill()
			<-m.done
		}
	}
	_ = unix.Unmount(m.dir, unix.MNT_DETACH)
	if log := m.log.String(); strings.Contains(log, "DATA RACE") || strings.Contains(log, "panic") {
		m.t.Errorf("%s:\n%s", m.name, log)
	} else if m.t.Failed() {
		m.t.Logf("log of %s:\n%s", m.name, log)
	}
}

// kill ends the process with SIGKILL.
func (m *mount) kill() {
	m.t.Helper()
	_ = m.cmd.Process.Kill()
	select {
	case <-m.done:
	case <-time.After(callTimeout):
		m.t.Fatalf("%s does not die of SIGKILL", m.name)
	}
}

// stop ends the process with SIGTERM and returns its exit status.
func (m *mount) stop() int {
	m.t.Helper()
	_ = m.cmd.Process.Signal(unix.SIGTERM)
	select {
	case <-m.done:
	case <-time.After(callTimeout):
		m.t.Fatalf("%s does not end on SIGTERM", m.name)
	}
	return m.cmd.ProcessState.ExitCode()
}

func (m *mount) path(name string) string { return filepath.Join(m.dir, name) }

// entry is a line of 'lockfs ls -o json'.
type entry struct {
	Path    string `json:"path"`
	State   string `json:"state"`
	Lock    string `json:"lock"`
	Node    string `json:"node"`
	PID     int    `json:"pid"`
	Command string `json:"command"`
	Session string `json:"session"`
	Token   int64  `json:"token"`
}

// ls returns what 'lockfs ls' says of the volume.
func (v *volume) ls() []entry {
	v.t.Helper()
	return v.lsOf(v.source)
}

// lsOf returns what it says with other arguments.
func (v *volume) lsOf(args ...string) []entry {
	v.t.Helper()
	cmd := v.command(append([]string{"ls", "-o", "json"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		v.t.Fatalf("lockfs ls: %v: %s", err, &stderr)
	}
	var es []entry
	if err := json.Unmarshal(out, &es); err != nil {
		v.t.Fatalf("lockfs ls: %v: %s", err, out)
	}
	return es
}

// waiting counts the waiters for path.
func (v *volume) waiting(path string) int {
	v.t.Helper()
	n := 0
	for _, e := range v.ls() {
		if e.Path == path && e.State == "waiting" {
			n++
		}
	}
	return n
}

// read returns a file of the shared directory itself.
func (v *volume) read(name string) string {
	v.t.Helper()
	b, err := os.ReadFile(filepath.Join(v.source, name))
	if err != nil {
		v.t.Fatal(err)
	}
	return string(b)
}

// write makes a file of the shared directory itself.
func (v *volume) write(name, data string) {
	v.t.Helper()
	if err := os.WriteFile(filepath.Join(v.source, name), []byte(data), 0o644); err != nil {
		v.t.Fatal(err)
	}
}

// eventually waits for a condition that has to come true, for as long as a machine
// may take that has ten times as much to do as it has cores.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func fsType(path string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return 0
	}
	return int64(st.Type)
}

// logBuffer is a bytes.Buffer for a process that still writes to it.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// run runs a program to its end.
func run(t *testing.T, name string, args ...string) {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}
