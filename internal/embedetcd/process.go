package embedetcd

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
)

type process struct {
	cmd  *exec.Cmd
	life io.Closer // its stdin: end of file ends it

	done   chan struct{} // closed when it is reaped and its log relayed
	reason string        // the last error it logged; read it after done
	err    error         // of exec.Cmd.Wait; read it after done
}

// spawn starts etcd on dir. It consumes source and lock, the open and locked
// SOURCE and lock file, whose only descriptors are the child's from here on.
func spawn(dir string, source, lock *os.File, logger *slog.Logger) (*process, error) {
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
	life, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("embedded lock service: %w", err)
	}
	log, err := cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("embedded lock service: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("embedded lock service: cannot start %s: %w", childName, err)
	}
	p := &process{cmd: cmd, life: life, done: make(chan struct{})}
	writeHolder(lock, cmd.Process.Pid)
	go func() {
		defer close(p.done)
		p.reason = relay(log, logger)
		p.err = cmd.Wait()
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// stop ends the process and returns when it is reaped.
func (p *process) stop() {
	p.life.Close()
	<-p.done
}

func (p *process) exitError(dir string) error {
	if p.err == nil {
		return &ExitError{Dir: dir, Reason: p.reason, Err: errStopped}
	}
	e := &ExitError{Dir: dir, Err: p.err}
	// The log has nothing about a kill.
	if p.cmd.ProcessState.Exited() {
		e.Reason = p.reason
	}
	return e
}
