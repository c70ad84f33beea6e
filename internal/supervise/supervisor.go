package supervise

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/journal"
)

const (
	// steadyAfter is how long a worker lives if it is not what kills it that its start brings back.
	steadyAfter = 2 * time.Second
	// maxDeaths in a row, each but the first sooner than steadyAfter, and the supervisor gives up.
	maxDeaths = 3
	// oneSignal is how long signals to end count as the first one. That comes by ctx and as a signal, and
	// timeout(1) sends each twice.
	oneSignal = time.Second
	// startPause is between two tries to start a worker.
	startPause = 100 * time.Millisecond
	// program is this one. Not os.Executable: an upgrade may have replaced the file at its path.
	program = "/proc/self/exe"
)

// supervisor starts workers, one after the other.
type supervisor struct {
	log      *slog.Logger
	program  string
	args     []string
	env      []string
	steady   time.Duration
	patience time.Duration
	one      time.Duration // oneSignal
	since    time.Time     // when the worker died for which another one has still to go on
	signals  chan os.Signal
	ended    chan ended     // children of this process
	formers  []remains      // of dead workers, the oldest first
	ending   syscall.Signal // the last signal to end that came; 0: none
	asked    time.Time      // when the first one came
	deaths   int
	inARow   int
	lastText string
}

type ended struct {
	pid    int
	status unix.WaitStatus
}

// remains are what a worker leaves.
type remains struct {
	journal *os.File
	shadow  *os.File // pidfd
	forgot  []string // marks of the parts that a later worker has taken over
}

func (r remains) kill() {
	if r.shadow != nil {
		_ = unix.PidfdSendSignal(int(r.shadow.Fd()), unix.SIGKILL, nil, 0)
		r.shadow.Close()
	}
	r.journal.Close()
}

// worker is a worker that runs.
type worker struct {
	pid       int
	began     time.Time
	left      remains
	said      chan string // its lines
	shadowPID int         // 0: there is none
	pipe      *os.File    // by which it says them
	ends      bool        // it has said so
}

// over is what the supervisor itself puts behind a dead worker's lines: the shadow has the pipe too,
// so that does not end.
const over = "over"

// Run starts this program again, with the same arguments, and again whenever that dies. It passes
// signals on, and returns the exit status of the last worker. ctx ends by a signal that comes before
// that, and is as SIGTERM. It must be called in main's goroutine, before there are children. Nothing of
// this process's is left to a worker.
func Run(ctx context.Context, log *slog.Logger) (status int, err error) {
	return (&supervisor{log: log, program: program, args: os.Args, env: os.Environ(), steady: steadyAfter, patience: keepTime, one: oneSignal}).run(ctx)
}

func (s *supervisor) run(ctx context.Context) (status int, err error) {
	// A shadow ends with the thread that has started its worker.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// What a dead worker has started, an etcd, is reaped here.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("supervisor: %w", err)
	}
	s.signals = make(chan os.Signal, 16)
	passed := []os.Signal{syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGHUP} {
		if !signal.Ignored(sig) {
			passed = append(passed, sig)
		}
	}
	signal.Notify(s.signals, passed...)
	defer signal.Stop(s.signals)
	s.ended = make(chan ended)
	defer func() {
		for _, f := range s.formers {
			f.kill()
		}
	}()
	reaping := false
	for {
		w, err := s.startInTime()
		if err != nil {
			return 0, fmt.Errorf("supervisor: %w", err)
		}
		if !reaping { // from now on there is always a child
			reaping = true
			go s.reap()
		}
		how := s.watch(ctx, w)
		if s.isOver(w, how) {
			return exitStatus(how), nil
		}
	}
}

// startInTime starts a worker. If another one has died, that is tried again for a while: what has killed
// it, such as a lack of memory, may still keep the machine from starting a process.
func (s *supervisor) startInTime() (*worker, error) {
	w, err := s.start()
	if err != nil && len(s.formers) > 0 {
		s.log.Error("no worker can be started; it is tried again", slog.Any("error", err))
	}
	for err != nil && len(s.formers) > 0 && time.Since(s.since) < s.patience {
		time.Sleep(startPause)
		w, err = s.start()
	}
	return w, err
}

// start starts a worker.
func (s *supervisor) start() (_ *worker, err error) {
	w := &worker{said: make(chan string)}
	if w.left.journal, err = journal.Create(); err != nil {
		return nil, err
	}
	hears, says, err := os.Pipe()
	if err != nil {
		w.left.journal.Close()
		return nil, err
	}
	w.pipe = says
	forgot := make([][]string, len(s.formers))
	for i, f := range s.formers {
		forgot[i] = f.forgot
	}
	value, err := json.Marshal(start{len(s.formers), forgot, s.deaths, s.inARow, s.lastText})
	if err == nil {
		cmd := exec.Command(s.program, s.args[1:]...)
		cmd.Args[0] = s.args[0]
		cmd.Env = append(s.env, variable+"="+string(value))
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.ExtraFiles = []*os.File{w.left.journal, says}
		for _, f := range s.formers {
			cmd.ExtraFiles = append(cmd.ExtraFiles, f.journal, f.shadow)
		}
		// Its own group: a terminal's signals come here, and are passed on once.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err = cmd.Start(); err == nil {
			w.pid = cmd.Process.Pid
			_ = cmd.Process.Release() // it is waited for with all others
		}
	}
	if err != nil {
		w.left.journal.Close()
		hears.Close()
		says.Close()
		return nil, err
	}
	w.began = time.Now()
	go func() {
		defer hears.Close()
		for lines := bufio.NewScanner(hears); lines.Scan(); {
			line := strings.TrimSpace(lines.Text())
			if w.said <- line; line == over {
				return
			}
		}
	}()
	return w, nil
}

