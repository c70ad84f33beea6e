package supervise

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/journal"
)

// The test binary is its own supervisor and worker. A worker obeys the lines of its stdin, and
// answers each.
func TestMain(m *testing.M) {
	switch {
	case Self() != nil:
		runWorker()
		os.Exit(0)
	case os.Getenv("SUPERVISE_TEST") != "":
		steady, _ := time.ParseDuration(os.Getenv("SUPERVISE_TEST"))
		patience := time.Hour
		if p, err := time.ParseDuration(os.Getenv("SUPERVISE_PATIENCE")); err == nil {
			patience = p
		}
		s := &supervisor{log: slog.New(slog.NewTextHandler(os.Stderr, nil)), program: cmp.Or(os.Getenv("SUPERVISE_PROGRAM"), program), args: os.Args, env: os.Environ(), steady: steady, patience: patience, one: time.Hour}
		ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM) // as main has it
		defer cancel()
		if os.Getenv("SUPERVISE_ENDS") != "" {
			cancel()
		}
		status, err := s.run(ctx)
		if err != nil {
			fmt.Println("supervisor:", err)
			status = 99
		}
		os.Exit(status)
	}
	os.Exit(m.Run())
}

const testKind = 5

type state struct {
	Pipe int
	N    int
}

func runWorker() {
	w := Self()
	j, err := w.Journal()
	if err != nil {
		panic(err)
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGUSR1)
	var obeying sync.Mutex // a line is answered before a signal is
	go func() {
		for s := range signals {
			obeying.Lock()
			fmt.Println("signal", s)
			if s == syscall.SIGTERM {
				End()
				os.Exit(7)
			}
			obeying.Unlock()
		}
	}()
	p := j.Part("test")
	got := state{Pipe: -1}
	if f, err := w.Former("test"); err != nil {
		fmt.Println("former:", err)
	} else if f != nil {
		all, err := journal.One[state](f.Records, testKind)
		if err != nil {
			fmt.Println("records:", err)
		}
		got = all
		if got.Pipe, err = f.Get(all.Pipe); err != nil {
			fmt.Println("get:", err)
		}
	}
	fmt.Println("worker", os.Getpid(), os.Getppid(), w.Deaths, w.InARow, got.N)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		obeying.Lock()
		word, rest, _ := strings.Cut(in.Text(), " ")
		switch word {
		case "open": // a file, and a count
			f, err := os.CreateTemp("", "supervise")
			if err != nil {
				panic(err)
			}
			os.Remove(f.Name())
			got.Pipe, _ = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 100)
			got.N++
			p.Put(testKind, 0, got)
			_ = p.Complete()
			fmt.Println("opened")
		case "take": // what the former has left
			got.N++
			p.Put(testKind, 0, got)
			_ = p.Complete()
			w.Forget("test")
			fmt.Println("taken")
		case "other": // a part that no worker of the tests takes over
			other := j.Part("other")
			other.Put(testKind, 0, got)
			_ = other.Complete()
			fmt.Println("other")
		case "void": // as when another daemon has taken the part over
			p.Void()
			fmt.Println("void")
		case "write":
			_, err := unix.Write(got.Pipe, []byte(rest))
			fmt.Println("wrote", err)
		case "read":
			b := make([]byte, 100)
			n, err := unix.Pread(got.Pipe, b, 0)
			fmt.Println("read", string(b[:max(n, 0)]), err)
		case "deaf": // as before it handled signals
			signal.Reset(syscall.SIGTERM)
			fmt.Println("deaf")
		case "panic":
			panic("as asked")
		case "child": // that outlives the worker for a moment
			cmd := exec.Command("sleep", "0.05")
			fmt.Println("child", cmd.Start())
		case "end":
			status, _ := strconv.Atoi(rest)
			End()
			os.Exit(status)
		}
		obeying.Unlock()
	}
}

type run struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.Writer
	lines chan string
	log   strings.Builder // complete when the supervisor has ended
	pid   int
}

func begin(t *testing.T, steady time.Duration, env ...string) *run {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run", "^$")
	cmd.Env = append(append(os.Environ(), "SUPERVISE_TEST="+steady.String()), env...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	r := &run{t: t, cmd: cmd, in: in, lines: make(chan string, 100)}
	cmd.Stderr = io.MultiWriter(os.Stderr, &r.log)
	cmd.WaitDelay = time.Second // a worker that is left holds stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			r.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if r.pid != 0 {
			_ = unix.Kill(r.pid, unix.SIGKILL)
		}
	})
	return r
}

// hung is longer than an overloaded machine takes for anything.
const hung = 3 * time.Minute

// hears returns the next line, which must begin with words.
func (r *run) hears(words string) string {
	r.t.Helper()
	select {
	case line := <-r.lines:
		if !strings.HasPrefix(line, words) {
			r.t.Fatalf("the worker says %q, want %q", line, words)
		}
		return line
	case <-time.After(hung):
		r.t.Fatalf("the worker does not say %q", words)
	}
	return ""
}

