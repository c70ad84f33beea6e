package lab

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab/agent"
)

// An agent is an ordinary program under remote control: a process and owner that makes system
// calls.

type (
	Call   = agent.Call
	Result = agent.Result
)

// Opened is, in a call of repeat, the descriptor last opened in its round; Opened-1 the one before.
const Opened = agent.Opened

// ProcFD is a path of an agent's own descriptor.
func ProcFD(fd int) string { return agent.ProcFD(fd) }

// Agent is the test's end of one.
type Agent struct {
	T   *testing.T
	Cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

// NewAgent starts a program. It is killed at the end of the test.
func NewAgent(t *testing.T) *Agent {
	t.Helper()
	return NewAgentBy(t, os.Args[0])
}

// NewAgentBy starts one by a command that becomes it.
func NewAgentBy(t *testing.T, command ...string) *Agent {
	t.Helper()
	cmd, in, out := StartProgram(t, agent.Env, command...)
	a := &Agent{T: t, Cmd: cmd, in: in, out: json.NewDecoder(out)}
	if err := a.out.Decode(new(Result)); err != nil {
		t.Fatal("agent: ", err)
	}
	return a
}

// StartProgram starts a command in the role of env. It is killed at the end of the test.
func StartProgram(t *testing.T, env string, command ...string) (*exec.Cmd, io.WriteCloser, io.Reader) {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	// Without the runtime's own signals the only ones are those of the test.
	cmd.Env = append(os.Environ(), env+"=1", "GODEBUG=asyncpreemptoff=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, in, out
}

func (a *Agent) PID() int { return a.Cmd.Process.Pid }

// Kill ends the program with SIGKILL and waits until it is gone.
func (a *Agent) Kill() {
	_ = a.Cmd.Process.Kill()
	_ = a.Cmd.Wait()
}

// Start begins a call. The channel gets its result, or is closed if the agent dies.
func (a *Agent) Start(c Call) <-chan Result {
	a.T.Helper()
	if err := json.NewEncoder(a.in).Encode(c); err != nil {
		a.T.Fatalf("agent: %v", err)
	}
	ch := make(chan Result, 1)
	go func() {
		defer close(ch)
		var r Result
		if a.out.Decode(&r) == nil {
			ch <- r
		}
	}()
	return ch
}

// StartUntil begins a call that takes a lock, and returns when it has come so far. One that gets ENOLCK, as in
// InTime, begins again.
func (a *Agent) StartUntil(c Call, what string, far func() bool) <-chan Result {
	a.T.Helper()
	pending := a.Start(c)
	Eventually(a.T, what, func() bool {
		select {
		case r := <-pending:
			if r.Errno != unix.ENOLCK {
				a.T.Fatalf("%s %s has ended: %v", c.Op, c.Path, r.Err())
			}
			pending = a.Start(c)
		default:
		}
		return far()
	})
	return pending
}

// CallTimeout is when a call counts as hung. Nothing takes as long, on an overloaded machine either.
var CallTimeout = traits.Keeps + 3*time.Minute

// Await returns what comes by a channel, such as that of Start.
func Await[T any](t *testing.T, what string, ch <-chan T) (r T) {
	t.Helper()
	select {
	case r, ok := <-ch:
		if !ok {
			t.Fatalf("%s: the agent died", what)
		}
		return r
	case <-time.After(CallTimeout):
		t.Fatalf("%s: hangs", what)
	}
	return r
}

func (a *Agent) Do(c Call) Result {
	a.T.Helper()
	return Await(a.T, c.Op+" "+c.Path, a.Start(c))
}

// Repeat makes calls n times, a few rounds within each CallTimeout, and returns what failed.
func (a *Agent) Repeat(n int, calls ...Call) (failed map[string]int) {
	a.T.Helper()
	const most = 10
	failed = make(map[string]int)
	for ; n > 0; n -= most {
		r := a.Do(Call{Op: "repeat", N: min(n, most), Calls: calls})
		for what, times := range r.Failed {
			failed[what] += times
		}
	}
	return failed
}

// Must makes a call that has to succeed, and returns its number.
func (a *Agent) Must(c Call) int {
	a.T.Helper()
	r := a.InTime(c)
	if r.Errno != 0 {
		a.T.Fatalf("%s %s: %v", c.Op, c.Path, r.Errno)
	}
	return r.N
}

// ofOpenFiles are calls that go by the lock of an open file. They never get ENOLCK.
var ofOpenFiles = []string{
	"write", "write through", "write at end", "pwrite", "copy", "copy to", "ftruncate", "fallocate", "fsync", "msync", "close",
}

// InTime makes a call. One that takes a lock gets ENOLCK if the lock service does not answer in time,
// as on a busy machine: one that only tries gets it after an eighth of the TTL. That comes ahead of
// any change, says nothing of the locks, and the call is made again. So is one that was Forgotten.
func (a *Agent) InTime(c Call) (r Result) {
	a.T.Helper()
	Eventually(a.T, "the lock service and the machine are in time", func() bool {
		began := time.Now()
		r = a.Do(c)
		return r.Errno != unix.ENOLCK && !Forgotten(r, began) || slices.Contains(ofOpenFiles, c.Op)
	})
	return r
}

// Forgotten reports whether a call may have got ESTALE because the machine is slow. A view that has
// sent a call to look its names up again remembers that for a second.
func Forgotten(r Result, began time.Time) bool {
	return r.Errno == unix.ESTALE && time.Since(began) >= time.Second
}

// OnceFree makes a call that has to succeed, and returns its number. EBUSY is not the last word: a
// lock may be given up a while after close has returned.
func (a *Agent) OnceFree(c Call) int {
	a.T.Helper()
	var r Result
	Eventually(a.T, c.Op+" "+c.Path+": nobody is in the way", func() bool {
		r = a.InTime(c)
		return r.Errno != unix.EBUSY
	})
	if r.Errno != 0 {
		a.T.Fatalf("%s %s: %v", c.Op, c.Path, r.Errno)
	}
	return r.N
}

// Rounds makes calls n times, and none may fail. A round is made again in which one got ENOLCK, was
// Forgotten, or got EBUSY if the round took as long as patience; zero: EBUSY is always wrong.
func (a *Agent) Rounds(n int, patience time.Duration, calls ...Call) {
	a.T.Helper()
	for range n {
		Eventually(a.T, "a round is in time", func() bool {
			began := time.Now()
			failed := a.Repeat(1, calls...)
			slow := patience > 0 && time.Since(began) >= patience
			for what := range failed {
				if strings.HasSuffix(what, " ENOLCK") || strings.HasSuffix(what, " ESTALE late") || slow && strings.HasSuffix(what, " EBUSY") {
					return false
				}
			}
			if len(failed) > 0 {
				a.T.Fatalf("failed: %v", failed)
			}
			return true
		})
	}
}

// Fails makes a call that has to fail with want.
func (a *Agent) Fails(c Call, want syscall.Errno) {
	a.T.Helper()
	do := a.InTime
	if want == unix.ENOLCK || want == unix.ESTALE {
		do = a.Do
	}
	if r := do(c); r.Errno != want {
		a.T.Fatalf("%s %s: got %v, want %v", c.Op, c.Path, r.Err(), want)
	}
}

func (a *Agent) Open(path string, flags int) int {
	a.T.Helper()
	return a.Must(Call{Op: "open", Path: path, Flags: flags})
}

// Interrupt signals until the pending call returns: a signal before the call does not count.
func (a *Agent) Interrupt(pending <-chan Result) Result {
	a.T.Helper()
	for deadline := time.Now().Add(CallTimeout); time.Now().Before(deadline); {
		a.Signal()
		select {
		case r, ok := <-pending:
			if !ok {
				a.T.Fatal("the agent died of a signal it catches")
			}
			return r
		case <-time.After(20 * time.Millisecond):
		}
	}
	a.T.Fatal("a signal does not interrupt the call")
	return Result{}
}

// Signal sends a caught signal to each thread of the agent.
func (a *Agent) Signal() {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", a.PID()))
	if err != nil {
		a.T.Error(err)
	}
	for _, task := range tasks {
		if tid, err := strconv.Atoi(task.Name()); err == nil {
			_ = unix.Tgkill(a.PID(), tid, unix.SIGUSR1)
		}
	}
}

// Within reports whether one of the agent's threads is in a system call.
func (a *Agent) Within(number int) bool {
	a.T.Helper()
	return IsWithin(a.T, a.PID(), number)
}

// IsWithin reports whether a thread of a process is in a system call.
func IsWithin(t *testing.T, pid, number int) bool {
	t.Helper()
	found, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range found {
		b, _ := os.ReadFile(name)
		if strings.HasPrefix(string(b), strconv.Itoa(number)+" ") {
			return true
		}
	}
	return false
}

// Sees opens name as a reader and compares all it can see with want.
func (a *Agent) Sees(path, want string) {
	a.T.Helper()
	fd := a.Open(path, unix.O_RDONLY)
	if got := a.Do(Call{Op: "pread", FD: fd, N: 4096}); got.Data != want {
		a.T.Errorf("read gives %.60q (%d bytes, %v), want %.60q (%d)", got.Data, got.N, got.Err(), want, len(want))
	}
	a.Must(Call{Op: "close", FD: fd})
	fd = a.Open(path, unix.O_RDONLY)
	if size := a.Must(Call{Op: "size", FD: fd}); size != len(want) {
		a.T.Errorf("fstat says %d bytes, want %d", size, len(want))
	}
	a.Must(Call{Op: "close", FD: fd})
	fd = a.Open(path, unix.O_RDONLY)
	if end := a.Must(Call{Op: "seek", FD: fd, Flags: unix.SEEK_END}); end != len(want) {
		a.T.Errorf("the end is at %d, want %d", end, len(want))
	}
	a.Must(Call{Op: "close", FD: fd})
}

// Token is the fencing token of the lock that an open file has.
func (a *Agent) Token(fd int) int64 {
	a.T.Helper()
	buf := make([]byte, 64)
	var n int
	var err error
	Eventually(a.T, "the lock service answers in time", func() bool {
		n, err = unix.Getxattr("/proc/"+strconv.Itoa(a.PID())+"/fd/"+strconv.Itoa(fd), "user.lockfs.token", buf)
		return err != unix.ENOLCK
	})
	if err != nil {
		a.T.Fatal(err)
	}
	token, err := strconv.ParseInt(string(buf[:n]), 10, 64)
	if err != nil {
		a.T.Fatal(err)
	}
	return token
}
