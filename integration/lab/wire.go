package lab

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// Wire connects one mount to the lock service. It can be cut, which breaks and refuses
// connections, or go silent in one or both directions, which delays what is sent.
type Wire struct {
	t                 *testing.T
	Requests, Replies gate
	Flag              string     // of the mount
	ends              []*wireEnd // one for each address of the service
}

type wireEnd struct {
	wire   *Wire
	listen string

	mu       sync.Mutex
	to       string
	listener net.Listener // nil while it is cut
	conns    []net.Conn
	running  sync.WaitGroup
}

// NewWire returns one that is whole.
func NewWire(t *testing.T, s Service) *Wire {
	t.Helper()
	w := &Wire{t: t}
	var near []string
	for _, to := range s.Addresses() {
		at := strings.LastIndexByte(to, '.') + 1
		e := &wireEnd{wire: w, listen: to[:at] + "1" + to[at:], to: to} // .1 becomes .11
		w.ends, near = append(w.ends, e), append(near, e.listen)
	}
	w.Flag = s.Flag(near)
	w.Mend()
	t.Cleanup(func() {
		w.Requests.Open()
		w.Replies.Open()
		w.Cut()
		for _, e := range w.ends {
			e.running.Wait()
		}
	})
	return w
}

func (w *Wire) Cut() {
	for _, e := range w.ends {
		e.mu.Lock()
		if e.listener != nil {
			e.listener.Close()
			e.listener = nil
		}
		for _, c := range e.conns {
			c.Close()
		}
		e.conns = nil
		e.mu.Unlock()
	}
}

// Move has it lead to other addresses, while it is cut.
func (w *Wire) Move(addresses []string) {
	for i, e := range w.ends {
		e.mu.Lock()
		e.to = addresses[i]
		e.mu.Unlock()
	}
}

// Mend undoes cut.
func (w *Wire) Mend() {
	w.t.Helper()
	for _, e := range w.ends {
		l, err := net.Listen("tcp", e.listen)
		if err != nil {
			w.t.Fatal(err)
		}
		e.mu.Lock()
		e.listener = l
		e.mu.Unlock()
		e.running.Go(func() { e.serve(l) })
	}
}

func (e *wireEnd) serve(l net.Listener) {
	for {
		near, err := l.Accept()
		if err != nil {
			return
		}
		e.mu.Lock()
		to := e.to
		e.mu.Unlock()
		far, err := net.Dial("tcp", to)
		if err != nil {
			near.Close()
			continue
		}
		e.mu.Lock()
		if e.listener == l {
			e.conns = append(e.conns, near, far)
			e.running.Go(func() { pump(far, near, &e.wire.Requests) })
			e.running.Go(func() { pump(near, far, &e.wire.Replies) })
		} else { // cut since
			near.Close()
			far.Close()
		}
		e.mu.Unlock()
	}
}

func pump(to io.WriteCloser, from io.ReadCloser, g *gate) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		g.pass()
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// gate holds what is to pass while it is closed. The zero gate is open.
type gate struct {
	mu     sync.Mutex
	opened chan struct{} // nil while it is open
}

func (g *gate) pass() {
	g.mu.Lock()
	opened := g.opened
	g.mu.Unlock()
	if opened != nil {
		<-opened
	}
}

func (g *gate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened == nil {
		g.opened = make(chan struct{})
	}
}

func (g *gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened != nil {
		close(g.opened)
		g.opened = nil
	}
}
