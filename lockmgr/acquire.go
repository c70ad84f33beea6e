package lockmgr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/renew"
)

// Request asks for locks.
type Request struct {
	// Owner shares with, and only with, itself.
	Owner Owner
	// SelfWait reports whether the caller, or one of its ancestors, itself holds the
	// keys, so that it would wait for ever. It is called at most once, for a request
	// that queues and finds the keys held on this mount. It returns soon after ctx has
	// ended. nil means no.
	SelfWait func(ctx context.Context) bool
	// Holder is what people will see; AcquisitionID, Session, Node and Since are
	// filled in.
	Holder Holder
	// Keys are taken together or not at all. At least one, none twice.
	Keys []Key
	// Mode is the same for all Keys; the zero value is Exclusive. An owner that asks
	// for Shared where it has Exclusive shares its Exclusive lock. An owner that asks
	// for Exclusive where it has Shared upgrades: it waits for the other owners who
	// share. It gets ErrDeadlock if it queues behind a request for Exclusive, which
	// waits for the owner's Shared lock. That lock stays as it is, with its holds.
	Mode Mode
	// Queue stands in line for the locks. A request that arrives under a lock of the
	// kernel's must not: the holder might need that very lock to close its file.
	// Without Queue, a holder on this mount means ErrContended at once.
	Queue bool
	// Wait bounds the wait for other owners and, if the request queues, for a lock
	// service that does not answer. 0 refuses at once, less than 0 waits for ever.
	// A request that does not queue waits for an answer until an outage of the service
	// is 5 s old, or Wait if that is longer.
	Wait time.Duration
	// Keep replaces Config.Keep for the locks of this request. nil: it does not.
	Keep *time.Duration
}

// request is a Request under way on this mount.
type request struct {
	Request
	tracker *tracker
	trying  *trying // nil if it queues, or does not wait
	hold    *Hold
	places  []*place      // one a key, in the order of Keys
	waits   seat          // among those who wait for the same
	woken   chan struct{} // buffered, 1
	since   time.Time     // when it first had to wait; zero before
	asked   bool          // SelfWait was
	inTurn  bool          // see turn
}

func (r *request) wake() {
	select {
	case r.woken <- struct{}{}:
	default:
	}
}

// Acquire takes the locks of req, or shares those that its owner holds already.
// The caller releases the returned Hold.
//
// Errors: ErrContended, ErrUnavailable, ErrDeadlock, ErrClosed, ErrInvalidKey. The error
// wraps context.Canceled as well if ctx was cancelled.
func (m *Manager) Acquire(ctx context.Context, req Request) (*Hold, error) {
	for i, k := range req.Keys {
		if slices.Contains(req.Keys[:i], k) {
			return nil, fmt.Errorf("%w: %s is asked for twice", ErrInvalidKey, k)
		}
	}
	if len(req.Keys) == 0 {
		return nil, fmt.Errorf("%w: none is asked for", ErrInvalidKey)
	}
	if req.Mode == Shared && slices.ContainsFunc(req.Keys, func(k Key) bool { return k.Kind == Tree }) {
		return nil, fmt.Errorf("%w: a directory is not shared", ErrInvalidKey)
	}
	var t *trying
	switch {
	case req.Wait > 0 && req.Queue:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, req.Wait)
		defer cancel()
	case req.Wait > 0:
		ctx, t = m.try(ctx, req.Wait)
		defer t.stop()
	}
	v := m.follow(&req)
	for {
		h, err := m.attempt(ctx, req, v, t)
		// A session that was lost since the grant is replaced by another.
		lost := errors.Is(err, ErrSessionLost) || errors.Is(err, ErrLockLost)
		if !lost || req.Wait == 0 || ctx.Err() != nil {
			if err != nil {
				err = t.ended(err)
			}
			v.end(err)
			return h, err
		}
	}
}

