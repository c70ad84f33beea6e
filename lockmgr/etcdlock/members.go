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
	// tooLate is how long a member may take to answer on a stream. It is longer than an
	// election usually takes, which is no member's fault.
	tooLate = 2 * time.Second
	// avoidFor is how long a member is not asked again, nor seen to be well.
	avoidFor = 30 * time.Second
)

var errAvoided = errors.New("did not answer in time a moment ago")

// members knows the client's connections to the members of the cluster. The client takes them in
// turns, and goes on asking one that hangs, is frozen or waits for its disk. Each third
// request would run into its timeout, and a watch through that member would be told
// nothing. So a request that waits in vain ends the connection, and its member is avoided
// for a while.
type members struct {
	log     *slog.Logger
	allowed int // how many may be avoided at a time: a minority

	mu      sync.Mutex
	conns   map[string]net.Conn  // GUARDED_BY(mu); the last one, by address
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

// dial connects to addr, as the client names it.
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
		clear(m.avoided) // one that is away is worse than one that is slow
		return nil, err
	}
	m.conns[addr] = conn
	return conn, nil
}

// observe avoids the member that kept a request until others had answered later ones.
func (m *members) observe(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	var p peer.Peer
	err := invoke(ctx, method, req, reply, cc, append(opts[:len(opts):len(opts)], grpc.Peer(&p))...)
	if err != nil && errors.Is(context.Cause(ctx), errOvertaken) && p.Addr != nil {
		m.avoid(p.Addr)
	}
	return err
}

// observeStream avoids a member that keeps a message of a watch or a renewal: etcd answers each.
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
	late *time.Timer // GUARDED_BY(mu); nil unless an answer is due
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
	return s.ClientStream.SendMsg(msg)
}

func (s *observedStream) RecvMsg(msg any) error {
	err := s.ClientStream.RecvMsg(msg)
	if status.Code(err) != codes.DeadlineExceeded { // an answer, or the end of the stream
		s.mu.Lock()
		if s.late != nil {
			s.late.Stop()
			s.late = nil
		}
		s.mu.Unlock()
	}
	return err
}

// avoid breaks the connection to a member, and makes no other for a while. If too many are
// avoided, the first of them is asked again: a member that passes requests on to a leader
// that hangs is slow without a fault of its own.
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

// first returns the member that was avoided first, perhaps long ago. It needs mu.
func (m *members) first() (addr string) {
	for a, until := range m.avoided {
		if addr == "" || until.Before(m.avoided[addr]) {
			addr = a
		}
	}
	return addr
}
