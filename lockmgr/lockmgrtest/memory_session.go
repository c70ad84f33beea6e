package lockmgrtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/lockmgr"
)

type memorySession struct {
	m    *Memory
	id   string
	ttl  time.Duration
	over chan struct{} // closed, under m.mu, when the session ends
}

var _ lockmgr.Session = (*memorySession)(nil)

func (s *memorySession) ID() string            { return s.id }
func (s *memorySession) TTL() time.Duration    { return s.ttl }
func (s *memorySession) Done() <-chan struct{} { return s.over }

func (s *memorySession) ended() bool {
	select {
	case <-s.over:
		return true
	default:
		return false
	}
}

func (s *memorySession) Renew(ctx context.Context) error {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if err := s.m.answers(ctx); err != nil {
		return err
	}
	if s.ended() {
		return lockmgr.ErrSessionLost
	}
	return nil
}

// Acquire asks, and asks again after each change until it has the keys. A request that queues
// puts its entries at the first answer and keeps them.
func (s *memorySession) Acquire(ctx context.Context, req lockmgr.AcquireRequest) ([]lockmgr.Grant, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	a := memoryAcquire{s: s, req: req}
	if req.Mode == lockmgr.Delegated {
		if err := a.take(ctx); err != nil {
			return nil, err
		}
		return a.answer()
	}
	defer a.endRecall()
	for {
		changed, err := a.ask(ctx)
		if changed == nil && err == nil {
			return a.answer()
		}
		if changed == nil {
			return nil, err
		}
		if errors.Is(err, lockmgr.ErrContended) {
			a.req.Waiting()
		}
		select {
		case <-changed: // the session's end is a change too
		case <-ctx.Done():
			return nil, a.giveUp(err, ctx.Err())
		}
	}
}

// memoryAcquire is one Acquire on its way.
type memoryAcquire struct {
	s      *memorySession
	req    lockmgr.AcquireRequest
	grants []lockmgr.Grant // of the entries put
	record uuid.UUID       // of the recall; zero: none was put
}

// answer returns what was put, unless the answer is lost.
func (a *memoryAcquire) answer() ([]lockmgr.Grant, error) {
	m := a.s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.losing == 0 {
		return a.grants, nil
	}
	gone := make(chan struct{})
	time.AfterFunc(m.losing, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.remove(func(e *entry) bool { return slices.Contains(a.grants, e.Grant) })
		close(gone)
	})
	return nil, &lockmgr.LeftoverError{Err: lockmgr.ErrUnavailable, Gone: gone}
}

// ask returns the channel to wait on with the error to return if the wait ends
// now, or no channel with the final answer.
func (a *memoryAcquire) ask(ctx context.Context) (<-chan struct{}, error) {
	m := a.s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.s.ended() {
		return nil, a.fail(lockmgr.ErrSessionLost)
	}
	if err := m.answers(ctx); err != nil {
		if a.req.Wait == lockmgr.NoWait || ctx.Err() != nil {
			return nil, a.fail(err)
		}
		return m.changed, err
	}
	if a.grants == nil && a.req.Wait == lockmgr.Queue && !a.delegated() {
		a.put()
	}
	if deadlock, err := a.standing(); err != nil {
		if deadlock && a.req.Wait == lockmgr.Queue {
			err = fmt.Errorf("%w: %v", lockmgr.ErrDeadlock, err)
		}
		if deadlock || a.req.Wait == lockmgr.NoWait && !a.recalls() || !errors.Is(err, lockmgr.ErrContended) {
			return nil, a.fail(err)
		}
		return m.changed, err
	}
	if a.grants == nil {
		a.put()
	}
	return nil, nil
}

