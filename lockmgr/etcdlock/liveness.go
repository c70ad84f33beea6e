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

// A request without an answer is lost, or the service is slow and will carry it out in its
// turn. To repeat it makes a slow service slower, for it carries out both. So a request is
// given up only when one that was sent well after it was answered: the service takes requests
// in turn, or the member of the first one hangs. If no other request is sent, a probe is,
// one at a time in a mount.

// Why a request is given up.
var (
	errOvertaken   = errors.New("a later request was answered first")
	errUnconnected = errors.New("no connection")
)

// maxInFlight is how many Txns of a mount are under way at most, and how many reads of Held
// beside them. The others wait for their turn here.
const maxInFlight = 32

// liveness knows which requests the service has answered last.
type liveness struct {
	turns   chan struct{} // a token for each Txn under way, but those of checks
	checks  chan struct{} // a token for each read of Held under way
	probing chan struct{} // a token while a probe is
	limit   time.Duration // GUARDED_BY(probing); how long the next probe may take, 0: as long as the first
	retrier retry.Retrier // GUARDED_BY(probing)

	mu     sync.Mutex
	slow   time.Duration // GUARDED_BY(mu); how long answers take of late
	heard  time.Time     // GUARDED_BY(mu); when the newest answered request was sent
	failed time.Time     // GUARDED_BY(mu); when the newest request that the service gave up was sent
	news   chan struct{} // GUARDED_BY(mu); closed when heard moves
}

func newLiveness() *liveness {
	return &liveness{turns: make(chan struct{}, maxInFlight), checks: make(chan struct{}, maxInFlight), probing: make(chan struct{}, 1), news: make(chan struct{})}
}

// answered notes that a request was answered.
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

// dropped notes that the service gave a request up.
func (p *liveness) dropped(sent time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if sent.After(p.failed) {
		p.failed = sent
	}
}

// patience is after what time a request that is sent now is doubted: least, or longer while
// all answers take long.
func (p *liveness) patience(least time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(least, p.slow*3/2)
}

// trouble returns when the request was sent that was given up, if none was answered that was
// sent later.
func (p *liveness) trouble() (since time.Time, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed, p.failed.After(p.heard)
}

// patiently sends a request, and gives it up when it is overtaken or ctx ends. Its errors
// are those of fault. After the service itself gave a request up, because it took too long,
// nothing is sent before a probe is answered.
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

// awaitLater waits until a request is answered that was sent after then: errOvertaken. It
// sends probes if no other request of this mount does. If a probe takes too long, another
// goes to another member, and may take longer. awaitLater returns errUnconnected if the
// client has lost all members, for then nothing is under way; nil if ctx ends.
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

// probe sends a linearizable read of almost no cost.
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
		_ = p.retrier.Pause(ctx) // the caller sees whether it has ended
	}
}
