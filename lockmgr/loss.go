package lockmgr

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/lockfs/lockfs/renew"
)

// A loss is told once, in an error that says what went and why:
//
//	lock session lost: lease gone: …                              the service ended the session
//	lock session lost: no renewal was answered in time: …         we gave it up
//	lock lost: its entry was deleted from the lock service        by hand
//	lock lost: broken by alice: …                                 by 'lockfs break'
//	lock lost: the volume's client is gone                        see Abandon
//
// In the first case the backend returns an ErrSessionLost with the cause. gone hands the cause to
// renew, and loss gets it from there.

// SessionLost returns the ErrSessionLost that has a cause.
func SessionLost(cause error) error { return &sessionLost{cause} }

type sessionLost struct{ cause error }

func (e *sessionLost) Error() string        { return ErrSessionLost.Error() + ": " + e.cause.Error() }
func (e *sessionLost) Is(target error) bool { return target == ErrSessionLost }
func (e *sessionLost) Unwrap() error        { return e.cause }

// gone translates the service's 'no such session' for renew.
func gone(err error) error {
	var lost *sessionLost
	switch {
	case !errors.Is(err, ErrSessionLost):
		return err
	case errors.As(err, &lost):
		return fmt.Errorf("%w: %w", renew.ErrGone, lost.cause)
	}
	return renew.ErrGone
}

// loss is the error of locks lost with s.
func (s *session) loss() error { return SessionLost(s.renewal.Cause()) }

// check returns nil if locks on s are good at this instant.
func (s *session) check() error {
	if s.renewal.Valid() {
		return nil
	}
	select {
	case <-s.renewal.Lost():
		return s.loss()
	default:
		return ErrSuspended
	}
}

func lockLoss(cause error) error { return fmt.Errorf("%w: %w", ErrLockLost, cause) }

var (
	errDeleted = lockLoss(errors.New("its entry was deleted from the lock service"))
	errVoided  = lockLoss(errors.New("another lock of the same file was"))
)

func (b Break) loss() error {
	return lockLoss(fmt.Errorf("%w by %s: %s", ErrBroken, b.By, b.Reason))
}

// loseSession voids a lost session's locks, so that no request joins them.
func (m *Manager) loseSession(s *session) {
	m.mu.Lock()
	if !m.closed { // else Close ends it
		m.sessions = slices.DeleteFunc(m.sessions, func(o *session) bool { return o == s })
	}
	m.unrecordSession(s)
	m.loseAll(s)
	n := s.voided
	closed := m.closed
	advisory := m.advisory
	m.mu.Unlock()
	if closed {
		return
	}
	var mourned []<-chan struct{}
	if advisory != nil {
		mourned = advisory.lose(s)
	}
	m.wg.Go(m.reopen)
	m.log.Error("lock session lost; its locks are void and their files return EIO",
		slog.String("session", s.backend.ID()), slog.Int("locks", n), slog.Any("error", s.renewal.Cause()))
	// The lease of a session given up early may live. Its revoke lets others in, so it comes after
	// the writes checked just before the loss, and what OnLost does. A TTL later it is over anyway.
	select {
	case <-time.After(renew.CheckToIssue + renew.WriteInFlight):
	case <-m.ctx.Done():
	}
	landed := make(chan struct{})
	m.wg.Go(func() {
		defer close(landed)
		s.losing.Wait()
		for _, told := range mourned {
			select {
			case <-told:
			case <-m.ctx.Done():
			}
		}
	})
	select {
	case <-landed:
	case <-time.After(s.backend.TTL()):
	case <-m.ctx.Done():
	}
	// The entries of a dead session end by themselves. This stops the backend's goroutines and may
	// end the entries sooner.
	ctx, cancel := context.WithTimeout(m.ctx, s.backend.TTL())
	defer cancel()
	s.renewal.Close()
	if err := s.backend.Close(ctx); err != nil && !errors.Is(err, ErrSessionLost) {
		m.log.Warn("could not end the lost session", slog.String("session", s.backend.ID()), slog.Any("error", err))
	}
}

func (m *Manager) loseAll(s *session) {
	for _, d := range m.dels {
		if d.lock.sess == s {
			m.forget(d)
		}
	}
	for l := range s.locks {
		switch {
		case !l.releasing:
			m.lose(l, s.loss())
			s.voided++
		case l.surrendering, // loseSession waits for its changes
			l.below != nil: // closed while its entry was being put
			m.void(l)
		}
	}
}

// loseLost voids the lost locks of s now: the sessions' own goroutines might do so later. m.mu is
// held.
func (m *Manager) loseLost(s *slot) {
	if len(s.locks) == 1 {
		if l := s.locks[0]; l.lost() && !l.releasing {
			m.lose(l, l.sess.loss())
			l.sess.voided++
		}
		return
	}
	for _, sess := range m.sessions {
		if len(s.locks) > 0 && sess.renewal.State() == renew.Lost {
			m.loseAll(sess)
		}
	}
}

// void removes a lock that is over. m.mu is held.
func (m *Manager) void(l *lock) {
	if !l.stands() {
		return
	}
	m.table.remove(l)
	m.leaveDelegation(l)
	m.keeper.notIdle(l)
	delete(m.keeper.keepable, l.grant.AcquisitionID)
	delete(m.keeper.raised, l)
}

// lose voids a lost lock, and tells its holds, the log and Config.Observe. m.mu is held.
func (m *Manager) lose(l *lock, cause error) {
	m.void(l)
	if m.closed || len(l.holds) == 0 {
		return
	}
	for h := range l.holds {
		l.sess.losing.Add(1)
		onLost := h.onLost
		m.wg.Go(func() {
			defer l.sess.losing.Done()
			if onLost != nil {
				onLost()
			}
			h.landed(m.ctx)
		})
	}
	m.wg.Go(func() {
		m.lockLog(l).Error("lock lost; its file returns EIO", slog.Any("error", cause))
		m.observe(LockLost{Key: l.grant.Key, Holder: l.holder, Cause: cause})
	})
}

// lockLost voids one lock whose session lives: its holds fail for ever.
func (m *Manager) lockLost(l *lock, cause error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l.grant.Mode == Delegated {
		if d := m.dels[l.grant.Key.Path]; d != nil && d.lock == l { // else it is known already
			m.loseDelegation(d, cause)
		}
		return
	}
	if l.releasing || !l.stands() {
		return // released meanwhile
	}
	m.loseAlone(l, cause)
}

// loseAlone is lose for a lock whose session lives. Its holds fail for ever. m.mu is held.
func (m *Manager) loseAlone(l *lock, cause error) {
	for h := range l.holds {
		h.fail(cause)
	}
	m.lose(l, cause)
	l.rewrite()
}

func (l *lock) lost() bool { return l.sess.renewal.State() == renew.Lost }

// Lost reports whether the hold is lost for ever.
func (h *Hold) Lost() bool { return !h.Unlocked() && h.why() != nil }

// Void makes the hold lost for ever: ErrLockLost.
func (h *Hold) Void() {
	h.fail(errVoided)
	if h.m.cfg.Record.Keeps() {
		h.m.mu.Lock()
		defer h.m.mu.Unlock()
		h.write()
	}
}

func (h *Hold) fail(cause error) { h.lost.CompareAndSwap(nil, &cause) }

// why returns the loss of the hold; nil: it is not lost.
func (h *Hold) why() error {
	if p := h.lost.Load(); p != nil {
		return *p
	}
	for _, s := range h.relied() {
		if s.renewal.State() == renew.Lost {
			return s.loss()
		}
	}
	return nil
}