// worker awaits the next worker.
func (r *run) worker(deaths, inARow, n int) {
	r.t.Helper()
	var parent, d, row, count int
	if _, err := fmt.Sscanf(r.hears("worker"), "worker %d %d %d %d %d", &r.pid, &parent, &d, &row, &count); err != nil {
		r.t.Fatal(err)
	}
	if parent != r.cmd.Process.Pid || d != deaths || row != inARow || count != n {
		r.t.Errorf("parent %d, deaths %d, in a row %d, count %d; want %d, %d, %d, %d", parent, d, row, count, r.cmd.Process.Pid, deaths, inARow, n)
	}
}

func (r *run) say(line string) { fmt.Fprintln(r.in, line) }

// opens has the first worker open a file.
func (r *run) opens() {
	r.t.Helper()
	r.worker(0, 0, 0)
	r.say("open")
	r.hears("opened")
}

// takes has a worker take over what the former one has left.
func (r *run) takes() {
	r.t.Helper()
	r.say("take")
	r.hears("taken")
}

func (r *run) kill() {
	r.t.Helper()
	if err := unix.Kill(r.pid, unix.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
}

func (r *run) ends(statuses ...int) {
	r.t.Helper()
	done := make(chan error, 1)
	go func() { done <- r.cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(hung):
		r.t.Fatal("the supervisor does not end")
	}
	if got := r.cmd.ProcessState.ExitCode(); !slices.Contains(statuses, got) {
		r.t.Errorf("exit status %d, want one of %d", got, statuses)
	}
	r.pid = 0
}

// children returns the pids and names of a process's children.
func children(t *testing.T, pid int) map[int]string {
	t.Helper()
	found := make(map[int]string)
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // of each thread
	if err != nil || len(lists) == 0 {
		t.Fatal(lists, err)
	}
	for _, list := range lists {
		b, _ := os.ReadFile(list) // the thread may have ended
		for _, word := range strings.Fields(string(b)) {
			child, _ := strconv.Atoi(word)
			name, _ := os.ReadFile("/proc/" + word + "/comm")
			found[child] = strings.TrimSpace(string(name))
		}
	}
	return found
}

// A worker that is killed leaves its descriptors and its records to the next one, again and again.
func TestNextWorkerGoesOn(t *testing.T) {
	r := begin(t, time.Nanosecond)
	r.opens()
	want := ""
	for n := range 5 {
		r.say(fmt.Sprintf("write %d", n))
		r.hears("wrote <nil>")
		want += strconv.Itoa(n)
		r.kill()
		r.worker(n+1, 1, n+1)
		r.takes()
		r.say("read")
		r.hears("read " + want + " <nil>")
	}
	r.say("end 3")
	r.ends(3)
}

// What a worker has not taken over before it dies is the next one's.
func TestDeathBeforeTheTakeover(t *testing.T) {
	r := begin(t, time.Nanosecond)
	r.opens()
	r.say("write x")
	r.hears("wrote <nil>")
	r.kill()
	for n := range 3 {
		r.worker(n+1, 1, 1)
		r.kill()
	}
	r.worker(4, 1, 1)
	r.takes()
	r.say("read")
	r.hears("read x <nil>")
	r.say("end 0")
	r.ends(0)
}

// What a worker has taken over, and has no more, is not taken over from the one before: another daemon
// may have it by now.
func TestTakenOverIsForgotten(t *testing.T) {
	r := begin(t, time.Nanosecond)
	r.opens()
	r.say("other") // which keeps what the first worker has left
	r.hears("other")
	r.kill()
	r.worker(1, 1, 1)
	r.takes()
	r.say("void")
	r.hears("void")
	r.kill()
	r.worker(2, 1, 0)
	r.say("end 0")
	r.ends(0)
}

// What kills a worker, such as a lack of memory, may keep the next one from being started for a moment.
func TestNextWorkerCannotBeStartedAtOnce(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "program")
	if err := os.Symlink(self, link); err != nil {
		t.Fatal(err)
	}
	r := begin(t, time.Nanosecond, "SUPERVISE_PROGRAM="+link)
	r.opens()
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	r.kill()
	time.Sleep(3 * startPause)
	if err := os.Symlink(self, link); err != nil {
		t.Fatal(err)
	}
	r.worker(1, 1, 1)
	r.takes()
	r.say("end 0")
	r.ends(0)
}

// Programs do not wait for ever for workers that die before they have taken anything over, however long
// each lives.
func TestGivesUpWhenNobodyGoesOn(t *testing.T) {
	const patience = time.Second
	r := begin(t, time.Nanosecond, "SUPERVISE_PATIENCE="+patience.String())
	r.opens()
	r.kill()
	r.worker(1, 1, 1) // after the death
	time.Sleep(patience)
	r.kill()
	r.ends(128 + int(unix.SIGKILL))
}

func TestPanicIsADeath(t *testing.T) {
	r := begin(t, time.Nanosecond)
	r.opens()
	r.say("panic")
	r.worker(1, 1, 1)
	r.say("end 0")
	r.ends(0)
}

