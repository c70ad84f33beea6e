package lockmgr_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/internal/boottime"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
)

// leases is a Memory whose sessions end by themselves, a TTL after they were
// last renewed.
type leases struct{ *lockmgrtest.Memory }

func (l leases) mount(m *machine) lockmgr.Backend { return remote{l, m} }

type leased struct {
	lockmgr.Session
	svc leases

	mu      sync.Mutex
	expires time.Time
	timer   *time.Timer
}

func (l leases) open(ctx context.Context, info lockmgr.SessionInfo, ttl time.Duration) (*leased, error) {
	session, err := l.Memory.OpenSession(ctx, info, ttl)
	if err != nil {
		return nil, err
	}
	s := &leased{Session: session, svc: l, expires: time.Now().Add(ttl)}
	s.timer = time.AfterFunc(ttl, s.expire)
	return s, nil
}

func (s *leased) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !time.Now().Before(s.expires) {
		s.svc.Expire(s.Session)
	}
}

func (s *leased) Renew(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.Session.Renew(ctx)
	if err == nil {
		s.expires = time.Now().Add(s.TTL())
		s.timer.Reset(s.TTL())
	}
	return err
}

// machine is what a mount runs on: its clock, and its network, on which messages
// are late or lost. Frozen, it reads one time, and neither sends nor receives;
// cut off, all messages are lost.
type machine struct {
	mu     sync.Mutex
	rand   *rand.Rand
	cut    bool
	frozen boottime.Instant // since when; 0 while it runs
	thawed chan struct{}    // closed when it thaws

	// at, if not nil, is told when a request is sent, when its answer is, and when a recall is heard.
	// It may take its time, and reports whether that message is lost.
	at func(what string) (lost bool)
}

func (m *machine) meets(what string) (lost bool) { return m.at != nil && m.at(what) }

func (m *machine) Now() boottime.Instant {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.frozen != 0 {
		return m.frozen
	}
	return bubbleClock{}.Now()
}

func (m *machine) freeze() {
	now := m.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.frozen, m.thawed = now, make(chan struct{})
}

func (m *machine) thaw() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.frozen = 0
	close(m.thawed)
}

// runs returns when the machine does.
func (m *machine) runs() {
	for {
		m.mu.Lock()
		frozen, thawed := m.frozen != 0, m.thawed
		m.mu.Unlock()
		if !frozen {
			return
		}
		<-thawed
	}
}

func (m *machine) setCut(cut bool) {
	m.mu.Lock()
	m.cut = cut
	m.mu.Unlock()
}

// carry takes a message to its end, in its time, or loses it. Without rand it loses it only if the
// machine is cut off.
func (m *machine) carry() (arrived bool) {
	m.mu.Lock()
	if m.rand == nil {
		cut := m.cut
		m.mu.Unlock()
		<-time.After(time.Millisecond)
		return !cut
	}
	delay := time.Duration(m.rand.ExpFloat64() * float64(100*time.Millisecond))
	lost := m.cut || m.rand.IntN(60) == 0
	if m.rand.IntN(60) == 0 {
		delay = time.Duration(m.rand.Int64N(int64(ttl)))
	}
	m.mu.Unlock()
	<-time.After(delay)
	return !lost
}

// call asks the service. An error says nothing about whether it did, or will do,
// what it was asked.
func (m *machine) call(ctx context.Context, what string, do func() error) error {
	done := make(chan error, 1)
	go func() {
		err := lockmgr.ErrUnavailable
		m.runs()
		if lost := m.meets(what + " sent"); m.carry() && !lost {
			err = do()
			if lost = m.meets(what + " answered"); !m.carry() || lost {
				err = fmt.Errorf("%w: the answer was lost", lockmgr.ErrUnavailable)
			}
		}
		m.runs()
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		m.runs()
		return fmt.Errorf("%w: %w", lockmgr.ErrUnavailable, ctx.Err())
	}
}

// remote is the service as a mount on m sees it.
type remote struct {
	leases
	m *machine
}

func (r remote) OpenSession(ctx context.Context, info lockmgr.SessionInfo, ttl time.Duration) (lockmgr.Session, error) {
	opened := make(chan *leased, 1)
	err := r.m.call(ctx, "session", func() error {
		s, err := r.open(context.Background(), info, ttl)
		opened <- s
		return err
	})
	if err != nil {
		return nil, err
	}
	s := &remoteSession{leased: <-opened, m: r.m, over: make(chan struct{})}
	go func() {
		<-s.leased.Done()
		for s.m.runs(); !s.m.carry(); s.m.runs() {
		}
		close(s.over)
	}()
	return s, nil
}

func (r remote) WatchBreaks(ctx context.Context, found func(lockmgr.Break)) {
	r.leases.WatchBreaks(ctx, func(b lockmgr.Break) {
		for r.m.runs(); !r.m.carry(); r.m.runs() {
		}
		found(b)
	})
}