// reap waits for all children.
func (s *supervisor) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil { // no child: one is about to be started
			time.Sleep(time.Millisecond)
			continue
		}
		s.ended <- ended{pid, status}
	}
}

// watch returns how the worker has ended.
func (s *supervisor) watch(ctx context.Context, w *worker) unix.WaitStatus {
	var how unix.WaitStatus
	for {
		var asked <-chan struct{}
		if s.ending == 0 {
			asked = ctx.Done()
		}
		select {
		case <-asked:
			s.pass(w, syscall.SIGTERM)
		case line := <-w.said:
			if line == over {
				return how
			}
			s.hear(w, line)
		case sig := <-s.signals:
			s.pass(w, sig.(syscall.Signal))
		case e := <-s.ended:
			if e.pid == w.pid {
				how = e.status
				_, _ = w.pipe.WriteString(over + "\n") // behind all that it has said
				w.pipe.Close()
			} else if e.pid == w.shadowPID {
				s.log.Error("the worker's shadow has ended: if the worker dies too, programs lose their open files. Restart the daemon when that disturbs them least")
			}
		}
	}
}

// pass passes a signal on to the worker. What a dead worker has left can only be ended by who has taken
// it over, so one that ends waits for sayFree.
func (s *supervisor) pass(w *worker, sig syscall.Signal) {
	if sig == syscall.SIGTERM || sig == syscall.SIGINT || sig == syscall.SIGHUP {
		first := s.ending == 0
		if first {
			s.asked = time.Now()
		} else if time.Since(s.asked) < s.one {
			return
		}
		s.ending = sig
		if first && len(s.formers) > 0 {
			return
		}
	}
	_ = unix.Kill(w.pid, sig)
}

func (s *supervisor) hear(w *worker, line string) {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case sayShadow:
		pid, err := strconv.Atoi(rest)
		if err != nil {
			return
		}
		fd, err := unix.PidfdOpen(pid, 0) // our child: its pid is not another's
		if err != nil {
			s.log.Error("a worker's shadow is not found: if the worker dies, programs lose their open files", slog.Any("error", err))
			return
		}
		w.left.shadow, w.shadowPID = os.NewFile(uintptr(fd), "shadow"), pid
	case sayForgot:
		for i := range s.formers {
			s.formers[i].forgot = append(s.formers[i].forgot, rest)
		}
	case sayFree:
		for _, f := range s.formers {
			f.kill()
		}
		s.formers = nil
		if s.ending != 0 {
			_ = unix.Kill(w.pid, s.ending)
		}
	case sayEnd:
		w.ends = true
	}
}

// isOver reports whether the worker is the last one. Otherwise its remains are the next one's.
func (s *supervisor) isOver(w *worker, how unix.WaitStatus) bool {
	if w.ends && (how.ExitStatus() == 0 || len(s.formers) == 0 || s.ending != 0) {
		w.left.kill()
		return true
	}
	lived := time.Since(w.began)
	s.deaths++
	if s.inARow++; lived >= s.steady {
		s.inARow = 1
	}
	if len(s.formers) == 0 {
		s.since = time.Now()
	}
	s.lastText = describe(how)
	log := s.log.With(slog.Int("pid", w.pid), slog.String("how", s.lastText), slog.Duration("after", lived), slog.Int("deaths", s.deaths))
	left := w.left.shadow != nil && journal.HasParts(w.left.journal)
	if left {
		s.formers = append(s.formers, w.left)
	} else {
		w.left.kill()
	}
	switch {
	case len(s.formers) == 0 && how.Signal() == s.ending:
		return true // as asked, before it could handle signals
	case len(s.formers) == 0:
		log.Error("the worker has died, and has left nothing that another could go on with")
		return true
	case (w.ends || !left) && time.Since(s.since) >= s.patience:
		// A program whose call is under way cannot even be killed meanwhile.
		log.Error("no worker could go on in time; open files fail from now on", slog.Duration("since", time.Since(s.since)))
		return true
	case s.inARow >= maxDeaths:
		log.Error("the worker has died too often; open files fail from now on", slog.Int("in_a_row", s.inARow))
		return true
	}
	log.Error("the worker has died; another one goes on")
	return false
}

func describe(how unix.WaitStatus) string {
	if how.Signaled() {
		return "signal: " + how.Signal().String()
	}
	return "exit status " + strconv.Itoa(how.ExitStatus())
}

func exitStatus(how unix.WaitStatus) int {
	if how.Signaled() {
		return 128 + int(how.Signal())
	}
	return how.ExitStatus()
}