// A worker that dies at each start is given up, with the status of its death.
func TestGivesUp(t *testing.T) {
	r := begin(t, time.Hour)
	for n := range maxDeaths {
		r.worker(n, n, n)
		if n == 0 {
			r.say("open")
			r.hears("opened")
		} else {
			r.takes()
		}
		r.kill()
	}
	r.ends(128 + int(unix.SIGKILL))
}

// A worker that cannot go on yet, because the lock service is away, is followed by another one.
func TestTriesAgain(t *testing.T) {
	r := begin(t, time.Nanosecond)
	r.opens()
	r.kill()
	r.worker(1, 1, 1)
	r.say("end 5")
	r.worker(2, 1, 1)
	r.takes()
	r.say("end 0")
	r.ends(0)
}

// After a while no other one comes: calls that are under way would wait for ever, and their programs
// could not be killed.
func TestGivesUpInTime(t *testing.T) {
	const patience = 200 * time.Millisecond
	t.Setenv("SUPERVISE_PATIENCE", patience.String())
	r := begin(t, time.Nanosecond)
	r.opens()
	r.kill()
	r.worker(1, 1, 1) // after the death
	time.Sleep(patience)
	r.say("end 5")
	r.ends(5)
}

func TestNothingLeftIsTheEnd(t *testing.T) {
	r := begin(t, time.Hour)
	r.worker(0, 0, 0)
	r.kill()
	r.ends(128 + int(unix.SIGKILL))
}

func TestSignalsArePassedOn(t *testing.T) {
	r := begin(t, time.Hour)
	r.worker(0, 0, 0)
	if err := r.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	r.hears("signal user defined signal 1")
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	r.hears("signal terminated")
	r.ends(7)
}

// A worker that is ended before it handles signals has not died.
func TestSignalBeforeTheHandler(t *testing.T) {
	r := begin(t, time.Hour)
	r.worker(0, 0, 0)
	r.say("deaf")
	r.hears("deaf")
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	r.ends(128 + int(unix.SIGTERM))
	if r.log.Len() > 0 {
		t.Errorf("log: %s", &r.log)
	}
}

// A signal to end that comes before the supervisor handles signals ends its worker, which may handle
// them yet or not.
func TestSignalBeforeTheSupervisor(t *testing.T) {
	t.Setenv("SUPERVISE_ENDS", "yes")
	begin(t, time.Hour).ends(7, 128+int(unix.SIGTERM))
}

// A signal to end that comes between a death and the takeover ends the next worker, once that has taken
// over what is to be ended. timeout(1) sends it twice.
func TestSignalBeforeTheTakeover(t *testing.T) {
	r := begin(t, time.Nanosecond)
	r.opens()
	r.kill()
	r.worker(1, 1, 1)
	for _, s := range []os.Signal{syscall.SIGTERM, syscall.SIGTERM, syscall.SIGUSR1} {
		if err := r.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		for s == syscall.SIGTERM && pending(t, r.cmd.Process.Pid, syscall.SIGTERM) {
			time.Sleep(time.Millisecond)
		}
	}
	r.hears("signal user defined signal 1")
	r.kill() // and one more death
	r.worker(2, 1, 1)
	r.say("take")
	r.hears("taken")
	r.hears("signal terminated")
	r.ends(7)
}

// pending reports whether a process has yet to handle a signal.
func pending(t *testing.T, pid int, s syscall.Signal) bool {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if mask, ok := strings.CutPrefix(line, "ShdPnd:"); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			return n&(1<<(s-1)) != 0
		}
	}
	return false
}

// After takeovers there are the worker and its shadow, and no zombie.
func TestNothingIsLeftBehind(t *testing.T) {
	r := begin(t, time.Nanosecond)
	r.opens()
	for n := range 3 {
		r.say("child")
		r.hears("child <nil>")
		r.kill()
		r.worker(n+1, 1, n+1)
		r.takes()
	}
	ctx, cancel := context.WithTimeout(context.Background(), hung)
	defer cancel()
	for {
		left := children(t, r.cmd.Process.Pid)
		own, shadows := 0, 0
		for pid, name := range left {
			switch {
			case pid == r.pid:
				own++
			case name == "lockfs-shadow":
				shadows++
			}
		}
		if len(left) == 2 && own == 1 && shadows == 1 {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the supervisor has the children %v", left)
		case <-time.After(10 * time.Millisecond):
		}
	}
	r.say("end 0")
	r.ends(0)
}

// A worker goes on without its supervisor, and leaves no shadow that would keep its files open.
func TestSupervisorIsKilled(t *testing.T) {
	r := begin(t, time.Hour)
	r.worker(0, 0, 0)
	shadow := 0
	for pid, name := range children(t, r.cmd.Process.Pid) {
		if name == "lockfs-shadow" {
			shadow = pid
		}
	}
	if shadow == 0 {
		t.Fatal("there is no shadow")
	}
	fd, err := unix.PidfdOpen(shadow, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if n, err := ignoringEINTR(func() (int, error) {
		return unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(hung.Milliseconds()))
	}); err != nil || n != 1 {
		t.Fatalf("the shadow does not end: %d, %v", n, err)
	}
	r.say("open")
	r.hears("opened")
	r.say("end 0")
	for range r.lines {
	}
	r.pid = 0
}
