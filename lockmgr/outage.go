package lockmgr

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// outageWait is the age of an outage up to which requests that do not queue wait: two
	// elections of etcd and a request under way. They wait under kernel locks that others want.
	outageWait = 5 * time.Second
	// outageTry is how long each such request waits in a longer outage.
	outageTry = 200 * time.Millisecond
)

type outage struct {
	mu    sync.Mutex
	since time.Time // GUARDED_BY(mu); when the first unanswered request was sent; zero: no outage
	heard time.Time // GUARDED_BY(mu); the last answer
}

func (o *outage) answered() {
	o.mu.Lock()
	o.since, o.heard = time.Time{}, time.Now()
	o.mu.Unlock()
}

// unanswered notes a request without an answer. An outage is no older than the last answer.
func (o *outage) unanswered(sent time.Time) {
	o.mu.Lock()
	if sent.Before(o.heard) {
		sent = o.heard
	}
	if o.since.IsZero() || sent.Before(o.since) {
		o.since = sent
	}
	o.mu.Unlock()
}

func (o *outage) note(sent time.Time, err error) {
	switch {
	case !errors.Is(err, ErrUnavailable):
		o.answered()
	case !errors.Is(err, context.Canceled): // the caller itself gave up: that says nothing of the service
		o.unanswered(sent)
	}
}

// patience is how long a new request waits for an answer: until the outage has lasted for age, or
// for outageTry if that is longer.
func (o *outage) patience(age time.Duration) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.since.IsZero() {
		age -= time.Since(o.since)
	}
	return max(age, outageTry)
}

// answerTime is how long a request without patience waits for an answer.
func (m *Manager) answerTime() time.Duration {
	return min(m.cfg.AnswerTimeout, m.outage.patience(outageWait))
}

// trying limits the wait of a request that does not queue: first for an answer of the service, then
// for a holder that the answer has named.
type trying struct {
	wait   time.Duration // for a holder
	cancel context.CancelFunc

	mu    sync.Mutex
	timer *time.Timer
	held  bool // GUARDED_BY(mu); another owner has the lock
	over  bool // GUARDED_BY(mu)
}

func (m *Manager) try(ctx context.Context, wait time.Duration) (context.Context, *trying) {
	t := &trying{wait: wait}
	ctx, t.cancel = context.WithCancel(ctx)
	t.timer = time.AfterFunc(m.outage.patience(max(outageWait, wait)), t.end)
	return ctx, t
}

func (t *trying) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	t.cancel()
}

func (t *trying) contended() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.held && !t.over {
		t.held = true
		t.timer.Reset(t.wait)
	}
}

func (t *trying) stop() {
	t.timer.Stop()
	t.cancel()
}

// ended returns the error of a wait that has lasted too long; else err.
func (t *trying) ended(err error) error {
	if t == nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.over || !errors.Is(err, context.Canceled) {
		return err
	}
	if c := (*ContendedError)(nil); errors.As(err, &c) {
		return &ContendedError{Key: c.Key, Holder: c.Holder, Err: context.DeadlineExceeded}
	}
	if t.held { // the service has answered
		return fmt.Errorf("%w: %w", ErrContended, context.DeadlineExceeded)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, context.DeadlineExceeded)
}

// outcome returns err for Manager.outage. A wait for a holder that ends during a request is
// neither an outage nor an answer.
func (t *trying) outcome(err error) error {
	if t == nil {
		return err
	}
	t.mu.Lock()
	held := t.held
	t.mu.Unlock()
	if held {
		return err
	}
	return t.ended(err)
}
