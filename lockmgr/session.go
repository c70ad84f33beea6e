package lockmgr

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/lockfs/lockfs/internal/boottime"
	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/renew"
)

// session is one session with its own deadline and state. Its locks are lost with it.
type session struct {
	backend    Session
	renewal    *renew.Session
	locks      map[*lock]struct{} // GUARDED_BY(Manager.mu); those in slots
	asking     int                // GUARDED_BY(Manager.mu); requests that acquire on it
	holds      int                // GUARDED_BY(Manager.mu); unreleased holds that rely on it
	idle       time.Time          // GUARDED_BY(Manager.mu); since when it was seen unused
	retired    bool               // GUARDED_BY(Manager.mu); removed from Manager.sessions, though not lost
	voided     int                // GUARDED_BY(Manager.mu); how many locks were lost with it
	tended     bool               // GUARDED_BY(Manager.mu); see tend
	losing     sync.WaitGroup     // what follows the loss of its locks
	record     uint64             // GUARDED_BY(Manager.mu); its number
	formerOver chan struct{}      // of an adopted one: closed when nothing that a former process has sent can come late
}

type lease struct {
	m *Manager
	s *session
}

func (l lease) Renew(ctx context.Context) error {
	return gone(l.s.backend.Renew(ctx))
}

func (l lease) Done() <-chan struct{} { return l.s.backend.Done() }

// Verify marks the locks as lost whose entries went during a suspension.
func (l lease) Verify(ctx context.Context) error {
	locks := l.m.locksOf(l.s)
	grants := make([]Grant, len(locks))
	for i, lk := range locks {
		grants[i] = lk.grant
	}
	held, err := l.s.backend.Held(ctx, grants)
	if err != nil {
		return gone(err)
	}
	for i, ok := range held {
		if !ok {
			l.m.lockLost(locks[i], errDeleted)
		}
	}
	return nil
}

// session returns prefer if that lives; else the first with room, Held before Suspended; else a
// new one. It is not retired until the caller calls done. Errors: ErrUnavailable when ctx ends.
func (m *Manager) session(ctx context.Context, prefer *session) (*session, error) {
	select {
	case m.opening <- struct{}{}:
		defer func() { <-m.opening }()
	case <-ctx.Done():
		return nil, retry.Ended(ctx)
	}
	m.mu.Lock()
	closed, living := m.refusing, prefer
	if prefer == nil || prefer.retired || prefer.renewal.State() == renew.Lost {
		living = nil
		for _, s := range m.sessions {
			state := s.renewal.State()
			if state == renew.Held && len(s.locks)+s.asking < m.cfg.KeysPerSession {
				living = s
				break
			}
			if state == renew.Suspended && living == nil {
				living = s
			}
		}
	}
	if living != nil {
		living.asking++
		living.idle = time.Time{}
	}
	m.mu.Unlock()
	if closed {
		return nil, ErrClosed
	}
	if living != nil {
		return living, nil
	}
	for r := (retry.Retrier{}); ; {
		s, err := m.openSession(ctx)
		if err == nil {
			return s, nil
		}
		if !errors.Is(err, ErrUnavailable) || ctx.Err() != nil {
			return nil, err
		}
		if perr := r.Pause(ctx); perr != nil {
			return nil, fmt.Errorf("%w: %w", err, perr)
		}
	}
}

func (m *Manager) openSession(ctx context.Context) (*session, error) {
	sent, began := m.now(), time.Now() // the deadline counts from before the service could hear of us
	bs, err := m.backend.OpenSession(ctx, m.cfg.Session, m.cfg.Renew.TTL)
	m.outage.note(began, err)
	if err != nil {
		return nil, err
	}
	s := &session{backend: bs, locks: make(map[*lock]struct{}), asking: 1}
	if err := m.renewSession(s, sent); err != nil {
		cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bs.TTL())
		defer cancel()
		return nil, errors.Join(err, bs.Close(cctx))
	}
	m.tend(s)
	return s, nil
}

// renewSession keeps s alive from now on. Two goroutines of tend are expected.
func (m *Manager) renewSession(s *session, sent boottime.Instant) (err error) {
	rcfg := m.cfg.Renew
	rcfg.TTL = s.backend.TTL()
	rcfg.OnChange = m.sessionChanged
	rcfg.OnRenewal = func(took time.Duration, err error) {
		m.outage.note(time.Now().Add(-took), err)
		m.observe(SessionRenewed{Took: took, Err: err})
	}
	if s.renewal, err = renew.Start(rcfg, lease{m, s}, sent); err != nil {
		return err
	}
	m.mu.Lock()
	if m.refusing {
		err = ErrClosed
	} else {
		m.sessions = append(m.sessions, s)
		m.recordSession(s)
		m.wg.Add(2)
	}
	m.mu.Unlock()
	if err != nil {
		s.renewal.Close()
	}
	return err
}

// tend watches a session of Manager.sessions.
func (m *Manager) tend(s *session) {
	m.mu.Lock()
	s.tended = true
	m.mu.Unlock()
	watching, over := context.WithCancel(m.ctx)
	go func() {
		defer m.wg.Done()
		m.watchEntries(watching, s)
	}()
	go func() {
		defer m.wg.Done()
		<-s.renewal.Lost()
		over()
		if m.isRetired(s) {
			m.dismiss(s)
		} else {
			m.loseSession(s)
		}
	}()
}

func (m *Manager) now() boottime.Instant {
	if c := m.cfg.Renew.Clock; c != nil {
		return c.Now()
	}
	return boottime.System{}.Now()
}

// reopen opens a session if none is left: an unused mount shows whether it can lock anything.
func (m *Manager) reopen() {
	for {
		// Several short tries: a request with little time may wait for its turn to try.
		ctx, cancel := context.WithTimeout(m.accepting, m.cfg.Renew.TTL)
		s, err := m.session(ctx, nil)
		cancel()
		m.done(s)
		switch {
		case err == nil, m.accepting.Err() != nil:
			return
		case !errors.Is(err, ErrUnavailable):
			m.log.Error("no new lock session: calls that need a lock are refused", slog.Any("error", err))
			return
		}
	}
}

func (m *Manager) locksOf(s *session) []*lock {
	m.mu.Lock()
	defer m.mu.Unlock()
	var locks []*lock
	for l := range s.locks {
		if !l.releasing && l.below == nil {
			locks = append(locks, l)
		}
	}
	for _, d := range m.dels {
		if d.lock.sess == s && d.stands() {
			locks = append(locks, d.lock)
		}
	}
	return locks
}
