package handover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/retry"
)

// ErrNone: no daemon offers the mount.
var ErrNone = errors.New("no running daemon offers the mount")

// RefusedError is the running daemon's reason not to hand its mount on.
type RefusedError struct {
	PID int
	Why string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the running daemon (pid %d) does not hand its mount on: %s", e.PID, e.Why)
}

// errSilent: the daemon has ended, or closed the connection, instead of an answer.
var errSilent = errors.New("the running daemon does not answer")

// Peer is a running daemon.
type Peer struct {
	PID int // after Ask

	dial func() error
	c    *net.UnixConn
	life int // see died; -1: none yet
	stop func() bool
}

// Dial connects to the daemon of a mountpoint, an absolute path without symbolic links. The
// connection ends with ctx. Errors: ErrNone.
func Dial(ctx context.Context, stateDir, mountpoint string) (*Peer, error) {
	p := &Peer{life: -1}
	p.dial = func() error {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", socketOf(stateDir, mountpoint))
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
			return ErrNone
		case errors.Is(err, unix.EINVAL): // the path is too long for a socket: nobody could listen there
			return ErrNone
		case err != nil:
			return err
		}
		p.c, p.stop = c.(*net.UnixConn), context.AfterFunc(ctx, func() { c.Close() })
		return nil
	}
	if err := p.dial(); err != nil {
		return nil, err
	}
	return p, nil
}

// Close gives up what was not taken.
func (p *Peer) Close() {
	p.stop()
	p.c.Close()
	if p.life >= 0 {
		unix.Close(p.life)
		p.life = -1
	}
}

// Ask asks for the mount, and returns its state with its descriptors. Programs that use the mount
// wait from now on. A daemon that dies may have a supervisor, and its next worker is asked then.
// Errors: *RefusedError.
func (p *Peer) Ask(version string, settings map[string]string) (state []byte, fds []int, err error) {
	var again retry.Retrier
	state, fds, err = p.ask(version, settings)
	for end := time.Now().Add(successorTime); errors.Is(err, errSilent) && time.Now().Before(end); {
		time.Sleep(again.Delay())
		p.Close()
		switch dialErr := p.dial(); {
		case dialErr == nil:
			state, fds, err = p.ask(version, settings)
		case !errors.Is(dialErr, ErrNone): // not one that is about to listen
			return nil, nil, errors.Join(err, dialErr)
		}
	}
	return state, fds, err
}

func (p *Peer) ask(version string, settings map[string]string) (state []byte, fds []int, err error) {
	_ = p.c.SetDeadline(time.Now().Add(helloTime))
	sendErr := send(p.c, hello{Format, version, settings}) // it may have refused before
	var a answer
	if err := receive(p.c, &a, maxState); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errSilent, cmp.Or(sendErr, err))
	}
	if p.PID = a.PID; a.Refused != "" {
		return nil, nil, &RefusedError{a.PID, a.Refused}
	}
	_ = p.c.SetDeadline(time.Now().Add(helloTime + timeFor(a.FDs)))
	if fds, err = receiveFDs(p.c, a.FDs); err != nil {
		return nil, nil, fmt.Errorf("the descriptors of the running daemon: %w", err)
	}
	if len(fds) == 0 {
		return nil, nil, errors.New("the running daemon has sent no descriptors")
	}
	last := len(fds) - 1
	p.life = fds[last]
	return a.State, fds[:last], nil
}

// Take makes the mount this process's. After an error it is not: the running daemon goes on, or it
// has died. Take is bounded, and does not end with the context of Dial: an answer must not be lost.
func (p *Peer) Take() error {
	if !p.stop() {
		return context.Canceled
	}
	_ = p.c.SetDeadline(time.Now().Add(takeTime))
	var w word
	err := send(p.c, word{taken})
	if err == nil {
		err = receive(p.c, &w, maxWord)
	}
	if err != nil {
		// From now on 'yours' cannot be sent. It may have been.
		_ = p.c.CloseRead()
		_ = p.c.SetDeadline(time.Now().Add(takeTime))
		if receive(p.c, &w, maxWord) != nil && died(p.life) {
			return nil
		}
	}
	switch {
	case w.Say == yours:
		return nil
	case w.Say == "":
		return fmt.Errorf("the running daemon does not answer: %w", err)
	}
	return errors.New("the running daemon has waited for too long, and goes on")
}
