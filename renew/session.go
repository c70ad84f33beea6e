package renew

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockfs/lockfs/internal/boottime"
)

// State is what a Session allows.
type State uint8

const (
	// Held: writes may be issued.
	Held State = iota
	// Suspended: the deadline passed. No write may be issued, but the session may become Held
	// again.
	Suspended
	// Lost: no write may be issued, ever again.
	Lost
)

func (s State) String() string {
	switch s {
	case Held:
		return "held"
	case Suspended:
		return "suspended"
	case Lost:
		return "lost"
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// Session is one lease while it is kept alive. It is safe for concurrent use.
type Session struct {
	// Constant.
	cfg    Config // with defaults
	lease  Lease
	term   time.Duration      // TTL − Margin: how long writes may be issued after a renewal was sent
	ctx    context.Context    // of Renew and Verify
	cancel context.CancelFunc // called when Lost
	lost   chan struct{}      // closed when Lost
	wake   chan struct{}      // capacity 1: events is not empty
	wg     sync.WaitGroup

	// deadline, a boottime.Instant, is all that Valid reads. A deadline that has passed is
	// Suspended. It is stored with mu held. A renewal extends it only if state is not Lost, and a
	// loss stores never and Lost under the same mu, so no extension follows a loss.
	deadline atomic.Int64

	// troubled: a renewal failed, or is overdue, since renewed. Stored with mu held.
	troubled atomic.Bool

	mu      sync.Mutex
	mutable // GUARDED_BY(mu)
}

// mutable is what changes in the life of a Session, besides the deadline.
type mutable struct {
	state   State
	since   boottime.Instant // when state began
	renewed boottime.Instant // when the last renewal that counted was sent
	failure error            // the last failed renewal since renewed; nil when none
	cause   error            // nil unless Lost
	changed chan struct{}    // closed, and replaced, when state changes
	events  []event          // not reported yet
}

// Start keeps lease alive until Close. sentAt is the instant before the lease was requested, from
// which the first deadline counts. Errors: ErrTimings.
func Start(cfg Config, lease Lease, sentAt boottime.Instant) (*Session, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if lease == nil {
		return nil, errors.New("renew: no lease")
	}
	now := cfg.Clock.Now()
	if sentAt > now {
		return nil, fmt.Errorf("%w: the grant was sent %v from now: want an instant of the same clock, taken before the request",
			ErrTimings, sentAt.Sub(now))
	}
	s := &Session{
		cfg:   cfg,
		lease: lease,
		term:  cfg.TTL - cfg.Margin,
		lost:  make(chan struct{}),
		wake:  make(chan struct{}, 1),
		mutable: mutable{
			since:   now,
			renewed: sentAt,
			changed: make(chan struct{}),
		},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.deadline.Store(int64(sentAt.Add(s.term)))
	s.wg.Go(s.keepRenewing)
	s.wg.Go(s.keepWatching)
	s.wg.Go(s.keepReporting)
	return s, nil
}

// Valid reports whether a write may be issued now: one atomic load and one clock reading, without
// any goroutine. The clock is read last, so that a thread stopped in between uses the time at
// which it woke up.
func (s *Session) Valid() bool {
	deadline := boottime.Instant(s.deadline.Load())
	return s.cfg.Clock.Now() < deadline
}

// Deadline returns until when Valid is true without a renewal; long past when Lost.
func (s *Session) Deadline() boottime.Instant { return boottime.Instant(s.deadline.Load()) }

// Troubled reports whether the last renewal failed or is overdue, so that writes must reach the
// volume at once. It costs one atomic load.
func (s *Session) Troubled() bool { return s.troubled.Load() }

// Await returns nil once a write may be issued. Errors: Cause when the session is Lost, or ctx's.
func (s *Session) Await(ctx context.Context) error {
	for !s.Valid() {
		seen := s.current()
		switch seen.state {
		case Lost:
			return s.Cause()
		case Suspended:
			select {
			case <-seen.changed:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// State returns the state by the clock as of now.
func (s *Session) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tick()
	return s.state
}

// Lost is closed when the session is Lost.
func (s *Session) Lost() <-chan struct{} { return s.lost }

// Cause says why the session is Lost: ErrGone, ErrUnanswered or ErrClosed, wrapped; nil before.
func (s *Session) Cause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// Close cancels a Renew under way, and waits for the session's goroutines. The session is Lost,
// with ErrClosed unless it was already. The lease is left as it is.
func (s *Session) Close() { s.close(ErrClosed) }

// HandOn is Close when another process keeps the lease alive: the cause is ErrHandedOn.
func (s *Session) HandOn() { s.close(ErrHandedOn) }

func (s *Session) close(cause error) {
	s.lose(cause)
	s.wg.Wait()
}
