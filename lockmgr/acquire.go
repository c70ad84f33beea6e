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
	// SelfWait reports whether the caller, or one that it descends from, itself
	// keeps the keys from being free, so that waiting would be for ever. It is
	// called, once, only for a request that queues and finds the keys held on
	// this mount, and returns soon after ctx has ended. nil means no.
	SelfWait func(ctx context.Context) bool
	// Holder is what people will see; AcquisitionID, Session, Node and Since are
	// filled in.
	Holder Holder
	// Keys are taken together or not at all. At least one, none twice.
	Keys []Key
	// Mode is the same for all Keys; the zero value is Exclusive. An owner that
	// asks for Shared where it has Exclusive shares that. One that asks for
	// Exclusive where it has Shared waits for the others who share, and gets
	// ErrDeadlock if it queues and somebody who wants Exclusive came before: that
	// one waits for the owner itself. The Shared lock stays what it is, with its holds.
	Mode Mode
	// Queue stands in line for the locks. Only a request that arrives without
	// a lock of the kernel's may: others would keep the holder from ever
	// closing its file. Without it, a holder on this mount means ErrContended
	// at once.
	Queue bool
	// Wait bounds the wait for other owners and, if the request queues, for a lock
	// service that does not answer: 0 refuses at once, less than 0 waits for ever.
	// One that does not queue waits for an answer until an outage of the service is
	// 5 s old, or Wait if that is longer.
	Wait time.Duration
}

// request is a Request under way on this mount.
type request struct {
	Request
	vigil  *vigil
	trying *trying // nil if it queues, or does not wait
	hold   *Hold
	places []*place      // one a key, in the order of Keys
	waits  seat          // among those who wait for the same
	woken  chan struct{} // buffered, 1
	since  time.Time     // when it first had to wait; zero before
	asked  bool          // SelfWait was
	inTurn bool          // see turn
}

func (r *request) wake() {
	select {
	case r.woken <- struct{}{}:
	default:
	}
}

// Acquire takes the locks of req, or shares those its owner holds already.
// The caller releases the returned Hold.
//
// Errors: ErrContended, ErrUnavailable, ErrDeadlock, ErrClosed, ErrInvalidKey;
// one that also is context.Canceled if ctx was cancelled.
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
		// A session that is lost between the grant and now is not the
		// caller's trouble: there is another.
		lost := errors.Is(err, ErrSessionLost) || errors.Is(err, ErrLockLost)
		if !lost || req.Wait == 0 || ctx.Err() != nil {
			err = t.ended(err)
			v.end(err)
			return h, err
		}
	}
}

// attempt stands in line on this mount until it has all locks, or is refused. A session
// that is lost meanwhile ends it.
func (m *Manager) attempt(ctx context.Context, req Request, v *vigil, t *trying) (*Hold, error) {
	r := &request{
		Request: req,
		vigil:   v,
		trying:  t,
		hold:    &Hold{m: m, owner: req.Owner},
		woken:   make(chan struct{}, 1),
	}
	r.waits.r = r
	m.mu.Lock()
	for _, k := range req.Keys {
		m.enter(r, m.slot(k))
	}
	err := m.collect(ctx, r)
	m.leave(r)
	m.mu.Unlock()
	if err == nil {
		err = m.settle(ctx, r)
	}
	if err != nil {
		r.hold.Release()
		return nil, err
	}
	return r.hold, nil
}

