package etcdlock

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// trio is three members as a client knows them, each with a connection.
type trio struct {
	*members
	t     *testing.T
	dir   string
	conns map[string]*memberConn
}

type memberConn struct {
	net.Conn
	addr   *net.UnixAddr
	closed bool
}

func (c *memberConn) RemoteAddr() net.Addr { return c.addr }
func (c *memberConn) Close() error         { c.closed = true; return nil }

func newTrio(t *testing.T) *trio {
	m := &trio{members: newMembers(3, slog.New(slog.DiscardHandler)), t: t, dir: t.TempDir(), conns: make(map[string]*memberConn)}
	for _, name := range []string{"a", "b", "c"} {
		m.connect(name)
	}
	return m
}

// connect has the client connect to a member, again: see dial.
func (m *trio) connect(name string) {
	m.conns[name] = &memberConn{addr: &net.UnixAddr{Name: m.dir + "/" + name, Net: "unix"}}
	m.members.conns[m.at(name)] = m.conns[name]
}

func (m *trio) at(name string) string { return "unix://" + m.conns[name].addr.Name }

// asks has a member keep a request until ctx ends.
func (m *trio) asks(ctx context.Context, name string) error {
	return m.observe(ctx, "", nil, nil, nil, func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
		for _, o := range opts {
			if p, ok := o.(grpc.PeerCallOption); ok {
				*p.PeerAddr = peer.Peer{Addr: m.conns[name].addr}
			}
		}
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	})
}

// overtaken has a member keep a request until another one is answered.
func (m *trio) overtaken(name string) {
	ctx, cancel := context.WithCancelCause(m.t.Context())
	time.AfterFunc(time.Second, func() { cancel(errOvertaken) })
	if m.asks(ctx, name) == nil {
		m.t.Error("it was answered")
	}
}

// want fails the test unless these members are avoided, and all others asked.
func (m *trio) want(avoided ...string) {
	m.t.Helper()
	set := make(map[string]bool)
	for _, name := range avoided {
		set[name] = true
	}
	for name, c := range m.conns {
		m.mu.Lock()
		got := time.Now().Before(m.avoided[m.at(name)])
		m.mu.Unlock()
		if got != set[name] || c.closed != set[name] {
			m.t.Errorf("%s: avoided: %v, its connection closed: %v, want %v", name, got, c.closed, set[name])
		}
		if set[name] {
			if _, err := m.dial(m.t.Context(), m.at(name)); !errors.Is(err, errAvoided) {
				m.t.Errorf("dial %s: %v", name, err)
			}
		}
	}
}

// A member that keeps a request until others have answered is left, and not asked
// again for a while. One whose caller has gone is not to blame.
func TestAvoided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTrio(t)
		gone, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if m.asks(gone, "b") == nil {
			t.Error("it was answered")
		}
		m.want()
		m.overtaken("b")
		m.want("b")
		time.Sleep(avoidFor - 1)
		m.want("b")
		time.Sleep(time.Nanosecond)
		if _, err := m.dial(t.Context(), m.at("b")); err == nil || errors.Is(err, errAvoided) { // nobody listens there
			t.Errorf("dial, when the time is over: %v", err)
		}
	})
}

// No majority is avoided: of two members that hang, the first is asked again.
func TestAvoidedIsAMinority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTrio(t)
		m.overtaken("b")
		m.overtaken("c")
		m.connect("b")
		m.want("c")
		m.overtaken("a")
		m.connect("c")
		m.want("a")
	})
	if got := newMembers(1, nil).options(); got != nil {
		t.Error("an only member may be avoided")
	}
}

// A member that is away is worse than one that is slow.
func TestAvoidedIsBetterThanNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTrio(t)
		m.overtaken("b")
		m.want("b")
		if _, err := m.dial(t.Context(), m.at("c")); err == nil || errors.Is(err, errAvoided) { // nobody listens there
			t.Errorf("dial of one that is away: %v", err)
		}
		if _, err := m.dial(t.Context(), m.at("b")); errors.Is(err, errAvoided) {
			t.Error("b is avoided, though c is away")
		}
	})
}

// stream is a renewal or a watch through a member, which answers when told to.
type stream struct {
	grpc.ClientStream
	ctx     context.Context
	answers chan error
	ended   error // what sending fails with
}

func (s *stream) Context() context.Context { return s.ctx }
func (s *stream) SendMsg(any) error        { return s.ended }
func (s *stream) RecvMsg(any) error        { return <-s.answers }

// streamOf returns a stream to a member, and the same as its user sees it.
func (m *trio) streamOf(member string) (*stream, grpc.ClientStream) {
	m.t.Helper()
	below := &stream{ctx: peer.NewContext(m.t.Context(), &peer.Peer{Addr: m.conns[member].addr}), answers: make(chan error, 1)}
	s, err := m.observeStream(m.t.Context(), nil, nil, "", func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
		return below, nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return below, s
}

// So is one that does not answer on a stream. An election's time is none's fault.
func TestAvoidedStream(t *testing.T) {
	for name, c := range map[string]struct {
		after  time.Duration
		answer error
		want   []string
	}{
		"in time":          {tooLate - 1, nil, nil},
		"too late":         {tooLate + 1, nil, []string{"b"}},
		"an error in time": {tooLate - 1, status.Error(codes.Unavailable, "no leader"), nil},
		"given up before":  {tooLate - 1, status.FromContextError(context.DeadlineExceeded).Err(), []string{"b"}},
		"canceled before":  {tooLate - 1, status.FromContextError(context.Canceled).Err(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newTrio(t)
				below, s := m.streamOf("b")
				time.Sleep(time.Hour) // silence says nothing before something is asked
				if err := s.SendMsg(nil); err != nil {
					t.Fatal(err)
				}
				time.AfterFunc(c.after, func() { below.answers <- c.answer })
				if err := s.RecvMsg(nil); !errors.Is(err, c.answer) {
					t.Error(err)
				}
				time.Sleep(avoidFor / 2)
				m.want(c.want...)
			})
		})
	}
}

// An answer in time is one to all that was asked on the stream before.
func TestAskedTwiceOnAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTrio(t)
		below, s := m.streamOf("b")
		for range 2 {
			if err := s.SendMsg(nil); err != nil {
				t.Fatal(err)
			}
		}
		below.answers <- nil
		if err := s.RecvMsg(nil); err != nil {
			t.Error(err)
		}
		time.Sleep(avoidFor / 2)
		m.want()
	})
}

// A watch that is asked for on a stream that has just ended, by a restart say, is never answered there,
// and nobody reads the answer. The member is not to blame.
func TestAskedAfterTheEndOfAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTrio(t)
		below, s := m.streamOf("b")
		below.answers <- io.EOF
		if err := s.RecvMsg(nil); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		below.ended = io.EOF
		if err := s.SendMsg(nil); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		time.Sleep(avoidFor / 2)
		m.want()
	})
}
