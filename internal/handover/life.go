package handover

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// life is a pipe by which the new daemon can tell that the old one has died while the mount was
// paused. Only the old daemon has the writing end, and writes to it before it goes on. So the end
// of an empty pipe proves that its last thread has ended, and that it has answered nothing since.
type life struct{ watched, ours int }

func newLife() (*life, error) {
	var pair [2]int
	if err := unix.Pipe2(pair[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, os.NewSyscallError("pipe", err)
	}
	return &life{pair[0], pair[1]}, nil
}

// sent closes the end that the new daemon has got.
func (l *life) sent() {
	unix.Close(l.watched)
	l.watched = -1
}

// goesOn tells the new daemon that it must not take the mount. EPIPE: it has none of it.
func (l *life) goesOn() { _, _ = unix.Write(l.ours, []byte{1}) }

func (l *life) close() {
	if l.watched >= 0 {
		unix.Close(l.watched)
	}
	unix.Close(l.ours)
}

// deathTime bounds the wait for the last thread of a daemon that is ending.
const deathTime = 2 * time.Second

// died waits for the end of the pipe fd, and reports whether it proves a death.
func died(fd int) bool {
	for end := time.Now().Add(deathTime); ; {
		left := time.Until(end)
		if left <= 0 {
			return false
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if errors.Is(err, unix.EINTR) || err == nil && n == 0 {
			continue
		}
		var b [1]byte
		n, err = unix.Read(fd, b[:])
		return err == nil && n == 0
	}
}
