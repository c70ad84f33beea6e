package lab

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// ShortTTL is for tests that wait for a lease to end. A machine under load may stand still for
// longer.
const ShortTTL = 3 * time.Second

// Mount is one lockfs process and its view.
type Mount struct {
	T    *testing.T
	Vol  *Volume
	Name string
	Dir  string
	Cmd  *exec.Cmd
	Log  *LogBuffer
	Done chan struct{} // closed when the process has ended
	Err  error         // then: how
}

// Mount starts a lockfs process and returns when its view is there.
func (v *Volume) Mount(name string, args ...string) *Mount {
	v.T.Helper()
	return v.mounted(func() *Mount { return v.Start(name, args...) })
}

// mounted starts a mount, and again if starting takes longer than lockfs waits (serve.StartTimeout),
// as systemd would: the machine may be that slow.
func (v *Volume) mounted(start func() *Mount) *Mount {
	v.T.Helper()
	for range 5 {
		m := start()
		if m.appears() {
			return m
		}
		v.T.Logf("%s is started again", m.Name)
	}
	v.T.Fatal("no mount starts in time")
	return nil
}

// appears returns true when the view is there, or false if the mount did not start in time.
func (m *Mount) appears() bool {
	m.T.Helper()
	slow := false
	Eventually(m.T, m.Name+" is mounted", func() bool {
		select {
		case <-m.Done:
			if slow = m.WasTooSlow(); !slow {
				m.T.Fatalf("lockfs mount %s ended: %v\n%s", m.Name, m.Err, m.Log)
			}
		default:
		}
		return slow || FSType(m.Dir) == unix.FUSE_SUPER_MAGIC
	})
	return !slow
}

// WasTooSlow reports whether the mount has ended because starting took longer than lockfs waits.
func (m *Mount) WasTooSlow() bool {
	return m.Ended() && strings.Contains(m.Log.String(), "context deadline exceeded")
}

// Start starts a lockfs process, over a client of its own if the volume has such.
func (v *Volume) Start(name string, args ...string) *Mount {
	v.T.Helper()
	if !v.HasClients() {
		return v.startOver(v.Source, name, args...)
	}
	own := []string{"--name", filepath.Base(v.Source), "--endpoints", v.Endpoint()}
	return v.startOver(v.Client(name), name, append(own, args...)...)
}

func (v *Volume) startOver(source, name string, args ...string) *Mount {
	v.T.Helper()
	m := &Mount{T: v.T, Vol: v, Name: name, Dir: filepath.Join(v.Dir, name), Log: &LogBuffer{}, Done: make(chan struct{})}
	if err := os.Mkdir(m.Dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		v.T.Fatal(err)
	}
	m.Cmd = v.Command(slices.Concat([]string{"mount", "--node", name}, v.Args, args, []string{source, m.Dir})...)
	m.Cmd.Stderr = m.Log
	if err := m.Cmd.Start(); err != nil {
		v.T.Fatal(err)
	}
	go func() {
		m.Err = m.Cmd.Wait()
		close(m.Done)
	}()
	v.T.Cleanup(m.Cleanup)
	v.mu.Lock()
	v.started = append(v.started, m)
	v.mu.Unlock()
	return m
}

// EndWithStacks ends all mounts. The log of each says what its goroutines did.
func (v *Volume) EndWithStacks() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, m := range v.started {
		m.endWithStacks()
	}
}

func (m *Mount) endWithStacks() {
	if !m.ends(unix.SIGQUIT) {
		_ = m.Cmd.Process.Kill()
		<-m.Done
	}
}

// ends reports whether the process has ended by a signal in time.
func (m *Mount) ends(by os.Signal) bool {
	_ = m.Cmd.Process.Signal(unix.SIGCONT)
	_ = m.Cmd.Process.Signal(by)
	select {
	case <-m.Done:
		return true
	case <-time.After(CallTimeout):
		return false
	}
}

