package lockmgr

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// outageWait is the age of an outage until which requests that do not queue wait for
	// an answer: two elections of etcd, and a request that was under way. They wait under
	// locks of the kernel's, which others want.
	outageWait = 5 * time.Second
	// outageTry is how long each waits after that.
	outageTry = 200 * time.Millisecond
)

// outage knows since when the service has not answered this mount.
type outage struct {
	mu    sync.Mutex
	since time.Time // GUARDED_BY(mu); when the first unanswered request was sent; zero while it answers
	heard time.Time // GUARDED_BY(mu); when it answered last
}

func (o *outage) answered() {
	o.mu.Lock()
	o.since, o.heard = time.Time{}, time.Now()
	o.mu.Unlock()
}

// unanswered notes that a request was not answered. If others were answered since it was
// sent, the outage is no older than the last of these.
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

// note takes in the outcome of a request.
func (o *outage) note(sent time.Time, err error) {
	switch {
	case !errors.Is(err, ErrUnavailable):
		o.answered()
	case !errors.Is(err, context.Canceled): // else its caller did not wait
		o.unanswered(sent)
	}
}

// patience is how long a request that is made now waits for an answer, if it waits until an
// outage has that age.
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

// trying is the patience of a request that does not queue: with the service and, once
// another owner is known to have the lock, with that owner.
type trying struct {
	wait   time.Duration // for a holder
	cancel context.CancelFunc

	mu    sync.Mutex
	timer *time.Timer
	held  bool // GUARDED_BY(mu); another owner has the lock
	over  bool // GUARDED_BY(mu)
}

// try returns a context for such a request, which ends with its patience.
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

// contended notes that another owner has the lock.
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

// ended returns the error of a wait that has lasted too long, and any other err as it is.
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
	if t.held { // the service has answered; it was asked again when the wait was over
		return fmt.Errorf("%w: %w", ErrContended, context.DeadlineExceeded)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, context.DeadlineExceeded)
}

// outcome returns err for Manager.outage. If the patience with a holder ends while the
// service is asked, that is neither an outage nor an answer.
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
