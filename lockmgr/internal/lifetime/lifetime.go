// Package lifetime is what sessions of all backends have in common: they end once, by
// whoever learns of it first, and what runs on them ends with them.
package lifetime

import (
	"cmp"
	"context"
	"errors"
	"sync"

	"github.com/lockfs/lockfs/lockmgr"
)

// Life is a session's. Make it with Begin.
type Life struct {
	// Over ends with the session, by whoever learns of its end first.
	Over context.Context
	end  context.CancelFunc

	mu      sync.Mutex // orders Enter before or after End
	running sync.WaitGroup
}

// Begin begins a life that ends with the store's era, at the latest.
func Begin(era Era) *Life {
	l := &Life{}
	l.Over, l.end = context.WithCancel(era)
	return l
}

// End ends the session for its mount, and every wait on it. What enters later is refused.
func (l *Life) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end()
}

// Wait waits, after End, for what still runs.
func (l *Life) Wait() { l.running.Wait() }

// Ended reports whether the session is over.
func (l *Life) Ended() bool { return l.Over.Err() != nil }

// Go runs f, which Wait waits for. The caller has entered, or nobody waits yet.
func (l *Life) Go(f func()) { l.running.Go(f) }

// Enter begins something that Wait waits for. Its context ends with the session, too; the
// caller calls leave at its end. Errors: ErrSessionLost.
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

// Outcome is the error of an acquisition that failed with err, under a context of Enter's.
// contended is asked when the wait ended while nothing was answered: it returns the
// ContendedError with that cause if the service is there, and so is a holder; or nil.
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
