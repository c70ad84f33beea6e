package checkvolume

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"golang.org/x/sys/unix"
)

// A Site on another machine has one port for HTTP calls, and for the other view's etcd
// connections, which begin with "PRI".

// maxCall is the largest call, in bytes.
const maxCall = 1 << 20

// Serve lets another machine use the site, until ctx ends. etcd is the path of a unix
// socket. Whoever reaches the listener can use both.
func (s *Site) Serve(ctx context.Context, listener net.Listener, etcd string) error {
	calls := &handed{addr: listener.Addr(), conns: make(chan net.Conn), done: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /call", func(w http.ResponseWriter, r *http.Request) {
		var c call
		if err := json.NewDecoder(io.LimitReader(r.Body, maxCall)).Decode(&c); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(s.do(r.Context(), c))
	})
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(calls) }()
	stop := context.AfterFunc(ctx, func() {
		listener.Close()
		server.Close()
	})
	defer stop()
	defer s.end(unix.SIGTERM)
	for {
		conn, err := listener.Accept()
		if err != nil {
			server.Close()
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		go func() {
			r := bufio.NewReader(conn)
			first, err := r.Peek(3)
			switch {
			case err != nil:
				conn.Close()
			case string(first) == "PRI":
				handOn(peeked{conn, r}, etcd)
			default:
				calls.give(peeked{conn, r})
			}
		}()
	}
}

type peeked struct {
	net.Conn
	r *bufio.Reader
}

func (p peeked) Read(b []byte) (int, error) { return p.r.Read(b) }

func handOn(client net.Conn, socket string) {
	defer client.Close()
	server, err := net.Dial("unix", socket)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, client)
		server.Close()
	}()
	_, _ = io.Copy(client, server)
}

type handed struct {
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
}

func (h *handed) give(conn net.Conn) {
	select {
	case h.conns <- conn:
	case <-h.done:
		conn.Close()
	}
}

func (h *handed) Accept() (net.Conn, error) {
	select {
	case conn := <-h.conns:
		return conn, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// Close is called once, by the server that has it.
func (h *handed) Close() error {
	close(h.done)
	return nil
}

func (h *handed) Addr() net.Addr { return h.addr }

type peer string // HOST:PORT

func (p peer) do(ctx context.Context, c call) (r reply) {
	fail := func(err error) reply { return reply{Unable: fmt.Sprintf("%s: %v", string(p), err)} }
	body, err := json.Marshal(c)
	if err != nil {
		return fail(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+string(p)+"/call", bytes.NewReader(body))
	if err != nil {
		return fail(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fail(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxCall))
		return fail(errors.New(strings.TrimSpace(string(text))))
	}
	if err := json.NewDecoder(resp.Body).Decode(&r); err != nil {
		return fail(err)
	}
	return r
}
