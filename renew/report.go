package renew

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// event is something to tell the log and OnChange.
type event struct {
	state   State
	cause   error
	from    State
	lasted  time.Duration // how long from lasted; for trouble, since the last renewal
	left    time.Duration // until the next state without a renewal; of trouble and Suspended
	trouble bool
}

// report queues an event. It is called with mu held.
func (s *Session) report(e event) {
	s.events = append(s.events, e)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// keepReporting reports events until the session is Lost.
func (s *Session) keepReporting() {
	for range s.wake {
		s.mu.Lock()
		events := s.events
		s.events = nil
		s.mu.Unlock()
		for _, e := range events {
			s.log(e)
			if s.cfg.OnChange != nil {
				s.cfg.OnChange(e.state, e.cause)
			}
			if e.state == Lost {
				return
			}
		}
	}
}

func (s *Session) log(e event) {
	level, msg := slog.LevelInfo, "lock session resumed"
	switch {
	case e.trouble:
		level, msg = slog.LevelWarn, "lock session not renewed"
	case e.state == Suspended:
		level, msg = slog.LevelWarn, "lock session suspended: writes wait"
	case errors.Is(e.cause, ErrHandedOn):
		msg = "lock session handed on"
	case errors.Is(e.cause, ErrClosed):
		msg = "lock session closed"
	case e.state == Lost:
		level, msg = slog.LevelError, "lock session lost: writes fail"
	}
	attrs := []slog.Attr{slog.Duration("after", e.lasted)}
	if e.trouble {
		attrs = append(attrs, slog.Duration("writes_wait_in", e.left))
	} else {
		attrs = append(attrs, slog.String("was", e.from.String()))
	}
	if e.state == Suspended {
		attrs = append(attrs, slog.Duration("writes_fail_in", e.left))
	}
	if e.cause != nil && !errors.Is(e.cause, ErrClosed) { // the message says it
		attrs = append(attrs, slog.Any("error", e.cause))
	}
	s.cfg.Logger.LogAttrs(context.Background(), level, msg, attrs...)
}
