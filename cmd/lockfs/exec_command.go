package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/boottime"
	"github.com/lockfs/lockfs/internal/procid"
	"github.com/lockfs/lockfs/lockmgr"
)

// command is a program that runs while a lock is held, and no longer: not when
// the lock service is away, nor when we are stopped, or killed.
//
//	renewed                  grace      deadline      grace       lease may end
//	   ├─────────────────────────┼───────────┼───────────┼────────────────┤
//	                          SIGTERM     SIGKILL   the kernel kills us, if we
//	                                                did not, and so the command
//
// It stays in our process group, so that a terminal's signals and job control
// reach it as they reach each command of a pipeline. To end it with all that it
// has started we are the subreaper: what is orphaned becomes our child.
type command struct {
	program   string
	argv, env []string
	hold      *lockmgr.Hold
	grace     time.Duration // half of the margin of renew.Config

	ended  chan struct{} // closed when the command, and all that had to end with it, has ended
	ending atomic.Bool   // everything has to end; set before the first signal
}

// lookEvery is how often the lock is checked: two loads and a clock reading.
const lookEvery = 50 * time.Millisecond

// run returns the command's exit status, the hold's error if the lock was lost before that, or the
// error of starting the command.
func (c *command) run(signals <-chan os.Signal) (status int, err error) {
	// The death signal of the command is bound to this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("become a subreaper: %w", err)
	}
	timer, err := newDeadman()
	if err != nil {
		return 0, err
	}
	defer timer.stop()
	timer.set(c.hold.Deadline().Add(c.grace))
	c.ended = make(chan struct{})
	c.hold.OnLost(func() { <-c.ended }) // a broken lock is not handed on before that
	pid, pidfd := 0, -1
	if err = c.hold.Check(); err == nil {
		pid, err = syscall.ForkExec(c.program, c.argv, &syscall.ProcAttr{
			Env: c.env, Files: []uintptr{0, 1, 2},
			Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, PidFD: &pidfd},
		})
		if err != nil {
			err = &os.PathError{Op: "exec", Path: c.program, Err: err}
		}
	}
	if err != nil {
		close(c.ended)
		return 0, err
	}
	defer unix.Close(pidfd)
	watched := make(chan error, 1)
	go func() { watched <- c.watch(timer) }()
	forwarded := make(chan struct{})
	go func() {
		defer close(forwarded)
		c.forward(signals, pidfd)
	}()
	status = c.reap(pid)
	close(c.ended)
	<-forwarded
	return status, <-watched
}

// reap waits until process pid has ended, and all others if they have to end by then.
func (c *command) reap(pid int) (status int) {
	for over := false; ; {
		var ws unix.WaitStatus
		switch p, err := unix.Wait4(-1, &ws, 0, nil); {
		case err == unix.EINTR:
			continue
		case err != nil: // ECHILD: none is left
			return status
		case p == pid && ws.Signaled():
			status, over = exitSignal+int(ws.Signal()), true
		case p == pid:
			status, over = ws.ExitStatus(), true
		}
		if over && !c.ending.Load() {
			return status
		}
	}
}

// watch ends the command when its lock is or may soon be lost; nil: it ended under the lock.
func (c *command) watch(timer *deadman) (lost error) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var kill boottime.Instant
	for {
		select {
		case <-c.ended:
			if lost == nil {
				lost = c.hold.Check()
			}
			return lost
		case <-tick.C:
		}
		now := boottime.System{}.Now()
		if lost == nil {
			if lost = c.look(now); lost == nil {
				timer.set(c.hold.Deadline().Add(c.grace))
				continue
			}
			kill = now
			if errors.Is(lost, lockmgr.ErrBroken) || errors.Is(lost, lockmgr.ErrSuspended) {
				kill = now.Add(c.grace) // no other owner has the lock before
			}
			c.ending.Store(true)
			signalAll(unix.SIGTERM)
		}
		if now >= min(kill, c.hold.Deadline()) {
			signalAll(unix.SIGKILL) // repeated, to reach processes that were being forked
			timer.stop()
		}
	}
}

func (c *command) look(now boottime.Instant) error {
	if err := c.hold.Check(); err != nil {
		return err
	}
	if now >= c.hold.Deadline().Add(-c.grace) {
		return fmt.Errorf("%w: the lock service does not answer", lockmgr.ErrSuspended)
	}
	return nil
}

func signalAll(sig unix.Signal) {
	pids, err := procid.Proc{}.Descendants(os.Getpid())
	if err != nil {
		report(fmt.Errorf("cannot find the processes to end: %w", err))
	}
	for _, pid := range pids {
		_ = unix.Kill(pid, sig) // it may have ended
	}
}

// passedOn are the signals that are meant for the command.
func passedOn() []os.Signal {
	var signals []os.Signal
	for _, sig := range []os.Signal{unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2} {
		if !signal.Ignored(sig) { // nohup, or a shell's background job: the command ignores it too
			signals = append(signals, sig)
		}
	}
	return signals
}

// forward passes signals on, except a terminal's, which the whole foreground group gets.
func (c *command) forward(signals <-chan os.Signal, pidfd int) {
	for {
		select {
		case sig := <-signals:
			if (sig == unix.SIGINT || sig == unix.SIGQUIT) && inForeground() {
				continue
			}
			_ = unix.PidfdSendSignal(pidfd, sig.(unix.Signal), nil, 0) // it may have ended
		case <-c.ended:
			return
		}
	}
}

// inForeground reports whether the terminal's keys send signals to us.
func inForeground() bool {
	tty, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer unix.Close(tty)
	group, err := unix.IoctlGetInt(tty, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
