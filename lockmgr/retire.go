package lockmgr

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/lockfs/lockfs/renew"
)

// done notes that a request has finished acquiring on s, which may be nil.
func (m *Manager) done(s *session) {
	if s == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.asking--
}

// retire ends the sessions that a flood of locks has left behind, until Close.
func (m *Manager) retire() {
	tick := time.NewTicker(m.cfg.Renew.TTL / 2)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-m.ctx.Done():
			return
		}
		for _, s := range m.useless() {
			m.wg.Go(s.renewal.Close)
		}
	}
}

// useless takes sessions unused for a TTL off the list, while another has room.
func (m *Manager) useless() (found []*session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for _, s := range slices.Backward(m.sessions) { // the first ones are used first
		switch {
		case len(s.locks)+s.asking+s.holds > 0 || m.keepsLeft(s):
			s.idle = time.Time{}
		case s.idle.IsZero():
			s.idle = now
		case now.Sub(s.idle) >= m.cfg.Renew.TTL && m.spares(s):
			s.retired = true
			m.unrecordSession(s)
			m.sessions = slices.DeleteFunc(slices.Clone(m.sessions), func(o *session) bool { return o == s })
			found = append(found, s)
		}
	}
	return found
}

// spares reports whether another session has room. m.mu is held.
func (m *Manager) spares(s *session) bool {
	return !m.closed && slices.ContainsFunc(m.sessions, func(o *session) bool {
		return o != s && o.renewal.State() == renew.Held && len(o.locks)+o.asking < m.cfg.KeysPerSession
	})
}

func (m *Manager) isRetired(s *session) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return s.retired
}

func (m *Manager) dismiss(s *session) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(m.ctx), m.cfg.AnswerTimeout)
	defer cancel()
	s.renewal.Close()
	if err := s.backend.Close(ctx); err != nil && !errors.Is(err, ErrSessionLost) {
		m.log.Warn("could not end a session without locks", slog.String("session", s.backend.ID()), slog.Any("error", err))
	}
}