func (r remote) WatchRecalls(ctx context.Context, found func(lockmgr.Recall)) {
	r.leases.WatchRecalls(ctx, func(recall lockmgr.Recall) {
		if r.m.meets("recall heard") {
			return
		}
		for r.m.runs(); !r.m.carry(); r.m.runs() {
		}
		found(recall)
	})
}

func (r remote) Recalls(ctx context.Context) ([]lockmgr.Recall, error) {
	answer := make(chan []lockmgr.Recall, 1)
	err := r.m.call(ctx, "recalls", func() error {
		recalls, err := r.leases.Recalls(context.Background())
		answer <- recalls
		return err
	})
	if err != nil {
		return nil, err
	}
	return <-answer, nil
}

func (r remote) InUse(ctx context.Context, id uuid.UUID) error {
	return r.m.call(ctx, "in use", func() error { return r.leases.InUse(context.Background(), id) })
}

func (r remote) Describe(ctx context.Context, entries []lockmgr.Entry) error {
	return r.m.call(ctx, "holders", func() error { return r.leases.Describe(context.Background(), entries) })
}

type remoteSession struct {
	*leased
	m    *machine
	over chan struct{}
}

func (s *remoteSession) Done() <-chan struct{} { return s.over }

func (s *remoteSession) Renew(ctx context.Context) error {
	return s.m.call(ctx, "renewal", func() error { return s.leased.Renew(context.Background()) })
}

// Acquire stays in line while its caller waits. What it put, and the caller was
// not told of, is removed some time later.
func (s *remoteSession) Acquire(ctx context.Context, req lockmgr.AcquireRequest) ([]lockmgr.Grant, error) {
	waiting, leave := context.WithCancel(context.Background())
	var grants []lockmgr.Grant
	granted := make(chan struct{})
	err := s.m.call(ctx, "request", func() (err error) {
		defer close(granted)
		grants, err = s.leased.Acquire(waiting, req)
		return err
	})
	if err == nil {
		leave()
		return grants, nil
	}
	go func() {
		s.m.carry()
		leave()
		select {
		case <-granted:
			for _, g := range grants {
				for errors.Is(s.leased.Release(context.Background(), g), lockmgr.ErrUnavailable) {
					<-time.After(time.Second)
				}
			}
		case <-time.After(2 * ttl): // the request was lost
		}
	}()
	return nil, err
}

func (s *remoteSession) MostBelow() int { return s.leased.Session.(lockmgr.Delegator).MostBelow() }

func (s *remoteSession) Stands(ctx context.Context, d lockmgr.Grant) (revision int64, err error) {
	answer := make(chan int64, 1)
	err = s.m.call(ctx, "stands", func() error {
		revision, err := s.leased.Session.(lockmgr.Delegator).Stands(context.Background(), d)
		answer <- revision
		return err
	})
	if err != nil {
		return 0, err
	}
	return <-answer, nil
}

// PutBelow is as Acquire: what the caller was not told of is removed some time later.
func (s *remoteSession) PutBelow(ctx context.Context, d lockmgr.Grant, entries []lockmgr.Entry) (int64, error) {
	done := make(chan int64, 1)
	var came atomic.Bool
	err := s.m.call(ctx, "entries", func() error {
		came.Store(true)
		defer close(done)
		token, err := s.leased.Session.(lockmgr.Delegator).PutBelow(context.Background(), d, entries)
		if err == nil {
			done <- token
		}
		return err
	})
	if err == nil || errors.Is(err, lockmgr.ErrNotHeld) {
		return <-done, err
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if ctx.Err() == nil && !came.Load() {
			return // the request was lost, and the fence keeps it out
		}
		select {
		case token, ok := <-done:
			for _, e := range entries {
				e.Token = token
				for ok && errors.Is(s.leased.Release(context.Background(), e.Grant()), lockmgr.ErrUnavailable) {
					<-time.After(time.Second)
				}
			}
		case <-time.After(2 * ttl): // the request was lost
		}
	}()
	return 0, &lockmgr.LeftoverError{Err: err, Gone: gone}
}

func (s *remoteSession) Release(ctx context.Context, g lockmgr.Grant) error {
	return s.m.call(ctx, "release", func() error { return s.leased.Release(context.Background(), g) })
}

func (s *remoteSession) Held(ctx context.Context, grants []lockmgr.Grant) (held []bool, err error) {
	answer := make(chan []bool, 1)
	err = s.m.call(ctx, "look", func() error {
		held, err := s.leased.Held(context.Background(), grants)
		answer <- held
		return err
	})
	if err != nil {
		return nil, err
	}
	return <-answer, nil
}

func (s *remoteSession) Watch(ctx context.Context, held func() []lockmgr.Grant, gone func(lockmgr.Grant)) {
	s.leased.Watch(ctx, held, func(g lockmgr.Grant) {
		for s.m.runs(); !s.m.carry(); s.m.runs() {
		}
		gone(g)
	})
}

func (s *remoteSession) Close(ctx context.Context) error {
	return s.m.call(ctx, "end", func() error { return s.leased.Close(context.Background()) })
}
