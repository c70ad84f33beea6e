package renew

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockfs/lockfs/internal/boottime"
)

// keepWatching moves the state by the clock, even while the renewer hangs.
func (s *Session) keepWatching() {
	for {
		seen := s.current()
		if seen.state == Lost {
			return
		}
		select {
		case <-time.After(seen.due.Sub(seen.now)):
		case <-seen.changed:
		case <-s.lease.Done():
			s.lose(fmt.Errorf("%w: reported by the lock service", ErrGone))
		}
	}
}

func (s *Session) keepRenewing() {
	s.mu.Lock()
	next := s.renewed.Add(s.cfg.Interval)
	s.mu.Unlock()
	for {
		seen := s.current()
		if seen.state == Lost {
			return
		}
		if wait := next.Sub(seen.now); wait > 0 {
			select {
			case <-time.After(wait):
			case <-seen.changed: // Suspended: the lease may still live, ask at once
				next = seen.now
			}
			continue
		}
		// Sent when the state was judged: if the deadline has passed by then, the suspension came
		// first.
		if s.attempt(seen.now) {
			next = seen.now.Add(s.cfg.Interval)
		} else {
			next = seen.now.Add(s.cfg.Attempt / 4)
		}
	}
}

// attempt sends one renewal, and reports whether the session is Held by it.
func (s *Session) attempt(sent boottime.Instant) bool {
	err := s.bounded(s.lease.Renew)
	if s.cfg.OnRenewal != nil {
		s.cfg.OnRenewal(s.cfg.Clock.Now().Sub(sent), err)
	}
	if err == nil {
		err = s.answered(sent)
	}
	if err == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.tick()
	if errors.Is(err, ErrGone) {
		s.end(now, err)
	} else {
		s.fail(now, err)
	}
	return false
}

// answered counts a renewal that the service has answered, if it still counts.
func (s *Session) answered(sent boottime.Instant) error {
	resuming, err := s.count(sent, false)
	if err != nil || !resuming {
		return err
	}
	// An operator may have broken a lock while we did not listen.
	if err := s.bounded(s.lease.Verify); err != nil {
		return fmt.Errorf("verifying after a suspension: %w", err)
	}
	_, err = s.count(sent, true)
	return err
}

// count extends the deadline by an answered renewal. A suspended session needs a Verify first:
// count reports resuming, and changes nothing.
func (s *Session) count(sent boottime.Instant, verified bool) (resuming bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.tick()
	switch {
	case s.state == Lost:
		return false, s.cause
	case now >= sent.Add(s.term):
		return false, fmt.Errorf("answered %v after it was sent, past its own deadline", now.Sub(sent))
	case s.state == Held:
		s.extend(sent)
	case sent < s.since:
		return false, errors.New("answered after the suspension, but sent before")
	case !verified:
		return true, nil
	default:
		s.extend(sent)
		s.enter(Held, now, nil)
	}
	return false, nil
}

func (s *Session) bounded(call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.Attempt)
	defer cancel()
	return call(ctx)
}
