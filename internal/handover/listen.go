package handover

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/status"
)

// Offer is a mount that can be handed on.
type Offer struct {
	// Settings are those of the daemon. Required.
	Settings func() map[string]string
	// Pause stops the mount and returns its state, with descriptors that stay the daemon's. After
	// an error the mount goes on. Required.
	Pause func() (state []byte, fds []int, err error)
	// Leaving is called right before the last message that the other process needs: if this one dies
	// later, the mount is the other's. nil: nothing is to be done then.
	Leaving func()
	// Resume goes on after Pause, or Leaving. Required.
	Resume func()
	// Gone tells that the mount is another process's. Required.
	Gone func()
	// Logger; nil: slog.Default().
	Logger *slog.Logger
}

// hidden is the prefix of a socket's name until it answers.
const hidden = ".new-"

func socketsIn(stateDir string) string { return filepath.Join(stateDir, "handover") }

// socketOf is where the daemon of a mountpoint listens. A path of a socket must be short.
func socketOf(stateDir, mountpoint string) string {
	sum := sha256.Sum256([]byte(mountpoint))
	return filepath.Join(socketsIn(stateDir), hex.EncodeToString(sum[:8]))
}

// Sweep is status.SweepSockets for the sockets in stateDir.
func Sweep(stateDir string) { status.SweepSockets(socketsIn(stateDir)) }

// listener offers one mount.
type listener struct {
	Offer
	l    *net.UnixListener
	busy sync.WaitGroup

	mu   sync.Mutex // held during a handover
	gone bool       // GUARDED_BY(mu)
}

// Listen offers the mount at mountpoint, an absolute path without symbolic links, until stop. stop
// waits for a handover under way.
func Listen(stateDir, mountpoint string, offer Offer) (stop func(), err error) {
	if offer.Logger == nil {
		offer.Logger = slog.Default()
	}
	path := socketOf(stateDir, mountpoint)
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o700); err != nil { // also proves that the directory is ours
		return nil, err
	}
	made := filepath.Join(dir, fmt.Sprintf("%s%s-%d", hidden, filepath.Base(path), os.Getpid()))
	_ = os.Remove(made)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("%w: a unix socket's path has at most 107 bytes; choose a shorter state directory", err)
	}
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := os.Rename(made, path); err != nil { // in place of a dead or a former daemon's
		return nil, errors.Join(err, l.Close(), os.Remove(made))
	}
	var own unix.Stat_t
	if err := unix.Lstat(path, &own); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	s := &listener{Offer: offer, l: l}
	s.busy.Go(s.accept)
	return func() {
		l.Close()
		s.busy.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		var now unix.Stat_t
		if !s.gone && unix.Lstat(path, &now) == nil && now.Ino == own.Ino { // not the next daemon's
			_ = os.Remove(path)
		}
	}, nil
}

const acceptPause = 100 * time.Millisecond // after a failure, such as EMFILE

func (s *listener) accept() {
	failing := false
	for {
		c, err := s.l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			if !failing {
				s.Logger.Warn("no daemon can take the mount over for now", slog.Any("error", err))
			}
			failing = true
			time.Sleep(acceptPause)
			continue
		}
		failing = false
		s.busy.Go(func() {
			defer c.Close()
			s.serve(c)
		})
	}
}

// serve answers one daemon that wants the mount.
func (s *listener) serve(c *net.UnixConn) {
	var h hello
	_ = c.SetDeadline(time.Now().Add(helloTime))
	if err := sameUser(c); err != nil {
		s.refuse(c, err)
		return
	}
	if err := receive(c, &h, maxHello); err != nil {
		return // it has only looked
	}
	if err := s.compare(&h); err != nil {
		s.refuse(c, err)
		return
	}
	if !s.mu.TryLock() {
		s.refuse(c, errors.New("it is being handed on to another daemon"))
		return
	}
	defer s.mu.Unlock()
	if s.gone {
		s.refuse(c, errors.New("it was handed on to another daemon"))
		return
	}
	s.hand(c, &h)
}

func (s *listener) refuse(c *net.UnixConn, why error) {
	s.Logger.Warn("the mount is not handed on", slog.Any("error", why))
	_ = send(c, answer{Refused: why.Error(), PID: os.Getpid()})
}

// compare returns why a daemon cannot take over.
func (s *listener) compare(h *hello) error {
	if h.Format != Format {
		return fmt.Errorf("lockfs %s takes over state of format %d, and this daemon's is of format %d", h.Version, h.Format, Format)
	}
	return Compare(s.Settings(), h.Settings)
}

// Compare returns why a daemon with new settings cannot take over from one with own.
func Compare(own, new map[string]string) error {
	for name, value := range own {
		if new[name] != value {
			return fmt.Errorf("the new daemon has another %s: %q instead of %q", name, new[name], value)
		}
	}
	for name := range new {
		if _, ok := own[name]; !ok {
			return fmt.Errorf("the new daemon has a %s, which this one does not know", name)
		}
	}
	return nil
}

// hand hands the mount on. s.mu is held.
func (s *listener) hand(c *net.UnixConn, h *hello) {
	life, err := newLife()
	if err != nil {
		s.refuse(c, err)
		return
	}
	defer life.close()
	began := time.Now()
	state, fds, err := s.Pause()
	if err != nil {
		s.refuse(c, err)
		return
	}
	_ = c.SetDeadline(time.Now().Add(takeTime + timeFor(len(fds))))
	err = send(c, answer{PID: os.Getpid(), State: state, FDs: len(fds) + 1})
	if err == nil {
		err = sendFDs(c, fds)
	}
	if err == nil {
		if s.Leaving != nil {
			s.Leaving()
		}
		err = sendFDs(c, []int{life.watched}) // without it the other process has nothing
	}
	life.sent()
	var w word
	if err == nil {
		err = receive(c, &w, maxWord)
	}
	if err == nil && w.Say != taken {
		err = fmt.Errorf("it says %q", w.Say)
	}
	if err == nil {
		err = send(c, word{yours}) // EPIPE: it has given up
	}
	if err != nil {
		life.goesOn()
		_ = c.SetDeadline(time.Now().Add(takeTime))
		_ = send(c, word{withdrawn})
		s.Resume()
		s.Logger.Warn("the mount was not taken over, and goes on", slog.Any("error", err), slog.Duration("paused", time.Since(began)))
		return
	}
	s.gone = true
	s.Logger.Info("the mount is handed on", slog.String("to_version", h.Version), slog.Duration("took", time.Since(began)), slog.Int("descriptors", len(fds)))
	s.Gone()
}

// sameUser refuses all users but the daemon's. The directory's mode does so too.
func sameUser(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	cerr := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, cerr); err != nil {
		return err
	}
	if int(peer.Uid) != os.Geteuid() {
		return fmt.Errorf("user %d is not the daemon's", peer.Uid)
	}
	return nil
}
