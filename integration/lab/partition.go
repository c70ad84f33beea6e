package lab

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Partition stands between a mount and etcd until it is cut.
type Partition struct {
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
	l     net.Listener
	to    string
}

func NewPartition(t *testing.T, to string) *Partition {
	t.Helper()
	l, err := net.Listen("unix", to+".partition")
	if err != nil {
		t.Fatal(err)
	}
	p := &Partition{l: l, to: to}
	t.Cleanup(p.Part)
	go p.serve()
	return p
}

func (p *Partition) Endpoint() string { return "unix://" + p.l.Addr().String() }

func (p *Partition) serve() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		d, err := net.Dial("unix", p.to)
		if err != nil {
			c.Close()
			continue
		}
		p.mu.Lock()
		if p.cut {
			c.Close()
			d.Close()
		}
		p.conns = append(p.conns, c, d)
		p.mu.Unlock()
		go io.Copy(c, d)
		go io.Copy(d, c)
	}
}

// Part cuts the connections, and refuses new ones.
func (p *Partition) Part() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	p.l.Close()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}
