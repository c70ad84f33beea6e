package main

import (
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// addAddress makes ip one of this network namespace's own.
func addAddress(ip string) error {
	out, err := exec.Command("ip", "address", "add", ip+"/32", "dev", "lo").CombinedOutput()
	if err != nil && !strings.Contains(string(out), "exists") && !strings.Contains(string(out), "already assigned") {
		return fmt.Errorf("ip address add %s: %w: %s", ip, err, out)
	}
	return nil
}

// proxy forwards connections to addresses of Services. Listeners of Services
// that are gone stay: nothing asks for them any more.
type proxy struct {
	mu        sync.Mutex
	listeners map[string]net.Listener
	backends  map[string][]string // by the Service's address and port
}

func newProxy() *proxy {
	return &proxy{listeners: make(map[string]net.Listener), backends: make(map[string][]string)}
}

func (p *proxy) set(services []service) {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.backends)
	for _, s := range services {
		if s.ip == "" {
			continue
		}
		for _, port := range s.ports {
			addr := net.JoinHostPort(s.ip, strconv.Itoa(port.port))
			for _, h := range s.hosts {
				p.backends[addr] = append(p.backends[addr], net.JoinHostPort(h.ip, strconv.Itoa(port.target)))
			}
			if p.listeners[addr] != nil {
				continue
			}
			if err := p.listen(s.ip, addr); err != nil {
				log.Print(err)
			}
		}
	}
}

func (p *proxy) listen(ip, addr string) error {
	if err := addAddress(ip); err != nil {
		return err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	p.listeners[addr] = l
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.forward(c, addr)
		}
	}()
	return nil
}

// forward tries the backends in any order.
func (p *proxy) forward(c net.Conn, addr string) {
	defer c.Close()
	p.mu.Lock()
	backends := append([]string(nil), p.backends[addr]...)
	p.mu.Unlock()
	rand.Shuffle(len(backends), func(i, j int) { backends[i], backends[j] = backends[j], backends[i] })
	for _, b := range backends {
		to, err := net.DialTimeout("tcp", b, 2*time.Second)
		if err != nil {
			continue
		}
		defer to.Close()
		done := make(chan struct{}, 2)
		pass := func(dst, src net.Conn) {
			_, _ = io.Copy(dst, src)
			_ = dst.(*net.TCPConn).CloseWrite()
			done <- struct{}{}
		}
		go pass(to, c)
		go pass(c, to)
		<-done
		<-done
		return
	}
}

func (p *proxy) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.listeners {
		l.Close()
	}
}
