package lockmgr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockfs/lockfs/internal/retry"
)

// Request asks for locks.
type Request struct {
	// Owner shares its locks with itself, and with no other owner.
	Owner Owner
	// SelfWait reports whether the caller or one of its ancestors holds the keys. It is called at
	// most once, if the request queues for keys held on this mount, and returns soon after ctx has
	// ended. Nil means false.
	SelfWait func(ctx context.Context) bool
	// Holder is for people. AcquisitionID, Session, Node and Since are filled in.
	Holder Holder
	// Keys are taken together or not at all. At least one, none twice.
	Keys []Key
	// Mode is the mode of all Keys. Shared where the owner has Exclusive shares that lock.
	// Exclusive where the owner has Shared waits for the other readers, and keeps the Shared lock;
	// if another Exclusive request waits already, it gets ErrDeadlock.
	Mode Mode
	// Queue stands in line. A request under a kernel lock must not, because the holder may need
	// that lock to close its file. Without Queue, a holder on this mount means ErrContended at
	// once.
	Queue bool
	// Wait bounds the wait for other owners; 0: none, negative: unlimited. If the request queues,
	// Wait also bounds the wait for an answer. Otherwise an answer is awaited until an outage of
	// the service is 5 s old, or Wait if that is longer.
	Wait time.Duration
	// Found: the file may exist already, and may have had other names. An open calls Hold.Looked,
	// and Hold.Settle if that says so.
	Found bool
	// Renames: another file may get one of the paths.
	Renames bool
	// Keep replaces Config.Keep for these locks, unless nil.
	Keep *time.Duration
	// HandedOn: HandOn ends the request with a *HandedOnError.
	HandedOn bool
	// Resume, if not nil, is where the request waited before it was handed on. Its Until replaces
	// Wait.
	Resume *Resume
	// Entered, if not nil, is called when the request stands in the mount's lines.
	Entered func()
}

type request struct {
	Request
	tracker  *tracker
	trying   *trying // nil if it queues or does not wait
	hold     *Hold
	places   []*place // one a key, in the order of Keys
	waits    seat     // in the crowd that wakes it
	passages []*passage
	woken    chan struct{} // buffered, 1
	since    time.Time     // when it first had to wait; zero before
	asked    bool          // SelfWait was called
	inTurn   bool          // see turn
}

func (r *request) wake() {
	select {
	case r.woken <- struct{}{}:
	default:
	}
}

// Acquire takes or shares the locks of req. The caller releases the Hold. Errors: ErrContended,
// ErrUnavailable, ErrDeadlock, ErrClosed, ErrInvalidKey; also context.Canceled if ctx was
// cancelled.
func (m *Manager) Acquire(ctx context.Context, req Request) (*Hold, error) {
	if err := req.validate(); err != nil {
		return nil, err
	}
	var t *trying
	switch {
	case req.Wait > 0 && req.Queue:
		until := time.Now().Add(req.Wait)
		if req.Resume != nil && !req.Resume.Until.IsZero() {
			until = req.Resume.Until
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, until)
		defer cancel()
	case req.Wait > 0:
		ctx, t = m.try(ctx, req.Wait)
		defer t.stop()
	}
	v := m.follow(&req)
	for {
		h, err := m.attempt(ctx, req, v, t)
		// If the session was lost after the grant, the next attempt uses a new one.
		lost := errors.Is(err, ErrSessionLost) || errors.Is(err, ErrLockLost)
		if !lost || req.Wait == 0 || ctx.Err() != nil {
			switch {
			case lost && ctx.Err() != nil: // the lock is lost and the wait is over: the caller never had the lock
				err = t.ended(retry.Ended(ctx))
			case lost:
				err = fmt.Errorf("%w: %v", ErrUnavailable, err)
			case err != nil:
				err = t.ended(err)
			}
			v.end(err)
			return h, err
		}
	}
}

// AcquireHere takes or shares the locks of req if this mount can grant them all at once, by
// itself. Otherwise it returns nil, and nothing has happened.
func (m *Manager) AcquireHere(req Request) *Hold {
	if req.validate() != nil || req.Resume != nil { // its place is in the service's line
		return nil
	}
	v := m.follow(&req)
	r := m.begin(req, v)
	granted := !m.refusing && m.grantHere(r)
	m.table.leave(r)
	m.mu.Unlock()
	if !granted || r.hold.Check() != nil {
		r.hold.Release()
		return nil
	}
	v.end(nil)
	return r.hold
}

func (req *Request) validate() error {
	for i, k := range req.Keys {
		if slices.Contains(req.Keys[:i], k) {
			return fmt.Errorf("%w: %s is asked for twice", ErrInvalidKey, k)
		}
	}
	if len(req.Keys) == 0 {
		return fmt.Errorf("%w: none is asked for", ErrInvalidKey)
	}
	if req.Mode == Shared && slices.ContainsFunc(req.Keys, func(k Key) bool { return k.Kind == Tree }) {
		return fmt.Errorf("%w: a directory is not shared", ErrInvalidKey)
	}
	return nil
}

// begin queues for the keys of req, and locks m.mu.
func (m *Manager) begin(req Request, v *tracker) *request {
	r := &request{
		Request: req,
		tracker: v,
		hold:    &Hold{m: m, owner: req.Owner},
		woken:   make(chan struct{}, 1),
		asked:   req.Resume != nil && req.Resume.Asked,
	}
	r.waits.r = r
	m.mu.Lock()
	for _, k := range req.Keys {
		m.table.enter(r, k)
	}
	if r.Entered != nil {
		r.Entered()
	}
	return r
}

