package embedetcd

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
)

// process is an etcd process that ends with this one.
type process struct {
	pid  int
	cmd  *exec.Cmd // nil: another process has started it, and lent it to this one
	life *os.File  // the writing end of its stdin: end of file ends it
	log  *logPipe

	done   chan struct{} // closed when it has ended and its log is relayed
	reason string        // the last error it logged; read it after done
	err    error         // how it ended; read it after done
}

// spawn starts etcd on dir. It consumes source and lock, the open and locked
// SOURCE and lock file, whose only descriptors are the child's from here on.
func spawn(dir string, source, lock *os.File, logger *slog.Logger) (_ *process, err error) {
	defer source.Close()
	defer lock.Close()
	// Not os.Executable: an upgrade may have replaced the file at its path.
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{childName, dir}
	cmd.Dir = "/"
	cmd.Env = []string{} // etcd and gRPC would obey variables that are meant for others
	if race, ok := os.LookupEnv("GORACE"); ok {
		cmd.Env = append(cmd.Env, "GORACE="+race) // only the race detector obeys it
	}
	cmd.ExtraFiles = []*os.File{source, lock} // see lockFD
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, life, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("embedded lock service: %w", err)
	}
	defer stdin.Close()
	log, stderr, err := os.Pipe()
	if err != nil {
		life.Close()
		return nil, fmt.Errorf("embedded lock service: %w", err)
	}
	defer stderr.Close()
	cmd.Stdin, cmd.Stderr = stdin, stderr
	if err := cmd.Start(); err != nil {
		life.Close()
		log.Close()
		return nil, fmt.Errorf("embedded lock service: cannot start %s: %w", childName, err)
	}
	p := &process{pid: cmd.Process.Pid, cmd: cmd, life: life, log: &logPipe{f: log}, done: make(chan struct{})}
	writeHolder(lock, p.pid)
	go func() {
		defer close(p.done)
		p.reason = relay(p.log, logger)
		p.err = cmd.Wait()
	}()
	return p, nil
}

// borrowed is a process that another one has lent, by the descriptors of its life and log. It is no
// child of this process, which so learns of its end by the end of its log, and not how it ended.
func borrowed(life, log *os.File, logger *slog.Logger) *process {
	p := &process{life: life, log: &logPipe{f: log}, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.reason = relay(p.log, logger)
		log.Close()
		p.err = errEnded
	}()
	return p
}

// stop ends the process, and returns when it is reaped, or, if it is no child, has ended.
func (p *process) stop() {
	p.life.Close()
	<-p.done
}

// leave lets the process go on for another one that has its descriptors.
func (p *process) leave() {
	p.life.Close()
	p.log.leave()
}

func (p *process) exitError(dir string) error {
	if p.err == nil {
		return &ExitError{Dir: dir, Reason: p.reason, Err: errStopped}
	}
	e := &ExitError{Dir: dir, Err: p.err}
	// The log has nothing about a kill.
	if p.cmd == nil || p.cmd.ProcessState.Exited() {
		e.Reason = p.reason
	}
	return e
}