// attempt stands in line on this mount until it has all locks, and they are good, or it is
// refused, or the session is lost.
func (m *Manager) attempt(ctx context.Context, req Request, v *tracker, t *trying) (*Hold, error) {
	r := &request{
		Request: req,
		tracker: v,
		trying:  t,
		hold:    &Hold{m: m, owner: req.Owner},
		woken:   make(chan struct{}, 1),
	}
	r.waits.r = r
	m.mu.Lock()
	for _, k := range req.Keys {
		m.enter(r, k)
	}
	err := m.collect(ctx, r)
	m.leave(r)
	m.mu.Unlock()
	if err == nil {
		// The session may have been suspended, or lost, since the grant.
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

// collect returns when r.hold has all its locks, or with the reason why it cannot have
// them. m.mu is held, but not while it waits.
func (m *Manager) collect(ctx context.Context, r *request) error {
	for {
		if m.refusing {
			return ErrClosed
		}
		missing, wait := m.checkLocal(r)
		if len(missing) == 0 {
			for _, l := range r.hold.locks {
				r.hold.rely(l.sess)
			}
			r.tracker.got(r.hold.locks)
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

// pause waits, without m.mu, until something has changed for r, or its patience, if
// limited, is over.
func (m *Manager) pause(ctx context.Context, r *request, wait *obstacle, left time.Duration, limited bool) error {
	var over <-chan time.Time
	if limited {
		timer := time.NewTimer(left)
		defer timer.Stop()
		over = timer.C
	}
	// A request whose patience depends on the holder is woken by the holder, all others
	// by the request ahead.
	if wait.ahead == nil || wait.lock != nil && limited {
		wait.lock.waiting.join(&r.waits)
	} else {
		wait.ahead.behind.join(&r.waits)
		if r.Queue && r.SelfWait != nil && !r.asked {
			for _, p := range r.places {
				p.slot.doubtful[r.Mode].join(&p.doubts)
			}
		}
	}
	another, releasing := wait.another(r), wait.releasing()
	m.mu.Unlock()
	if another {
		r.tracker.contended()
	}
	if !releasing { // else r waits for the service, and not for a holder
		r.trying.contended()
	}
	var err error
	select {
	case <-r.woken:
	case <-over:
	case <-ctx.Done():
		err = ctx.Err()
	}
	m.mu.Lock()
	if err != nil {
		return wait.refusal(err)
	}
	return nil
}

// checkLocal shares the locks of this mount that r can share. It returns the places where
// r lacks a lock, and the first obstacle on this mount: nil if r may ask the service now.
// With an obstacle r has no locks: the obstacle's owner may be waiting for them. m.mu is
// held.
func (m *Manager) checkLocal(r *request) (missing []*place, wait *obstacle) {
	var shared []*lock
	for _, p := range r.places {
		m.loseLost(p.slot)
		m.steps++
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

// shareable finds a lock of r's owner that r can share. It prefers one of r's own mode: an
// Exclusive lock would keep others out for longer than necessary.
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

// turn returns those of missing that r asks the service for next, and how. A request
// that queues takes all keys if they are free. Otherwise it waits for the inode's key first
// and enters the line of the name when it has that. So it is not in the way of the inode's
// owner, which may open the file by that name as well (docs/adr/0025).
func (r *request) turn(missing []*place) ([]*place, Wait) {
	switch {
	case r.Wait == 0:
		return missing, NoWait
	case !r.Queue:
		return missing, Retry
	}
	var inodes []*place
	for _, p := range missing {
		if p.slot.key.Kind == Inode {
			inodes = append(inodes, p)
		}
	}
	switch {
	case len(inodes) == 0 || len(inodes) == len(missing):
		return missing, Queue
	case !r.inTurn:
		return missing, Retry
	}
	return inodes, Queue
}

// ask takes from the service the keys whose turn it is. m.mu is held, but not while the
// service is asked. r stays in the queues, so that no other request of this mount asks for
// what conflicts.
func (m *Manager) ask(ctx context.Context, r *request, missing []*place) error {
	contended := false // set by obtain
	missing, wait := r.turn(missing)
	prefer := m.sessionBelow(missing) // only its own requests pass a delegation's entry
	if len(r.hold.locks) > 0 {        // a hold's locks are best lost together
		prefer = r.hold.locks[0].sess
	}
	// The inode's owner may wait for the name. So r must not have the name while it waits
	// for the inode, and must not share it: it would keep it when its owner's other holds
	// let go.
	if wait == Queue && missing[0].slot.key.Kind == Inode && m.dropAll(r) {
		return nil
	}
	req := AcquireRequest{Mode: r.Mode, Holder: r.Holder, Wait: wait, Waits: func() { contended = true; r.contended() }}
	for _, p := range missing {
		req.Keys = append(req.Keys, p.slot.key)
		for _, l := range p.slot.of(r.Owner) {
			if l.owner == r.Owner && !l.releasing {
				req.Upgrades = append(req.Upgrades, l.grant)
			}
		}
	}
	req.Keep = m.mayKeep(r, req.Keys)
	m.mu.Unlock()
	sess, grants, err := m.obtain(ctx, r, prefer, &req)
	now := time.Now()
	m.mu.Lock()
	early := m.early[req.Holder.AcquisitionID]
	delete(m.early, req.Holder.AcquisitionID)
	if err != nil {
		m.leftover(err, req, r.Owner, missing, sess)
		if r.Queue && wait == Retry && ctx.Err() == nil {
			r.inTurn = true
			return nil
		}
		return err
	}
	sess.asking--
	if sess.renewal.State() == renew.Lost {
		return nil // r checks again: a lock put into a slot now would never be voided
	}
	for i, p := range missing {
		l := &lock{grant: grants[i], since: now, holder: req.Holder, owner: r.Owner, sess: sess, holds: make(map[*Hold]struct{})}
		m.add(p.slot, l)
		l.contended, l.keep = contended, m.keepsFor(r)
		if req.Keep {
			l.asked = req.Holder.Since
			m.keepFor(l)
			if early.recalled {
				m.recalled(l)
			}
		}
		m.noteBelow(l)
		r.hold.join(l)
		m.granted(p)
	}
	for _, b := range early.breaks {
		m.giveUpFor(b)
	}
	if p := r.hold.lost.Load(); p != nil {
		return *p
	}
	return nil
}

// dropAll takes r out of its locks, and reports whether one of them is being given back:
// it had the inode before, and that was lost. m.mu is held.
func (m *Manager) dropAll(r *request) (givenBack bool) {
	had := r.hold.locks
	r.hold.locks = nil
	for _, l := range had {
		givenBack = givenBack || len(l.holds) == 1
		m.drop(l, r.hold)
	}
	return givenBack
}

// contended notes that another owner is in the way, in the service.
func (r *request) contended() {
	r.tracker.contended()
	r.trying.contended()
}

// obtain asks the service for req on a session that lives, and fills in req.Holder. With
// an error, it returns the session that the error comes from, if any.
func (m *Manager) obtain(ctx context.Context, r *request, prefer *session, req *AcquireRequest) (*session, []Grant, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	switch {
	case req.Wait == NoWait:
		ctx, cancel = context.WithTimeout(ctx, m.answerTime())
		defer cancel()
	case r.Queue && req.Wait == Retry: // it waits for an answer, but for no other owner
		req.Waits = func() {
			r.contended()
			cancel()
		}
	}
	defer context.AfterFunc(m.accepting, cancel)()
	for {
		sess, err := m.session(ctx, prefer)
		if err != nil {
			return nil, nil, err
		}
		id := r.tracker.fresh(r.inTurn)
		m.mu.Lock()
		delete(m.early, req.Holder.AcquisitionID) // of the last attempt
		m.early[id] = new(overtaken)
		m.mu.Unlock()
		req.Holder.AcquisitionID = id
		req.Holder.Session = sess.backend.ID()
		req.Holder.Node = m.cfg.Session.Node
		req.Holder.Since = time.Now()
		sent := time.Now()
		grants, err := sess.backend.Acquire(ctx, *req)
		if err == nil {
			m.outage.answered()
			return sess, grants, nil // which ask is done with
		}
		if !r.Queue { // one that queues may have been answered long ago
			m.outage.note(sent, r.trying.outcome(err))
		}
		m.done(sess)
		switch {
		case m.accepting.Err() != nil:
			return nil, nil, ErrClosed
		case ctx.Err() != nil:
			return sess, nil, err
		case errors.Is(err, ErrSessionLost):
			// The next attempt needs a new session, and gets one once the
			// end of this one is settled.
			select {
			case <-sess.renewal.Lost():
			case <-ctx.Done():
				return nil, nil, retry.Ended(ctx)
			}
		case errors.Is(err, ErrLockLost):
			// Somebody deleted the entry while it waited: stand in line anew.
		default:
			return sess, nil, err
		}
	}
}

// join makes h share l. m.mu is held.
func (h *Hold) join(l *lock) {
	if _, ok := l.holds[h]; !ok {
		l.holds[h] = struct{}{}
		h.locks = append(h.locks, l)
	}
}

// closing reports whether each of the lock's holders is about to let it go.
func (l *lock) closing() bool {
	for h := range l.holds {
		if !h.closing {
			return false
		}
	}
	return true
}
