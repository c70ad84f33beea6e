package renew

import (
	"fmt"
	"math"

	"github.com/lockfs/lockfs/internal/boottime"
)

// never is a deadline that has passed at every instant.
const never = boottime.Instant(math.MinInt64)

type view struct {
	now     boottime.Instant
	state   State
	changed <-chan struct{}  // closed when state changes
	due     boottime.Instant // when the clock may have moved the state on; none when Lost
}

func (s *Session) current() view {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.tick()
	return view{now: now, state: s.state, changed: s.changed, due: s.due()}
}

func (s *Session) lose(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(s.tick(), cause)
}

// The functions below are called with mu held.

// tick moves the state by the clock, and returns the instant read. Every decision starts with it:
// after a thaw, an answer that arrived meanwhile must not count as in time.
func (s *Session) tick() boottime.Instant {
	now := s.cfg.Clock.Now()
	switch {
	case s.state == Held && now >= boottime.Instant(s.deadline.Load()):
		s.troubled.Store(true)
		s.enter(Suspended, now, s.lastFailure())
	case s.state == Held && !s.troubled.Load() && now >= s.overdue():
		s.trouble(now)
	case s.state == Suspended && now >= s.giveUp():
		s.end(now, s.lastFailure())
	}
	return now
}

// due returns when tick will change something.
func (s *Session) due() boottime.Instant {
	switch {
	case s.state == Suspended:
		return s.giveUp()
	case !s.troubled.Load():
		return min(s.overdue(), boottime.Instant(s.deadline.Load()))
	}
	return boottime.Instant(s.deadline.Load())
}

// overdue catches a Renew that does not return.
func (s *Session) overdue() boottime.Instant {
	return s.renewed.Add(s.cfg.Interval + s.cfg.Attempt)
}

// giveUp counts from when the suspension was noticed, not from the deadline: a process that slept
// through both still asks the service once more.
func (s *Session) giveUp() boottime.Instant {
	return s.since.Add(s.cfg.SuspendWait)
}

// extend counts a renewal sent at an instant whose deadline is still ahead.
func (s *Session) extend(sent boottime.Instant) {
	s.renewed, s.failure = sent, nil
	s.troubled.Store(false)
	// The renewer sends one at a time, so sent only grows. The max is for the
	// invariant's sake: a deadline that writers have seen is never taken back.
	s.deadline.Store(max(s.deadline.Load(), int64(sent.Add(s.term))))
}

// fail notes a failed renewal. The first one is reported at once.
func (s *Session) fail(now boottime.Instant, err error) {
	s.failure = err
	if s.state == Held && !s.troubled.Load() {
		s.trouble(now)
	}
}

// trouble reports that the session, while still Held, is heading for Suspended.
func (s *Session) trouble(now boottime.Instant) {
	s.troubled.Store(true)
	s.report(event{state: Held, cause: s.lastFailure(), lasted: now.Sub(s.renewed), left: s.due().Sub(now), trouble: true})
}

func (s *Session) end(now boottime.Instant, cause error) {
	if s.state == Lost {
		return
	}
	s.deadline.Store(int64(never))
	s.cause = cause
	s.enter(Lost, now, cause)
	close(s.lost)
	s.cancel()
}

func (s *Session) enter(to State, now boottime.Instant, cause error) {
	from, lasted := s.state, now.Sub(s.since)
	s.state, s.since = to, now
	s.report(event{state: to, cause: cause, from: from, lasted: lasted, left: s.due().Sub(now)})
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Session) lastFailure() error {
	if s.failure == nil {
		return ErrUnanswered
	}
	return fmt.Errorf("%w: %w", ErrUnanswered, s.failure)
}