// settle makes sure that the hold is good now: what was granted, or shared, may
// belong to a session that has since been suspended, or lost.
func (m *Manager) settle(ctx context.Context, r *request) error {
	err := r.hold.Check()
	if errors.Is(err, ErrSuspended) && r.Wait != 0 {
		err = r.hold.Await(ctx)
	}
	if errors.Is(err, ErrSuspended) || err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// collect returns when r.hold has all its locks, or with the reason why it
// cannot. m.mu is held, and let go while it waits.
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
			return fmt.Errorf("%w: who came before waits for a lock that it shares", ErrDeadlock)
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

// pause lets go of m.mu until something has changed for r, or its patience,
// if limited, is over.
func (m *Manager) pause(ctx context.Context, r *request, wait *obstacle, left time.Duration, limited bool) error {
	var over <-chan time.Time
	if limited {
		timer := time.NewTimer(left)
		defer timer.Stop()
		over = timer.C
	}
	// Whose patience depends on the holder waits for that, others for who is next.
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
	another, dying := wait.another(r), wait.dying()
	m.mu.Unlock()
	if another {
		r.vigil.contended()
	}
	if !dying { // else it is for the service to answer
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

// checkLocal shares what can be shared. It returns the places where r lacks a lock, and
// the first thing that r has to wait for on this mount: nil if it may ask the
// service now. While there is one r has no locks: whoever is in its way may be
// waiting for them. m.mu is held.
func (m *Manager) checkLocal(r *request) (missing []*place, wait *obstacle) {
	var shared []*lock
	for _, p := range r.places {
		m.buryLost(p.slot)
		m.steps++
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
		return missing, nil
	}
	for _, l := range had {
		m.drop(l, r.hold)
	}
	return missing, wait
}

// shareable finds a lock of r's owner that gives r what it wants. One that
// gives more than that would keep others out for longer than need be.
func (s *slot) shareable(r *request) (found *lock) {
	for _, l := range s.of(r.Owner) {
		if l.owner != r.Owner || l.dying || l.grant.Mode == Shared && r.Mode == Exclusive {
			continue
		}
		if found == nil || l.grant.Mode == r.Mode {
			found = l
		}
	}
	return found
}

// turn returns those of missing that r asks the service for next, and how. A request
// that queues takes all keys if they are free. Else it waits for the inode's first, and
// enters the line of the name when it has that: until then it is not in the way of the
// inode's owner, who opens the file by that name, too (docs/adr/0025).
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

// ask takes what it is the turn of from the service. m.mu is held, and let go
// meanwhile; r stays in their queues, so that nobody else asks for what
// conflicts.
func (m *Manager) ask(ctx context.Context, r *request, missing []*place) error {
	missing, wait := r.turn(missing)
	var prefer *session // what one hold has is best lost together
	if len(r.hold.locks) > 0 {
		prefer = r.hold.locks[0].sess
	}
	// Whoever has the inode may wait for the name: r has none while it waits, nor shares
	// one, which it would keep when the others of its owner let that go.
	if wait == Queue && missing[0].slot.key.Kind == Inode && m.dropAll(r) {
		return nil
	}
	req := AcquireRequest{Mode: r.Mode, Holder: r.Holder, Wait: wait, Waits: r.contended}
	for _, p := range missing {
		req.Keys = append(req.Keys, p.slot.key)
		for _, l := range p.slot.of(r.Owner) {
			if l.owner == r.Owner && !l.dying {
				req.Upgrades = append(req.Upgrades, l.grant)
			}
		}
	}
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
		return nil // r looks again; nobody buries what is put into a slot now
	}
	for i, p := range missing {
		l := &lock{grant: grants[i], since: now, holder: req.Holder, owner: r.Owner, sess: sess, holds: make(map[*Hold]struct{})}
		m.add(p.slot, l)
		r.hold.join(l)
		m.granted(p)
	}
	for _, b := range early {
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
	r.vigil.contended()
	r.trying.contended()
}

// obtain asks the service for req, on a session that lives, and notes in it who
// asked. With an error, the session is that which it comes from, if any.
func (m *Manager) obtain(ctx context.Context, r *request, prefer *session, req *AcquireRequest) (*session, []Grant, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	switch {
	case req.Wait == NoWait:
		ctx, cancel = context.WithTimeout(ctx, m.answerTime())
		defer cancel()
	case r.Queue && req.Wait == Retry: // for an answer, and for nobody
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
		id := r.vigil.fresh(r.inTurn)
		m.mu.Lock()
		delete(m.early, req.Holder.AcquisitionID) // of the last attempt
		m.early[id] = nil
		m.mu.Unlock()
		req.Holder.AcquisitionID = id
		req.Holder.Session = sess.backend.ID()
		req.Holder.Node = m.cfg.Session.Node
		req.Holder.Since = time.Now()
		sent := time.Now()
		grants, err := sess.backend.Acquire(ctx, *req)
		if err == nil || !r.Queue { // one that queues may have been answered long ago
			m.outage.note(sent, r.trying.outcome(err))
		}
		if err == nil {
			return sess, grants, nil // which ask is done with
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

// join adds h to those who share l. m.mu is held.
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
