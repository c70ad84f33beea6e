package lockmgr

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/renew"
)

// Break asks the holder of a lock to give it up.
type Break struct {
	ID            uuid.UUID     `json:"-"`
	Path          string        `json:"path"`           // the Key.String, for people
	AcquisitionID AcquisitionID `json:"lock"`           // so that no later holder is meant
	Token         int64         `json:"token"`          // the entry's, see FencingToken
	Turn          int           `json:"turn,omitempty"` // the owner of a kept lock that is meant
	// Session is of the mount whose flock and fcntl locks on the file Path are meant, all of
	// them: those of the row of Token. Empty: Path's lock of AcquisitionID is.
	Session string    `json:"session,omitempty"`
	By      string    `json:"by"`
	Reason  string    `json:"reason"`
	At      time.Time `json:"at"`
}

// ParseBreak reads the JSON that a backend has stored under id.
func ParseBreak(id string, record []byte) (b Break, err error) {
	if err = json.Unmarshal(record, &b); err == nil {
		b.ID, err = uuid.Parse(id)
	}
	return b, err
}

// Breaker breaks locks. Only the holder deletes its entry: only it knows when its writes have
// landed.
type Breaker interface {
	// PutBreak tells all mounts, also those that come later. The record is kept for a day. Errors:
	// ErrUnavailable.
	PutBreak(ctx context.Context, b Break) error

	// DropBreak withdraws an unanswered Break. Errors: ErrUnavailable.
	DropBreak(ctx context.Context, id uuid.UUID) error

	// WatchBreaks calls found for each present and later Break, perhaps repeatedly, until ctx
	// ends.
	WatchBreaks(ctx context.Context, found func(Break))

	// AwaitGone waits until the service does not have g, also through an outage. Errors: ctx's.
	AwaitGone(ctx context.Context, g Grant) error

	// SessionTTL returns the TTL of a session. Errors: ErrSessionLost if it does not exist;
	// ErrUnavailable.
	SessionTTL(ctx context.Context, id string) (time.Duration, error)

	// Revoke ends a session, if it exists. Its mount may write until it notices. Errors:
	// ErrUnavailable.
	Revoke(ctx context.Context, id string) error
}

// obey gives up b's lock if it is this mount's, and all other locks of its files: a file is free
// only when all its keys are.
func (m *Manager) obey(b Break) {
	m.mu.Lock()
	advisory := m.advisory
	m.mu.Unlock()
	if b.Session != "" {
		if advisory != nil {
			advisory.obey(b)
		}
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.early[b.AcquisitionID]; o != nil {
		o.breaks = append(o.breaks, b)
		return
	}
	m.giveUpFor(b)
}

// giveUpFor is obey for known locks. m.mu is held.
func (m *Manager) giveUpFor(b Break) {
	var meant, idle []*lock
	for _, s := range m.table.slots {
		for _, l := range s.locks {
			if l.grant.AcquisitionID != b.AcquisitionID || l.grant.Token != b.Token || l.releasing {
				continue
			}
			switch {
			case l.idle != nil:
				idle = append(idle, l)
			case l.turn != b.Turn: // the owner that was meant has closed its file
				l.recalled = true
			default:
				meant = append(meant, l)
			}
		}
	}
	for _, l := range idle {
		m.giveIdleBack(l)
	}
	if d := m.delegationOfID(b.AcquisitionID); d != nil {
		m.end(d)
	}
	m.renounce(meant, b.loss(), "lock broken; its file returns EIO",
		slog.String("break", b.ID.String()), slog.String("by", b.By), slog.String("reason", b.Reason), slog.Time("at", b.At))
}

// Abandon makes holds lost for ever, with all locks of their files. cause is the reason. The locks
// are released when the writes under them have landed.
func (m *Manager) Abandon(holds []*Hold, cause error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var locks []*lock
	for _, h := range holds {
		locks = append(locks, h.locks...)
	}
	m.renounce(locks, lockLoss(cause), "lock lost; its file returns EIO", slog.Any("error", cause))
}

// renounce gives up locks, and all locks that share a hold with them. m.mu is held.
func (m *Manager) renounce(meant []*lock, cause error, msg string, attrs ...any) {
	if m.closed {
		return
	}
	for _, one := range meant { // each file by itself: a change that hangs delays no other file's lock
		locks, holds := entangled(one)
		if len(locks) == 0 {
			continue
		}
		for _, h := range holds {
			h.fail(cause)
			h.write()
		}
		for _, l := range locks {
			log, lost := m.lockLog(l), LockLost{Key: l.grant.Key, Holder: l.holder, Cause: cause} // both can change
			m.wg.Go(func() {
				log.Warn(msg, attrs...)
				m.observe(lost)
			})
		}
		m.surrender(locks, holds)
	}
}

// entangled returns a lock, unless it is over or given up, and transitively all locks that share a hold
// with it, and their holds. m.mu is held.
func entangled(meant *lock) (locks []*lock, holds []*Hold) {
	found, seen := make(map[*lock]bool), make(map[*Hold]bool)
	add := func(l *lock) {
		if l.stands() && !l.releasing && !found[l] {
			found[l] = true
			locks = append(locks, l)
		}
	}
	add(meant)
	for i := 0; i < len(locks); i++ {
		for h := range locks[i].holds {
			if seen[h] {
				continue
			}
			seen[h] = true
			holds = append(holds, h)
			for _, l := range h.locks {
				add(l)
			}
		}
	}
	return locks, holds
}

// surrender gives back the locks of lost holds, once the last changes that were checked have landed
// and OnLost has returned. m.mu is held.
func (m *Manager) surrender(locks []*lock, holds []*Hold) {
	if len(locks) == 0 && len(holds) == 0 {
		return
	}
	for _, l := range locks {
		l.surrendering = true
		m.table.giveUp(l)
		l.sess.losing.Add(1)
	}
	m.surrendering++
	m.wg.Go(func() {
		landed := m.awaitLanded(holds)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.surrendering--
		for _, l := range locks {
			l.surrendering = false
			l.sess.losing.Done()
		}
		if !landed {
			return // Close ends the session
		}
		for _, h := range holds {
			h.surrendered = true
			h.write()
		}
		for _, l := range locks {
			m.giveBack(l)
		}
	})
}

// awaitLanded waits for the last changes of lost holds, until Manager.ctx ends, and reports whether they
// have landed.
func (m *Manager) awaitLanded(holds []*Hold) bool {
	select {
	case <-time.After(renew.CheckToIssue + renew.WriteInFlight):
	case <-m.ctx.Done():
		return false
	}
	var landing sync.WaitGroup
	m.mu.Lock()
	for _, h := range holds {
		landing.Go(func() { h.landed(m.ctx) })
		if h.onLost != nil {
			landing.Go(h.onLost)
		}
	}
	m.mu.Unlock()
	landing.Wait()
	return m.ctx.Err() == nil
}
