// Package lifetime is what sessions of all backends have in common. A session ends once. Its
// goroutines and waits end with it.
package lifetime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// Life is the life of a session. Make it with Begin.
type Life struct {
	id  string
	log *slog.Logger

	// Over ends with the session.
	Over context.Context
	end  context.CancelFunc

	mu      sync.Mutex // orders Enter before or after End
	running sync.WaitGroup
}

// Begin begins the life of session id, which ends with era at the latest.
func Begin(era Era, id string, log *slog.Logger) *Life {
	l := &Life{id: id, log: log}
	l.Over, l.end = context.WithCancel(era)
	return l
}

// End ends the session for its mount, with every wait on it. Enter then fails.
func (l *Life) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end()
}

// Lost ends the session because the service has, and logs that unless it had ended before.
func (l *Life) Lost() {
	if !l.Ended() {
		l.log.Warn("session ended by the lock service", "session", l.id)
	}
	l.End()
}

// Close ends the session, and calls revoke until it succeeds or ctx ends. It waits for what still
// runs.
func (l *Life) Close(ctx context.Context, revoke func(context.Context) error) error {
	l.End() // and every wait: the revoke removes their entries
	defer l.running.Wait()
	var r retry.Retrier
	if err := r.Do(ctx, func() error { return revoke(ctx) }); err != nil {
		return fmt.Errorf("closing session %s: %w", l.id, err)
	}
	return nil
}

// Wait returns when nothing of the session runs any more, after End.
func (l *Life) Wait() { l.running.Wait() }

// Ended reports whether the session is over.
func (l *Life) Ended() bool { return l.Over.Err() != nil }

// Go runs f, which Close waits for. The caller has entered, or nobody waits yet.
func (l *Life) Go(f func()) { l.running.Go(f) }

// Enter begins something that Close waits for, until leave is called. Its context also ends with
// the session. Errors: ErrSessionLost.
func (l *Life) Enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Ended() {
		return nil, nil, lockmgr.ErrSessionLost
	}
	l.running.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(l.Over, cancel)
	return ctx, func() {
		stop()
		cancel()
		l.running.Done()
	}, nil
}

// Noted ends the session if err says that it is lost, and returns err.
func (l *Life) Noted(err error) error {
	if errors.Is(err, lockmgr.ErrSessionLost) {
		l.End()
	}
	return err
}

// Every calls do about once in an interval until the session ends, and failed for its errors.
func (l *Life) Every(interval time.Duration, do func(context.Context) error, failed func(error)) {
	for {
		select {
		case <-time.After(interval/2 + rand.N(interval)):
		case <-l.Over.Done():
			return
		}
		if err := do(l.Over); err != nil && !l.Ended() {
			failed(err)
		}
	}
}

// Discard removes a failed acquisition's entries in the background while the session lives, and
// then calls done, also after a failure: the check for orphans finds the rest. The caller has
// entered.
func (l *Life) Discard(id lockmgr.AcquisitionID, withdraw func(context.Context) error, done func()) {
	l.Go(func() {
		defer done()
		if err := withdraw(l.Over); err != nil && !l.Ended() {
			l.log.Error("entries of a failed acquisition remain for now", lockmgr.LogID(id), "error", err)
		}
	})
}

// Outcome is the error of an acquisition that failed with err under Enter's context. If the wait
// ended without an answer, it is contended's error unless that is nil.
func (l *Life) Outcome(ctx context.Context, err error, contended func(cause error) error) error {
	cause := ctx.Err()
	switch {
	case l.Ended():
		return lockmgr.ErrSessionLost
	case cause == nil || !errors.Is(err, lockmgr.ErrUnavailable):
		return err
	}
	return cmp.Or(contended(cause), err)
}

// Era is a time in which the store's revisions only grow. It ends when the store is set back:
// restored or emptied. The store has forgotten grants, so every session of the era ends too.
type Era context.Context

// Store is a lock service's store as its answers show it, guarded by its owner's mutex. Make it
// with NewStore.
//
// A request notes Era and Newest before it is sent. An answer with an older revision shows that
// the store was set back.
type Store struct {
	Era    Era
	Newest int64 // the newest revision seen in the era
	end    context.CancelFunc
}

// NewStore returns a store in its first era.
func NewStore() Store {
	var s Store
	s.Era, s.end = context.WithCancel(context.Background())
	return s
}

// Saw notes a revision seen in the era of.
func (s *Store) Saw(rev int64, of Era) {
	if s.Era == of {
		s.Newest = max(s.Newest, rev)
	}
}

// SetBack ends an era, and reports whether it had not ended before.
func (s *Store) SetBack(of Era) (ended bool) {
	if s.Era != of {
		return false
	}
	s.end()
	*s = NewStore()
	return true
}
