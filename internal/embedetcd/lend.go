package embedetcd

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

// A mount that is handed on to another process lends it its etcd: the writing end of the pipe with
// which etcd lives, and the reading end of its log. Until Leave both have them, so etcd ends when
// neither is left.

// lent is how many descriptors an etcd process is lent by.
const lent = 2

// Lend returns the descriptors by which another process can Adopt the etcd process of this one. They
// stay this one's. nil: it has none. The log is not read until GoOn.
func (s *Server) Lend() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	fds := s.serves.descriptors()
	if fds != nil {
		s.serves.log.pause()
		s.lent = s.serves
	}
	return fds
}

// Tell tells f now, and at each change, by which descriptors another process can Adopt the etcd
// process when this one has died.
func (s *Server) Tell(f func(fds []int)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell = f
	s.told()
}

// told needs mu.
func (s *Server) told() {
	if s.tell != nil {
		s.tell(s.serves.descriptors())
	}
}

func (p *process) descriptors() (fds []int) {
	if p == nil {
		return nil
	}
	for _, f := range []*os.File{p.life, p.log.f} {
		raw, err := f.SyscallConn() // Fd would make it block
		if err == nil {
			err = raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) })
		}
		if err != nil {
			return nil
		}
	}
	return fds
}

// GoOn ends Lend: the other process does without.
func (s *Server) GoOn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lent != nil {
		s.lent.log.goOn()
		s.lent = nil
	}
}

// Leave lets the other process have what it was lent. Close does not stop that any more.
func (s *Server) Leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lent != nil {
		s.lent.leave()
		s.left, s.lent = s.lent, nil
	}
}

// Adopt takes over the etcd process of another process of this machine, by what Lend has returned
// there, and takes the files.
func (s *Server) Adopt(files []*os.File) {
	if len(files) != lent {
		for _, f := range files {
			f.Close()
		}
		return
	}
	s.adopted <- borrowed(files[0], files[1], s.logger)
}

// logPipe is the reading end of etcd's log.
type logPipe struct {
	f *os.File

	mu     sync.Mutex
	paused chan struct{} // GUARDED_BY(mu); closed when reading goes on; nil: it does
}

var _ io.Reader = (*logPipe)(nil)

func (l *logPipe) Read(b []byte) (int, error) {
	for {
		n, err := l.f.Read(b)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		l.mu.Lock()
		paused := l.paused
		l.mu.Unlock()
		if paused != nil {
			<-paused
		}
	}
}

// pause ends the reading that is under way, and keeps the next from beginning.
func (l *logPipe) pause() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.paused == nil {
		l.paused = make(chan struct{})
		_ = l.f.SetReadDeadline(time.Unix(1, 0))
	}
}

func (l *logPipe) goOn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.paused != nil {
		_ = l.f.SetReadDeadline(time.Time{})
		close(l.paused)
		l.paused = nil
	}
}

// leave reads nothing more.
func (l *logPipe) leave() {
	l.f.Close()
	l.goOn()
}