// Cleanup leaves nothing behind, and looks for what no test allows.
func (m *Mount) Cleanup() {
	if !m.ends(unix.SIGTERM) {
		m.T.Errorf("%s does not end on SIGTERM", m.Name)
		m.endWithStacks()
	}
	_ = unix.Unmount(m.Dir, unix.MNT_DETACH)
	if log := m.Log.String(); strings.Contains(log, "DATA RACE") || strings.Contains(log, "panic") {
		m.T.Errorf("%s:\n%s", m.Name, log)
	} else if m.T.Failed() {
		m.T.Logf("log of %s:\n%s", m.Name, log)
	}
}

// Ended reports whether the process has ended.
func (m *Mount) Ended() bool {
	select {
	case <-m.Done:
		return true
	default:
		return false
	}
}

// Kill ends the process with SIGKILL.
func (m *Mount) Kill() {
	m.T.Helper()
	_ = m.Cmd.Process.Kill()
	select {
	case <-m.Done:
	case <-time.After(CallTimeout):
		m.T.Fatalf("%s does not die of SIGKILL", m.Name)
	}
}

// Stop ends the process with SIGTERM and returns its exit status.
func (m *Mount) Stop() int {
	m.T.Helper()
	_ = m.Cmd.Process.Signal(unix.SIGTERM)
	select {
	case <-m.Done:
	case <-time.After(CallTimeout):
		m.T.Fatalf("%s does not end on SIGTERM", m.Name)
	}
	return m.Cmd.ProcessState.ExitCode()
}

func (m *Mount) Path(name string) string { return filepath.Join(m.Dir, name) }

func FSType(path string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return 0
	}
	return int64(st.Type)
}

// LogBuffer is a bytes.Buffer for a process that still writes to it.
type LogBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *LogBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *LogBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Refused starts a mount which must not come to be, and returns when it has ended. One that was too
// slow to be refused is started again.
func (v *Volume) Refused(args ...string) (m *Mount) {
	v.T.Helper()
	for range 5 {
		if m = v.refused(args...); !m.WasTooSlow() {
			break
		}
		v.T.Log("it was too slow to be refused, and is started again")
	}
	return m
}

func (v *Volume) refused(args ...string) *Mount {
	v.T.Helper()
	m := v.Start("refused", args...)
	Eventually(v.T, "it is mounted or refused", func() bool {
		select {
		case <-m.Done:
			return true
		default:
			return FSType(m.Dir) == unix.FUSE_SUPER_MAGIC
		}
	})
	if FSType(m.Dir) == unix.FUSE_SUPER_MAGIC {
		v.T.Fatalf("it is mounted, with %q", args)
	}
	<-m.Done
	return m
}

func (m *Mount) Said(message string) bool { return strings.Contains(m.Log.String(), `msg="`+message) }

// IsSuspended reports whether its one session is now: a slow machine may have suspended it before.
func (m *Mount) IsSuspended() bool {
	log := m.Log.String()
	return strings.LastIndex(log, `msg="lock session suspended`) > strings.LastIndex(log, `msg="lock session resumed`)
}

// MustBeDead fails the test if the view is served. The kernel answers for a dead view too, for a
// second after anybody has looked at its root: it is told to ask the daemon.
func (m *Mount) MustBeDead() {
	m.T.Helper()
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, m.Dir, unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &st)
	if err != unix.ENOTCONN && err != unix.ECONNABORTED {
		m.T.Errorf("a dead view answers %v", err)
	}
}

func (m *Mount) LostItsSession() bool { return strings.Contains(m.Log.String(), "lock session lost") }

// Keeps returns true when a call waits for a lock of the mount, as waits says. false: the call has returned,
// and the mount has lost its session, or the lock service was slow.
func (m *Mount) Keeps(waiter <-chan Result, waits func() bool) bool {
	m.T.Helper()
	Eventually(m.T, "a call waits for a lock of "+m.Name, func() bool { return len(waiter) > 0 || waits() })
	if len(waiter) == 0 {
		return true
	}
	if r := <-waiter; r.Errno != unix.ENOLCK {
		Eventually(m.T, m.Name+" has lost its session", m.LostItsSession)
	}
	return false
}
