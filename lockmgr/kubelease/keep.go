package kubelease

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lockfs/lockfs/internal/retry"
)

// All mounts see which sessions there are, but only a few, the keepers, watch their pulses.
// If all did, the number of events would grow with the square of the mounts. Keepers show
// that they are by renewing the Lease of their session too, which all mounts see. A mount
// that sees too few keepers becomes one. If there are too many, the youngest stop. No lock
// depends on it: two mounts may end the same session, and without keepers no session ends.

// keepers is how many mounts keep watch over the sessions. If the mount of a session is a keeper
// itself and dies, two others see it.
const keepers = 3

const (
	// keepInterval is how often a mount looks how many keepers there are.
	keepInterval = time.Second
	// keepSpread is how long a mount waits, at most, before it becomes a keeper. By then most
	// mounts see that others have become keepers. If there are so few mounts that all must be
	// keepers, none waits.
	keepSpread = time.Second
)

// present are the sessions of a mount that live.
//
// LOCK ORDERING: mirror.mu, then mu.
type present struct {
	mu       sync.Mutex
	sessions map[string]*Session // GUARDED_BY(mu); by id

	came chan struct{} // receives when there is another
}

func (p *present) add(s *Session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sessions == nil {
		p.sessions = make(map[string]*Session)
	}
	p.sessions[s.id] = s
	select {
	case p.came <- struct{}{}:
	default:
	}
	context.AfterFunc(s.life.Over, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.sessions, s.id)
	})
}

// one returns any session of this mount; nil: there is none.
func (p *present) one() *Session {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.sessions {
		return s
	}
	return nil
}

// session returns the one of that id, nil if it is another mount's, or has ended.
func (p *present) session(id string) *Session {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sessions[id]
}

// keep keeps watch over the sessions when there are too few keepers, until the
// backend is closed.
func (b *Backend) keep() {
	var r retry.Retrier
	for b.ctx.Err() == nil {
		s := b.present.one()
		if s == nil {
			// A mount that begins has a session in a moment. A mount without one, which
			// waits for others' sessions to end, cannot count on a keeper.
			select {
			case <-b.present.came:
			case <-time.After(keepInterval):
				b.keepWatch(nil)
			case <-b.ctx.Done():
			}
			continue
		}
		if !b.mirror.connected() || b.keepersBeside(nil) >= keepers {
			b.pause(s.life.Over, keepInterval) // without a watch it does not know who the keepers are
			continue
		}
		if len(b.mirror.of(kindSession)) > keepers {
			b.pause(s.life.Over, rand.N(keepSpread))
			if b.keepersBeside(nil) >= keepers {
				continue
			}
		}
		if err := s.vouch(); err != nil {
			if b.ctx.Err() == nil && !s.life.Ended() {
				b.log.Debug("cannot keep watch over the sessions", "session", s.id, "error", err)
			}
			_ = r.Pause(b.ctx)
			continue
		}
		r.Answered()
		b.keepWatch(s)
	}
}

// keepersBeside is how many other mounts are keepers. Unless s is nil, only those count that
// are older than s.
func (b *Backend) keepersBeside(s *Session) (n int) {
	m := b.mirror
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now()
	for _, o := range m.objects {
		if o.kind != kindSession || o.lease.Spec.RenewTime == nil || b.present.session(o.sessionID()) != nil {
			continue
		}
		// Two intervals of renewal: a TTL has five.
		if now.Sub(o.seen) < o.duration()*2/5 && (s == nil || o.olderThan(m.objects[s.name])) {
			n++
		}
	}
	return n
}

// olderThan orders sessions by age, in the same way on all mounts.
func (o *object) olderThan(other *object) bool {
	if other == nil {
		return true
	}
	x, y := o.lease.CreationTimestamp.Time, other.lease.CreationTimestamp.Time
	return x.Before(y) || x.Equal(y) && o.name < other.name
}

// vouch renews the Lease of the session itself: so all mounts see that this one is a keeper.
// When the watch shows it, this also proves that the watch works.
func (s *Session) vouch() error {
	o := s.b.mirror.at(s.name)
	var err error
	if o == nil {
		if o, err = s.b.getUrgent(s.life.Over, s.name); err != nil {
			return err
		}
	}
	for o != nil {
		if _, err = s.b.write(s.life.Over, s.b.urgent(), o, o.renewed()); !errors.Is(err, errMoved) {
			return err
		}
		if o, err = s.b.getUrgent(s.life.Over, s.name); err != nil {
			return err
		}
	}
	return s.lost()
}

// keepWatch follows the pulses, and ends the sessions that have none, while this
// mount has to: as one of the keepers, by the session s, or while it has no session.
func (b *Backend) keepWatch(s *Session) {
	_, era := b.mirror.newest()
	ctx, cancel := context.WithCancel(b.ctx)
	defer context.AfterFunc(era, cancel)()
	f := b.pulseFeed()
	k := &keeper{b: b, pulses: f.m, asked: make(map[string]*object)}
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { f.follow(ctx) })
	running.Go(func() { k.run(ctx) })
	b.keeping.Store(k)
	defer b.keeping.Store(nil)
	for ctx.Err() == nil {
		if s == nil {
			select {
			case <-b.present.came:
				return
			case <-ctx.Done():
			}
			continue
		}
		b.pause(s.life.Over, s.ttl/5)
		if s.life.Ended() || b.keepersBeside(s) >= keepers {
			return
		}
		if err := s.vouch(); err != nil && ctx.Err() == nil && !s.life.Ended() {
			b.log.Debug("cannot say that this mount keeps watch", "session", s.id, "error", err)
		}
	}
}

// beat notes a renewal of this mount's own. If this mount is a keeper, its watch of the
// pulses has to show that renewal. A watch that hangs would not be noticed otherwise.
func (b *Backend) beat(pulse *object) {
	if k := b.keeping.Load(); k != nil {
		_, era := k.pulses.newest()
		_, _ = k.pulses.wrote(era, pulse.lease) // it was read before
	}
}

// pause ends early when ctx, or the backend, does.
func (b *Backend) pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	case <-b.ctx.Done():
	}
}
