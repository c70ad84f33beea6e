package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lab is what a kind brings its volume up with. It runs inside.
type lab struct {
	config
	dir      string // in memory, the lab's own
	cleanups []func()
	faults   map[string]func() (answer string, err error)
}

// recommended says whether the volume is to have the options that lockfs recommends.
func (l *lab) recommended() bool { return l.Options == optionsRecommended }

// cleanup has f called at the end, the last first. What ends with the namespaces needs
// none: processes, mounts, files in memory.
func (l *lab) cleanup(f func()) { l.cleanups = append(l.cleanups, f) }

func (l *lab) close() {
	for _, f := range slices.Backward(l.cleanups) {
		f()
	}
}

// path is a path in the lab's directory, whose directory exists.
func (l *lab) path(name string) string {
	path := filepath.Join(l.dir, name)
	_ = os.MkdirAll(filepath.Dir(path), 0o755)
	return path
}

// mkdir makes a directory in the lab's.
func (l *lab) mkdir(name string) string {
	dir := filepath.Join(l.dir, name)
	_ = os.MkdirAll(dir, 0o755)
	return dir
}

// run runs a program to its end.
func (l *lab) run(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// server is a process of the lab's, in the foreground, that can be ended and started again.
type server struct {
	lab  *lab
	name string
	args []string
	cmd  *exec.Cmd
	done chan struct{}
}

// start starts a program that stays. Its output is in NAME.log of the lab's directory.
func (l *lab) start(name string, args ...string) (*server, error) {
	s := &server{lab: l, name: name, args: args}
	return s, s.start()
}

func (s *server) log() string { return s.lab.path(s.name + ".log") }

func (s *server) start() error {
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd = exec.Command(s.args[0], s.args[1:]...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // JuiceFS has a second process that outlives the first
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.done = make(chan struct{})
	go func() {
		_ = s.cmd.Wait()
		close(s.done)
	}()
	return nil
}

// kill ends it with SIGKILL, and what it has started.
func (s *server) kill() {
	_ = unix.Kill(-s.cmd.Process.Pid, unix.SIGKILL)
	<-s.done
}

func (s *server) signal(sig os.Signal) error { return s.cmd.Process.Signal(sig) }

// tail is the end of its log, for an error.
func (s *server) tail() string {
	b, _ := os.ReadFile(s.log())
	return s.name + ": " + string(b[max(0, len(b)-2000):])
}

// until waits for a condition; one of the servers' end is an error.
func (l *lab) until(what string, cond func() bool, servers ...*server) error {
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(20 * time.Millisecond) {
		for _, s := range servers {
			select {
			case <-s.done:
				return fmt.Errorf("%s ended before %s\n%s", s.name, what, s.tail())
			default:
			}
		}
		if time.Now().After(deadline) {
			var logs bytes.Buffer
			for _, s := range servers {
				logs.WriteString(s.tail())
			}
			return fmt.Errorf("not %s after a minute\n%s", what, &logs)
		}
	}
	return nil
}

// isMounted says whether dir is the root of a mount.
func isMounted(dir string) bool {
	var at, above unix.Stat_t
	if unix.Stat(dir, &at) != nil || unix.Stat(filepath.Dir(dir), &above) != nil {
		return false
	}
	return at.Dev != above.Dev
}

// inPlaceOf has the directories that programs have compiled in be the lab's own.
func (l *lab) inPlaceOf(dirs ...string) error {
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := unix.Mount("lab", dir, "tmpfs", 0, "mode=0755"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	return nil
}