// attempt returns good locks, a refusal, or the loss of the session.
func (m *Manager) attempt(ctx context.Context, req Request, v *tracker, t *trying) (*Hold, error) {
	r := m.begin(req, v)
	r.trying = t
	err := m.collect(ctx, r)
	m.table.leave(r)
	m.mu.Unlock()
	if err == nil {
		// The session may have been suspended or lost since the grant.
		err = r.hold.Check()
		if errors.Is(err, ErrSuspended) && r.Wait != 0 {
			err = r.hold.Await(ctx)
		}
		if errors.Is(err, ErrSuspended) || err != nil && ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
	}
	if err != nil {
		r.hold.Release()
		return nil, err
	}
	return r.hold, nil
}

// collect returns when r.hold has all its locks, or the reason for a refusal. m.mu is held except
// while it waits.
func (m *Manager) collect(ctx context.Context, r *request) error {
	for {
		if m.refusing {
			return ErrClosed
		}
		missing, wait := m.checkLocal(r)
		if len(missing) == 0 {
			m.complete(r)
			return nil
		}
		if wait == nil {
			if err := m.ask(ctx, r, missing); err != nil {
				return err
			}
			continue
		}
		if r.since.IsZero() {
			r.since = time.Now()
		}
		patience, limited := m.patience(r, wait)
		left := patience - time.Since(r.since)
		if limited && left <= 0 {
			return wait.refusal(nil)
		}
		if r.deadlocked() {
			if !r.Queue {
				return wait.refusal(nil)
			}
			return fmt.Errorf("%w: an earlier request waits for the lock that the caller wants to upgrade", ErrDeadlock)
		}
		if r.mayWaitForItself() {
			r.asked = true
			m.mu.Unlock()
			itself := r.SelfWait(ctx)
			m.mu.Lock()
			if itself {
				return fmt.Errorf("%w: %s", ErrDeadlock, wait.key())
			}
			continue // much may have changed
		}
		if err := m.pause(ctx, r, wait, left, limited); err != nil {
			return err
		}
	}
}

// grantHere reports whether r got all its locks. m.mu is held.
func (m *Manager) grantHere(r *request) bool {
	if missing, _ := m.checkLocal(r); len(missing) > 0 {
		return false
	}
	m.complete(r)
	return true
}

// complete makes a hold of r's locks. m.mu is held.
func (m *Manager) complete(r *request) {
	for _, l := range r.hold.locks {
		r.hold.rely(l.sess)
	}
	if r.Renames {
		m.level(r.hold)
	}
	r.tracker.got(r.hold.locks)
}

// pause waits, without m.mu, until something has changed for r or its patience is over.
func (m *Manager) pause(ctx context.Context, r *request, wait *obstacle, left time.Duration, limited bool) error {
	var over <-chan time.Time
	if limited {
		timer := time.NewTimer(left)
		defer timer.Stop()
		over = timer.C
	}
	// The holder wakes a request with limited patience; the request ahead wakes all others.
	if wait.ahead == nil || wait.lock != nil && limited {
		wait.lock.waiting.join(&r.waits)
	} else {
		r.waitBehind(wait.ahead)
		if r.Queue && r.SelfWait != nil && !r.asked {
			for _, p := range r.places {
				p.slot.doubtful[r.Mode].join(&p.doubts)
			}
		}
	}
	another, releasing := wait.another(r), wait.releasing()
	var handing <-chan struct{}
	if r.HandedOn {
		handing = m.waitsEnd.Done()
	}
	m.mu.Unlock()
	if another {
		r.tracker.contended()
	}
	if !releasing { // else r waits for the service, not for a holder
		r.trying.contended()
	}
	var err error
	select {
	case <-r.woken:
	case <-over:
	case <-ctx.Done():
		err = ctx.Err()
	case <-handing:
		m.mu.Lock()
		return r.handedOn(ctx, AcquisitionID{})
	}
	m.mu.Lock()
	if err != nil {
		return wait.refusal(err)
	}
	return nil
}

// checkLocal shares what r can share. It returns the places without a lock, and the first obstacle
// on this mount; nil: r may ask the service. With an obstacle r has no locks, because the
// obstacle's owner may wait for them. m.mu is held.
func (m *Manager) checkLocal(r *request) (missing []*place, wait *obstacle) {
	var shared []*lock
	for _, p := range r.places {
		m.loseLost(p.slot)
		m.table.steps++
		if l := p.slot.idleLock(); l != nil && p.before() == nil {
			if m.takeOver(l, p) {
				shared = append(shared, l)
				continue
			}
			m.giveIdleBack(l)
		}
		if l := p.slot.shareable(r); l != nil {
			shared = append(shared, l)
			continue
		}
		missing = append(missing, p)
		if wait == nil {
			wait = m.obstacle(p)
		}
	}
	had := slices.DeleteFunc(r.hold.locks, (*lock).lost)
	r.hold.locks = nil
	if wait == nil {
		r.hold.locks = had
		for _, l := range shared {
			r.hold.join(l)
			if r.Renames {
				m.mayChange(l)
			}
		}
		if m.grantBelow(r, missing) {
			missing = nil
		}
		return missing, nil
	}
	for _, l := range had {
		m.drop(l, r.hold)
	}
	return missing, wait
}

// shareable prefers a lock of r's own mode: an Exclusive one would keep others out longer.
func (s *slot) shareable(r *request) (found *lock) {
	for _, l := range s.of(r.Owner) {
		if l.owner != r.Owner || l.idle != nil || l.releasing || l.grant.Mode == Shared && r.Mode == Exclusive {
			continue
		}
		if found == nil || l.grant.Mode == r.Mode {
			found = l
		}
	}
	return found
}
