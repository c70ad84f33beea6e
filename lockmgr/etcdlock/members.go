package etcdlock

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

const (
	// tooLate is the age of an unanswered stream message; most elections, no member's fault, are
	// shorter.
	tooLate  = 2 * time.Second
	avoidFor = 30 * time.Second
)

var errAvoided = errors.New("did not answer in time a moment ago")

// members knows the connections to the cluster's members. clientv3 uses them in turn, even one
// that hangs: then each third request times out, and a watch there shows nothing. So members
// breaks a connection that leaves a request unanswered, and avoids its member for avoidFor.
type members struct {
	log     *slog.Logger
	allowed int // at most this many are avoided: a minority

	mu      sync.Mutex
	conns   map[string]net.Conn  // GUARDED_BY(mu); the newest, by address
	avoided map[string]time.Time // GUARDED_BY(mu); until when, by address
}

func newMembers(endpoints int, log *slog.Logger) *members {
	return &members{log: log, allowed: (endpoints - 1) / 2, conns: make(map[string]net.Conn), avoided: make(map[string]time.Time)}
}

func (m *members) options() []grpc.DialOption {
	if m.allowed <= 0 {
		return nil
	}
	return []grpc.DialOption{
		grpc.WithContextDialer(m.dial),
		grpc.WithChainUnaryInterceptor(m.observe),
		grpc.WithChainStreamInterceptor(m.observeStream),
	}
}

func (m *members) dial(ctx context.Context, addr string) (net.Conn, error) {
	m.mu.Lock()
	avoided := time.Now().Before(m.avoided[addr])
	m.mu.Unlock()
	if avoided {
		return nil, errAvoided
	}
	network, address := "tcp", addr
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		network, address = "unix", strings.TrimPrefix(path, "//")
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		clear(m.avoided) // a slow member is better than an absent one
		return nil, err
	}
	m.conns[addr] = conn
	return conn, nil
}

// observe avoids a member that kept a request while later ones were answered.
func (m *members) observe(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	var p peer.Peer
	err := invoke(ctx, method, req, reply, cc, append(opts[:len(opts):len(opts)], grpc.Peer(&p))...)
	if err != nil && errors.Is(context.Cause(ctx), errOvertaken) && p.Addr != nil {
		m.avoid(p.Addr)
	}
	return err
}

// observeStream avoids a member that leaves a message of a watch or a renewal unanswered.
func (m *members) observeStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &observedStream{ClientStream: s, m: m}, nil
}

type observedStream struct {
	grpc.ClientStream
	m *members

	mu   sync.Mutex
	late *time.Timer // GUARDED_BY(mu); nil: no answer is due
}

func (s *observedStream) SendMsg(msg any) error {
	s.mu.Lock()
	if s.late == nil {
		s.late = time.AfterFunc(tooLate, func() {
			if p, ok := peer.FromContext(s.Context()); ok {
				s.m.avoid(p.Addr)
			}
		})
	}
	s.mu.Unlock()
	err := s.ClientStream.SendMsg(msg)
	if err != nil { // the stream has ended, and perhaps nobody reads from it any more
		s.answered()
	}
	return err
}

func (s *observedStream) RecvMsg(msg any) error {
	err := s.ClientStream.RecvMsg(msg)
	if status.Code(err) != codes.DeadlineExceeded { // an answer, or the end of the stream
		s.answered()
	}
	return err
}

// answered notes that no answer is due.
func (s *observedStream) answered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.late != nil {
		s.late.Stop()
		s.late = nil
	}
}

// avoid breaks the connection to a member, and refuses new ones for a while. If too many are
// avoided, the first is allowed again: a member that forwards to a hanging leader is not at fault.
func (m *members) avoid(remote net.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for addr, conn := range m.conns {
		if conn.RemoteAddr().String() != remote.String() || now.Before(m.avoided[addr]) {
			continue
		}
		for len(m.avoided) >= m.allowed {
			delete(m.avoided, m.first())
		}
		m.avoided[addr] = now.Add(avoidFor)
		delete(m.conns, addr)
		conn.Close()
		m.log.Warn("a member of etcd does not answer in time; others are asked", "member", addr, "for", avoidFor)
		return
	}
}

// first returns the member avoided first. It needs mu.
func (m *members) first() (addr string) {
	for a, until := range m.avoided {
		if addr == "" || until.Before(m.avoided[addr]) {
			addr = a
		}
	}
	return addr
}