// standing returns the error if an entry keeps the keys from us, and whether it would do so
// for ever.
func (a *memoryAcquire) standing() (deadlock bool, err error) {
	m := a.s.m
	for i, k := range a.req.Keys {
		e := a.entry(k, math.MaxInt64) // as if it were put last
		if a.grants != nil {
			e.Grant = a.grants[i]
			if !slices.ContainsFunc(m.entries, func(o *entry) bool { return o.Grant == e.Grant }) {
				return false, fmt.Errorf("%w: %s was removed", lockmgr.ErrLockLost, k)
			}
		}
		if ahead := a.others(m.ahead(e)); len(ahead) > 0 {
			a.recall(ahead)
			contended := &lockmgr.ContendedError{Key: k, Holder: ahead[0].holder}
			return slices.ContainsFunc(ahead, func(o *entry) bool { return a.req.Deadlocks(o.Grant) }), contended
		}
	}
	return false, nil
}

func (a *memoryAcquire) put() {
	m := a.s.m
	m.rev++
	for _, k := range a.req.Keys {
		e := a.entry(k, m.rev)
		a.grants = append(a.grants, e.Grant)
		m.entries = append(m.entries, e)
		if k.Kind == lockmgr.Tree {
			m.tree = m.rev
		}
	}
}

func (a *memoryAcquire) entry(k lockmgr.Key, token int64) *entry {
	return &entry{
		Grant: a.req.Grant(k, token), holder: a.req.Holder, upgrades: a.req.UpgradeIDs(k), session: a.s, keep: a.req.Keep,
	}
}

// fail removes what was put, and returns err.
func (a *memoryAcquire) fail(err error) error {
	a.s.m.remove(func(e *entry) bool { return slices.Contains(a.grants, e.Grant) })
	a.grants = nil
	return err
}

// giveUp is fail for a wait that cause ended while err stood in the way.
func (a *memoryAcquire) giveUp(err, cause error) error {
	a.s.m.mu.Lock()
	defer a.s.m.mu.Unlock()
	if c := (*lockmgr.ContendedError)(nil); errors.As(err, &c) {
		c.Err = cause
		return a.fail(c)
	}
	return a.fail(fmt.Errorf("%w: %w", err, cause))
}

func (s *memorySession) Release(ctx context.Context, g lockmgr.Grant) error {
	m := s.m
	m.mu.Lock()
	slow := m.slow
	m.mu.Unlock()
	if slow > 0 {
		select {
		case <-time.After(slow):
		case <-ctx.Done():
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.answers(ctx); err != nil {
		return err
	}
	i := slices.IndexFunc(m.entries, func(e *entry) bool { return e.Key == g.Key && e.Mode == g.Mode && e.AcquisitionID == g.AcquisitionID })
	if i < 0 {
		return fmt.Errorf("%w: %s, token %d", lockmgr.ErrNotHeld, g.Key, g.Token)
	}
	if have := m.entries[i].Token; have != g.Token {
		return fmt.Errorf("%w: %s has token %d, not %d", lockmgr.ErrNotOwner, g.Key, have, g.Token)
	}
	m.remove(func(e *entry) bool { return e.Grant == g })
	return nil
}

func (s *memorySession) Undisturbed(_ lockmgr.Key, from, to int64) bool {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return lockmgr.FencingToken(s.m.tree, 0) < from && from <= to
}

func (s *memorySession) Held(ctx context.Context, grants []lockmgr.Grant) ([]bool, error) {
	m := s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.answers(ctx); err != nil {
		return nil, err
	}
	held := make([]bool, len(grants))
	for i, g := range grants {
		held[i] = slices.ContainsFunc(m.entries, func(e *entry) bool { return e.Grant == g })
	}
	return held, nil
}

// Watch looks once a second.
func (s *memorySession) Watch(ctx context.Context, held func() []lockmgr.Grant, gone func(lockmgr.Grant)) {
	for {
		select {
		case <-time.After(time.Second):
		case <-s.over:
			return
		case <-ctx.Done():
			return
		}
		grants := held()
		if stand, err := s.Held(ctx, grants); err == nil && !s.ended() {
			for i, g := range grants {
				if !stand[i] {
					gone(g)
				}
			}
		}
	}
}

func (s *memorySession) Close(ctx context.Context) error {
	m := s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.answers(ctx); err != nil {
		m.finish(s) // the TTL does the rest, see Expire
		return err
	}
	m.end(s)
	return nil
}
