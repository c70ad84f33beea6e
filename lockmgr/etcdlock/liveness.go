package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// A request without an answer is lost, or the service is slow and still carries it out. Repeating
// it makes a slow service slower. So a request is given up only when a much later one was
// answered: the service answers in order, unless the first one's member hangs. If no other request
// is under way, one probe is.

// The reasons for giving up a request.
var (
	errOvertaken   = errors.New("a later request was answered first")
	errUnconnected = errors.New("no connection")
)

// maxInFlight limits a mount's concurrent Txns, and separately its concurrent reads of Held.
const maxInFlight = 32

// liveness knows which requests the service has answered last.
type liveness struct {
	turns   chan struct{} // a token for each Txn under way, except Held's
	checks  chan struct{} // a token for each read of Held under way
	probing chan struct{} // a token while a probe is under way
	limit   time.Duration // GUARDED_BY(probing); the next probe's time limit; 0: the initial one
	retrier retry.Retrier // GUARDED_BY(probing)

	mu     sync.Mutex
	slow   time.Duration // GUARDED_BY(mu); how long recent answers took
	heard  time.Time     // GUARDED_BY(mu); when the newest answered request was sent
	failed time.Time     // GUARDED_BY(mu); when the newest request was sent that the service gave up
	news   chan struct{} // GUARDED_BY(mu); closed when heard moves
}

func newLiveness() *liveness {
	return &liveness{turns: make(chan struct{}, maxInFlight), checks: make(chan struct{}, maxInFlight), probing: make(chan struct{}, 1), news: make(chan struct{})}
}

// answered notes an answer to a request of that time.
func (p *liveness) answered(sent time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slow = max(time.Since(sent), p.slow/2)
	if sent.After(p.heard) {
		p.heard = sent
		close(p.news)
		p.news = make(chan struct{})
	}
}

// dropped notes that the service itself gave a request up.
func (p *liveness) dropped(sent time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if sent.After(p.failed) {
		p.failed = sent
	}
}

// patience is the age at which a request is doubted: least, or longer while answers are slow.
func (p *liveness) patience(least time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(least, p.slow*3/2)
}

// trouble returns when the service's last dropped request was sent, if no later one was answered.
func (p *liveness) trouble() (since time.Time, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed, p.failed.After(p.heard)
}

// patiently sends a request, and gives it up when it is overtaken or ctx ends. If the service
// itself has dropped a request, a probe must be answered first. Errors: those of fault.
func (b *Backend) patiently(ctx context.Context, request func(context.Context) error) error {
	if since, ok := b.liveness.trouble(); ok && b.awaitLater(ctx, since) == nil {
		return fmt.Errorf("%w: %w: %w", lockmgr.ErrUnavailable, errUnsent, ctx.Err())
	}
	sending, giveUp := context.WithCancelCause(ctx)
	sent := time.Now()
	var doubting sync.WaitGroup
	doubting.Add(1)
	patience := b.liveness.patience(b.timeout)
	late := time.AfterFunc(patience, func() {
		defer doubting.Done()
		why := b.awaitLater(sending, sent.Add(patience/2))
		select { // its own answer may be on the way
		case <-time.After(b.timeout / 10):
			giveUp(why)
		case <-sending.Done():
		}
	})
	err := request(sending)
	if late.Stop() {
		doubting.Done()
	}
	why := context.Cause(sending)
	giveUp(nil)
	doubting.Wait()
	switch {
	case err == nil || refused(err):
		b.liveness.answered(sent)
	case errors.Is(why, errOvertaken), errors.Is(why, errUnconnected):
		err = why
	case ctx.Err() == nil && time.Since(sent) > b.timeout:
		b.liveness.dropped(sent)
	}
	if err != nil {
		return b.fault(ctx, err)
	}
	return nil
}

// awaitLater returns errOvertaken once a request sent after then is answered. It sends probes if
// nothing else is sent; a slow probe is replaced by one to another member, with more time. Errors:
// errUnconnected if the client has lost all members; nil if ctx ends.
func (b *Backend) awaitLater(ctx context.Context, then time.Time) error {
	p := b.liveness
	for {
		p.mu.Lock()
		heard, news := p.heard, p.news
		p.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return nil
		case heard.After(then):
			return errOvertaken
		case !b.connected():
			return errUnconnected
		}
		select {
		case p.probing <- struct{}{}:
			b.probe(ctx)
			<-p.probing
		case <-news:
		case <-ctx.Done():
		}
	}
}

// probe sends a cheap linearizable read.
func (b *Backend) probe(ctx context.Context) {
	p := b.liveness
	if p.limit == 0 {
		p.limit = b.timeout / 3
	}
	bounded, cancel := context.WithTimeout(ctx, p.limit*3/4+rand.N(p.limit/2))
	defer cancel()
	sent := time.Now()
	_, err := b.client.Txn(bounded).Then(clientv3.OpGet(b.keys.volume(), clientv3.WithCountOnly())).Commit()
	switch {
	case err == nil || refused(err):
		p.limit = 0
		p.retrier.Answered()
		p.answered(sent)
	case bounded.Err() != nil:
		p.limit = min(4*p.limit, 5*b.timeout)
	default:
		_ = p.retrier.Pause(ctx) // the caller checks ctx
	}
}
