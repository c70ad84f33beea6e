package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/bench/internal/command"
)

// systemNames are the systems that can be compared; the first four are measured by default.
var systemNames = []string{"ext4", "lockfs", "loopback", "bindfs", "passthrough", "nolock", "etcd", "kept", "supervised", "other"}

const (
	startTimeout = 20 * time.Second
	stopTimeout  = 10 * time.Second
)

// system is one file system under test.
type system struct {
	name    string
	backing string        // its files, on ext4
	dir     string        // where programs see them
	cmd     *exec.Cmd     // the daemon; nil for ext4
	done    chan struct{} // closed when the daemon has ended

	unmount bool   // we mount and unmount it, and that ends the daemon
	release func() // closes what the daemon inherited; may be nil
}

// errMissing: the system is not installed.
var errMissing = errors.New("not installed")

// daemon returns the command that serves s.
func (s *system) daemon(ctx context.Context, b *bench) (*exec.Cmd, error) {
	switch s.name {
	case "lockfs", "other":
		self, profile := b.self, b.opts.profile
		if s.name == "other" {
			self, profile = b.opts.other, ""
		}
		cmd := exec.Command(self, s.backing, s.dir, profile)
		cmd.Env = command.Environ("view")
		return cmd, nil
	case "nolock", "etcd", "kept", "supervised":
		return s.mount(ctx, b)
	case "loopback", "passthrough":
		bin, err := b.buildLoopback(ctx)
		if err != nil {
			return nil, err
		}
		if s.name == "passthrough" {
			return s.passthrough(bin), nil
		}
		return s.loopback(b, bin)
	case "bindfs":
		bin, err := exec.LookPath("bindfs")
		if err != nil {
			return nil, errMissing
		}
		return exec.Command(bin, "-f", s.backing, s.dir), nil
	}
	return nil, nil // the plain directory
}

// start starts s, and returns when it can be used.
func (s *system) start(ctx context.Context, b *bench) error {
	if s.dir != s.backing {
		if err := os.Mkdir(s.dir, 0o755); err != nil {
			return err
		}
	}
	cmd, err := s.daemon(ctx, b)
	if err != nil || cmd == nil {
		return err
	}
	log, err := os.Create(s.logName())
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = inGroup()
	err = cmd.Start()
	if s.release != nil {
		s.release()
	}
	if err != nil {
		return err
	}
	s.cmd, s.done = cmd, make(chan struct{})
	go func() {
		_ = cmd.Wait() // the log says why
		close(s.done)
	}()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	late := time.After(startTimeout)
	for {
		select {
		case <-tick.C:
			if mounted(s.dir) {
				return nil
			}
		case <-s.done:
			return fmt.Errorf("%s ended at once: %s", s.name, s.log())
		case <-late:
			return fmt.Errorf("%s did not mount within %v", s.name, startTimeout)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stop unmounts s and ends its daemon, by force if it must be.
func (s *system) stop() error {
	if s.cmd == nil || s.done == nil { // it has not started
		return s.clear()
	}
	if !s.unmount || unix.Unmount(s.dir, 0) != nil {
		_ = s.cmd.Process.Signal(unix.SIGTERM)
	}
	select {
	case <-s.done:
	case <-time.After(stopTimeout):
		_ = unix.Unmount(s.dir, unix.MNT_DETACH)
		_ = s.cmd.Process.Kill()
		<-s.done
	}
	if err := s.clear(); err != nil {
		return err
	}
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("%s ended with %v: %s", s.name, s.cmd.ProcessState, s.log())
	}
	return nil
}

func (s *system) logName() string { return s.backing + ".log" }

func (s *system) log() []byte {
	b, _ := os.ReadFile(s.logName())
	return b
}

func (s *system) clear() error {
	if s.dir == s.backing || !mounted(s.dir) {
		return nil
	}
	if err := unix.Unmount(s.dir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", s.dir, err)
	}
	return nil
}

// mounted reports whether a FUSE file system, perhaps a dead one, is at dir.
func mounted(dir string) bool {
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	return err == unix.ENOTCONN || err == nil && st.Type == unix.FUSE_SUPER_MAGIC
}
