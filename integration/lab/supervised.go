package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// steady is longer than a worker has to live to be replaced any number of times.
const steady = 2100 * time.Millisecond

// Supervised is a mount whose daemon is started again when it dies.
type Supervised struct {
	*Mount
	Takeovers int       // that the log tells of
	Views     int       // 0: one
	began     time.Time // when the worker had begun for certain
}

// Supervise returns a mount that was started with --supervise.
func Supervise(m *Mount) *Supervised { return &Supervised{Mount: m, began: time.Now()} }

// views is how many views the daemon has.
func (s *Supervised) views() int { return max(1, s.Views) }

// Worker returns the pid of the process that serves; 0: there is none now, or the shadow begins, and has
// the worker's name still.
func (s *Supervised) Worker() (worker int) {
	s.T.Helper()
	for pid, name := range Children(s.T, s.Cmd.Process.Pid) {
		if name == "lockfs-shadow" || name == "lockfs-etcd" {
			continue
		}
		if worker != 0 {
			return 0
		}
		worker = pid
	}
	return worker
}

// Serving is Worker of a daemon that has one, or will in a moment. A signal to 0 would be one to the tests themselves.
func (s *Supervised) Serving() (worker int) {
	s.T.Helper()
	Eventually(s.T, s.Name+" has a worker", func() bool {
		worker = s.Worker()
		return worker != 0
	})
	return worker
}

// Children returns the names of a process's children, except those that have ended.
func Children(t *testing.T, pid int) map[int]string {
	t.Helper()
	found := make(map[int]string)
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		list, _ := os.ReadFile(task) // the thread may have ended
		for _, word := range strings.Fields(string(list)) {
			child, _ := strconv.Atoi(word)
			command, _ := os.ReadFile("/proc/" + word + "/cmdline")
			name, err := os.ReadFile("/proc/" + word + "/comm")
			if err != nil || len(command) == 0 {
				continue
			}
			found[child] = strings.TrimSpace(string(name))
			if strings.HasPrefix(string(command), "lockfs-etcd") {
				found[child] = "lockfs-etcd"
			}
		}
	}
	return found
}

// BecomesSteady returns when a death of the worker is none at its start.
func (s *Supervised) BecomesSteady() { time.Sleep(time.Until(s.began.Add(steady))) }

// Restarted says that another worker serves by now.
func (s *Supervised) Restarted() { s.began = time.Now() }

// KillWorker kills the worker, once it is steady, and returns when another one serves.
func (s *Supervised) KillWorker() {
	s.T.Helper()
	s.BecomesSteady()
	s.Dies(func() {
		if err := unix.Kill(s.Serving(), unix.SIGKILL); err != nil {
			s.T.Fatal(err)
		}
	})
}

// Dies makes the worker die, and returns when another one serves all that it has served.
func (s *Supervised) Dies(by func()) {
	s.T.Helper()
	by()
	s.Takeovers += s.views()
	Eventually(s.T, "another worker serves "+s.Name, func() bool {
		if s.Ended() {
			s.T.Fatalf("%s has ended: %v\n%s", s.Name, s.Err, s.Log)
		}
		return strings.Count(s.Log.String(), `msg="took the mount over`) >= s.Takeovers
	})
	s.Restarted()
}
