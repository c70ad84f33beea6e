package lockmgr

import (
	"context"
	"log/slog"
	"time"

	"github.com/lockfs/lockfs/renew"
)

// Event is what Config.Observe is told: one of the types below.
type Event interface{ event() }

// RequestEnded: an Acquire was granted or refused.
type RequestEnded struct {
	Mode      Mode
	Joined    bool          // it shares the owner's lock; the service was not asked
	Kept      bool          // it took a kept lock over; the service was not asked
	Contended bool          // another owner was in the way
	Took      time.Duration // in all
	Waited    time.Duration // of that, for another owner
	Err       error         // nil when granted
}

// RequestWaits: an Acquire, or a request for a flock or fcntl lock, has waited for Config.SlowWait,
// and still does.
type RequestWaits struct {
	Key    Key
	Holder Holder        // that waits
	For    Holder        // the holder in its way; zero: unknown
	Waited time.Duration // so far
}

// AdvisoryEnded: a request for a flock or fcntl lock has been granted, or was refused.
type AdvisoryEnded struct {
	Contended bool          // another owner was in the way
	Waited    time.Duration // since that was found
	Err       error         // nil when granted
}

// LockReleased: a lock was given up after Held.
type LockReleased struct{ Held time.Duration }

// LockRecalled: another mount wants a keepable lock. Idle: it was not in use.
type LockRecalled struct{ Idle bool }

// DirectoryDelegated: a directory is delegated to this mount.
type DirectoryDelegated struct{ Key Key }

// DirectoryRecalled: another mount wants a delegated directory. Open counts its open files without
// entries.
type DirectoryRecalled struct {
	Key  Key
	Open int
}

// LockLost: a lock of open files, or a flock or fcntl lock, is lost. Cause is ErrSessionLost (with
// renew's cause), ErrBroken, or else ErrLockLost alone.
type LockLost struct {
	Key    Key
	Holder Holder
	Cause  error
}

// SessionRenewed: a renewal was answered, or failed.
type SessionRenewed struct {
	Took time.Duration
	Err  error
}

// SessionChanged is what renew.Config.OnChange is told.
type SessionChanged struct {
	State renew.State
	Cause error
}

func (RequestEnded) event()       {}
func (RequestWaits) event()       {}
func (AdvisoryEnded) event()      {}
func (LockReleased) event()       {}
func (LockLost) event()           {}
func (LockRecalled) event()       {}
func (DirectoryDelegated) event() {}
func (DirectoryRecalled) event()  {}
func (SessionRenewed) event()     {}
func (SessionChanged) event()     {}

func (m *Manager) observe(e Event) {
	if m.cfg.Observe != nil {
		m.cfg.Observe(e)
	}
}

// Stats is the state of a Manager at one moment.
type Stats struct {
	Held     int                 // locks of owners, also while they are released
	Kept     int                 // locks without an owner
	Dirs     int                 // directories that are delegated to the mount
	Waiting  int                 // requests that wait for another owner
	Sessions map[renew.State]int // how many are Held and Suspended

	AdvisoryHeld    int // flock and fcntl locks
	AdvisoryWaiting int // requests that wait for another's flock or fcntl lock
}

// Stats returns the present state.
func (m *Manager) Stats() Stats {
	s := Stats{Waiting: m.waits.len(), Sessions: map[renew.State]int{renew.Held: 0, renew.Suspended: 0}}
	m.mu.Lock()
	advisory := m.advisory
	m.mu.Unlock()
	if advisory != nil {
		s.AdvisoryHeld, s.AdvisoryWaiting = advisory.count()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.Kept = m.keeper.idle.Len()
	s.Held = -s.Kept
	s.Dirs = len(m.dels)
	for _, sess := range m.sessions {
		s.Held += len(sess.locks)
		if state := sess.renewal.State(); state != renew.Lost {
			s.Sessions[state]++
		}
	}
	return s
}

func (l *lock) token() int64 {
	if l.fencing != 0 {
		return l.fencing
	}
	return FencingToken(l.grant.Token, l.turn)
}

func logAttrs(k Key, h Holder) []slog.Attr {
	attrs := []slog.Attr{LogID(h.AcquisitionID), slog.String("path", k.String()), slog.Int("pid", h.PID), slog.String("command", h.Comm)}
	if h.Pod != "" {
		attrs = append(attrs, slog.String("pod", h.PodLabel()))
	}
	if h.Container != "" {
		attrs = append(attrs, slog.String("container", h.Container))
	}
	return attrs
}

func (l *lock) logAttrs() []slog.Attr {
	return append(logAttrs(l.grant.Key, l.holder), slog.Int64("token", l.token()))
}

func (m *Manager) lockLog(l *lock) *slog.Logger {
	return slog.New(m.log.Handler().WithAttrs(l.logAttrs()))
}

// debug costs nothing unless the level is enabled.
func (m *Manager) debug(msg string, l *lock, attrs ...slog.Attr) {
	if m.log.Enabled(context.Background(), slog.LevelDebug) {
		m.log.LogAttrs(context.Background(), slog.LevelDebug, msg, append(l.logAttrs(), attrs...)...)
	}
}
