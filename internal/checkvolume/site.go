package checkvolume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	ttl         = "15s"            // a busy machine that loses a lock meanwhile does not speak against the volume
	mountWait   = 30 * time.Second // for a view, and for the volume to show the check's directory
	endWait     = 10 * time.Second // for a view's daemon after SIGTERM
	callTimeout = time.Minute      // for a system call; a volume whose calls take longer is not tried further
)

// Site is one client of the volume: a directory where the volume is mounted, and a view of
// the check's own directory in it.
type Site struct {
	Dir      string // where the volume is mounted
	Program  string // lockfs
	Endpoint string // of etcd
	Temp     string // a directory for the mountpoint and state

	mu   sync.Mutex
	name string // GUARDED_BY(mu); of the check's directory
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
	log  bytes.Buffer  // of cmd; read when it has ended
}

// checkName returns a name for a check's directory.
var checkName = regexp.MustCompile(`^lockfs-check-[0-9a-zA-Z]+$`)

func (s *Site) view() string   { return filepath.Join(s.Temp, "view") }
func (s *Site) source() string { return filepath.Join(s.Dir, s.name) }

// do makes a call: one of the Site's own, or a system call through the view.
func (s *Site) do(ctx context.Context, c call) reply {
	switch c.Do {
	case "mount view":
		if err := s.mount(ctx, c.Path); err != nil {
			return reply{Unable: err.Error()}
		}
		return reply{}
	case "kill view":
		s.end(unix.SIGKILL)
		return reply{}
	case "end view":
		s.end(unix.SIGTERM)
		return reply{}
	case "close": // of a file in a view that has ended, too
	default:
		// Without a view, the call would change the mountpoint.
		if why := s.noView(); why != "" {
			return reply{Unable: why}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	done := make(chan reply, 1)
	go func() { done <- perform(s.view(), c) }() // it may hang in the kernel until the view ends
	select {
	case r := <-done:
		if why := s.noView(); why != "" {
			return reply{Unable: why}
		}
		if r.Errno == unix.ENOTCONN || r.Errno == unix.ECONNABORTED { // its daemon has ended, and not yet for Wait
			return reply{Unable: fmt.Sprintf("the view has died: %v", r.err())}
		}
		return r
	case <-ctx.Done():
		return reply{Unable: fmt.Sprintf("no answer of the volume, or of etcd, in %v", callTimeout)}
	}
}

// noView says why there is no view, or "".
func (s *Site) noView() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return "no view is mounted"
	}
	select {
	case <-s.done:
		return s.ended()
	default:
		return ""
	}
}

// ended describes the end of a view. It needs mu, and done to be closed.
func (s *Site) ended() string {
	return fmt.Sprintf("the view of %s has ended: %s", s.source(), bytes.TrimSpace(s.log.Bytes()))
}

// mount mounts the view of directory name, or of the last one.
func (s *Site) mount(ctx context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop(unix.SIGTERM) // a check that was cut off has left its view
	if name != "" {
		if !checkName.MatchString(name) {
			return fmt.Errorf("%q is not the name of a check's directory", name)
		}
		s.name = name
	}
	ctx, cancel := context.WithTimeout(ctx, mountWait)
	defer cancel()
	// The other client has made it, but this one may have cached its absence.
	if err := poll(ctx, func() bool { _, err := os.Stat(s.source()); return err == nil }); err != nil {
		return fmt.Errorf("%s does not appear in %s: is that the same volume?", s.name, s.Dir)
	}
	if err := os.Mkdir(s.view(), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	s.log.Reset()
	s.cmd = exec.Command(s.Program, "mount", "--accept-volume", "--scope", "node", "--ttl", ttl, "--wait", "-1", "--name-wait", "30s", "--guard=false",
		"--name", s.name, "--endpoints", s.Endpoint, s.source(), s.view())
	// No flag of a daemon, such as --supervise in its pod, is one of the check's views.
	s.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LOCKFS_") })
	s.cmd.Env = append(s.cmd.Env, "LOCKFS_STATE_DIR="+filepath.Join(s.Temp, "state"))
	s.cmd.Stderr = &s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // ^C must not reach it: we end it when nothing uses it
	if err := s.cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	s.done = done
	go func(cmd *exec.Cmd) {
		_ = cmd.Wait()
		close(done)
	}(s.cmd)
	hasEnded := func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
	err := poll(ctx, func() bool { return hasEnded() || isView(s.view()) })
	if hasEnded() {
		return errors.New(s.ended())
	}
	return err
}

func (s *Site) end(how syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop(how)
}

// stop needs mu.
func (s *Site) stop(how syscall.Signal) {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(how)
	select {
	case <-s.done:
	case <-time.After(endWait):
		_ = s.cmd.Process.Kill()
		<-s.done
	}
	_ = unix.Unmount(s.view(), unix.MNT_DETACH)
	s.cmd = nil
}

func isView(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.FUSE_SUPER_MAGIC
}

func poll(ctx context.Context, cond func() bool) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
