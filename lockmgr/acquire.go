package lockmgr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/renew"
)

// Request asks for locks.
type Request struct {
	// Owner shares with, and only with, itself.
	Owner Owner
	// SelfWait reports whether the caller, or one that it descends from, itself
	// keeps the keys from being free, so that waiting would be for ever. It is
	// called, once, only for a request that queues and finds the keys held on
	// this mount. nil means no.
	SelfWait func() bool
	// Holder is what people will see; Owner, Session, Node and Since are
	// filled in.
	Holder Holder
	// Keys are taken together or not at all. At least one, none twice.
	Keys []Key
	// Queue stands in line for the locks. Only a request that arrives without
	// a lock of the kernel's may: others would keep the holder from ever
	// closing its file. Without it, a holder on this mount means ErrContended
	// at once.
	Queue bool
	// Wait bounds the wait for contention and for a lock service that does
	// not answer: 0 refuses at once, less than 0 waits for ever.
	Wait time.Duration
}

// request is a Request under way on this mount.
type request struct {
	Request
	hold  *Hold
	slots []*slot       // one a key, in the order of Keys
	woken chan struct{} // buffered, 1
	since time.Time     // when it first had to wait; zero before
	asked bool          // SelfWait was
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
	if req.Wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, req.Wait)
		defer cancel()
	}
	for {
		h, err := m.acquireOnce(ctx, req)
		// A session that is lost between the grant and now is not the
		// caller's trouble: there is another.
		lost := errors.Is(err, ErrSessionLost) || errors.Is(err, ErrLockLost)
		if !lost || req.Wait == 0 || ctx.Err() != nil {
			return h, err
		}
	}
}

func (m *Manager) acquireOnce(ctx context.Context, req Request) (*Hold, error) {
	r := &request{
		Request: req,
		hold:    &Hold{m: m, owner: req.Owner},
		woken:   make(chan struct{}, 1),
	}
	m.mu.Lock()
	for _, k := range req.Keys {
		s := m.slot(k)
		s.queue = append(s.queue, r)
		r.slots = append(r.slots, s)
	}
	err := m.acquire(ctx, r)
	for _, s := range r.slots {
		s.queue = slices.DeleteFunc(s.queue, func(q *request) bool { return q == r })
		m.changed(s)
	}
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

// acquire returns when r.hold has all its locks, or with the reason why it
// cannot. m.mu is held, and let go while it waits.
func (m *Manager) acquire(ctx context.Context, r *request) error {
	for {
		if m.refusing {
			return ErrClosed
		}
		missing, wait := m.look(r)
		if len(missing) == 0 {
			r.hold.sess = r.hold.locks[0].sess
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
		if r.mayWaitForItself(wait) {
			r.asked = true
			m.mu.Unlock()
			itself := r.SelfWait()
			m.mu.Lock()
			if itself {
				return fmt.Errorf("%w: %s", ErrDeadlock, wait.key)
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
func (m *Manager) pause(ctx context.Context, r *request, wait *slot, left time.Duration, limited bool) error {
	var over <-chan time.Time
	if limited {
		timer := time.NewTimer(left)
		defer timer.Stop()
		over = timer.C
	}
	if !slices.Contains(wait.queue, r) {
		wait.aside = append(wait.aside, r)
		defer func() { wait.aside = slices.DeleteFunc(wait.aside, func(q *request) bool { return q == r }) }()
	}
	m.mu.Unlock()
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

// look shares what can be shared. It returns the slots that r lacks, and the
// first that r has to wait for on this mount: nil if it may ask the service
// now. m.mu is held.
func (m *Manager) look(r *request) (missing []*slot, wait *slot) {
	r.hold.locks = slices.DeleteFunc(r.hold.locks, (*lock).lost)
	for _, s := range r.slots {
		if s.lock != nil && s.lock.lost() {
			s.void() // ahead of the session's own goroutine
		}
		if s.lock != nil && s.lock.owner == r.Owner {
			r.hold.join(s.lock)
			continue
		}
		missing = append(missing, s)
		blocked := s
		if s.lock == nil && s.under == nothing && s.queue[0] == r {
			blocked = m.rival(s.key)
		}
		if wait == nil {
			wait = blocked
		}
	}
	return missing, wait
}

// patience says how long r may wait for s on this mount, counted from when it
// first had to wait, and whether that is limited by more than its context.
func (m *Manager) patience(r *request, s *slot) (time.Duration, bool) {
	switch {
	case s.lock != nil && (!r.Queue || r.Wait == 0):
		if s.lock.closing() {
			return m.cfg.CloseGrace, true
		}
		return 0, true
	case s.under == releasing && r.Wait == 0:
		return m.cfg.AnswerTimeout, true // nobody has it: the service is to answer
	case r.Wait == 0:
		return m.cfg.CloseGrace, true
	}
	return 0, false
}

func (r *request) mayWaitForItself(s *slot) bool {
	return s.lock != nil && r.Queue && r.SelfWait != nil && !r.asked
}

// refusal says why a wait for s is over. m.mu is held.
func (s *slot) refusal(why error) error {
	if s.under == releasing {
		// Nobody has it: the service does not answer that it let go.
		err := fmt.Errorf("%w: it does not answer the release of %s", ErrUnavailable, s.key)
		if why != nil {
			err = fmt.Errorf("%w: %w", err, why)
		}
		return err
	}
	e := &ContendedError{Key: s.key, Err: why}
	if s.lock != nil {
		e.Holder = s.lock.holder
	}
	return e
}

// rival finds a slot of another key that keeps key from being had, nil if there
// is none. The service would find its entry too, but not before the request had
// waited; and a request that does not wait it would refuse for an entry that is
// being deleted.
func (m *Manager) rival(key Key) *slot {
	if s := m.releasedAbove(key); s != nil || key.Kind != Tree {
		return s
	}
	var found *slot
	for k, s := range m.slots {
		switch {
		case k == key || !key.Conflicts(k):
		case s.lock != nil && !s.lock.closing():
			return s // no use to give the others a moment
		case s.lock != nil, s.under == releasing && found == nil:
			found = s
		}
	}
	return found
}

// releasedAbove finds a directory at or above key's path whose entry is being
// given back.
func (m *Manager) releasedAbove(key Key) *slot {
	if m.trees == 0 || key.Kind == Inode {
		return nil
	}
	for path := key.Path; ; {
		if s := m.slots[Key{Tree, path}]; s != nil && s.under == releasing {
			return s
		}
		i := strings.LastIndexByte(path, '/')
		if i < 0 {
			return nil
		}
		path = path[:i]
	}
}

// ask takes the missing keys from the service. m.mu is held, and let go
// meanwhile; nobody else asks for these keys, for it is under way in their slots.
func (m *Manager) ask(ctx context.Context, r *request, missing []*slot) error {
	keys := make([]Key, len(missing))
	for i, s := range missing {
		s.under = acquiring
		keys[i] = s.key
	}
	m.mu.Unlock()
	sess, holder, grants, err := m.obtain(ctx, r, keys)
	m.mu.Lock()
	for i, s := range missing {
		s.under = nothing
		if err == nil {
			s.lock = &lock{grant: grants[i], holder: holder, owner: r.Owner, sess: sess, holds: make(map[*Hold]struct{})}
			m.guard(s.lock)
			r.hold.join(s.lock)
		}
		m.changed(s)
	}
	return err
}

// obtain asks the service for keys, on a session that lives.
func (m *Manager) obtain(ctx context.Context, r *request, keys []Key) (*session, Holder, []Grant, error) {
	req := AcquireRequest{Keys: keys, Holder: r.Holder, Wait: Retry}
	if r.Queue {
		req.Wait = Queue
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if r.Wait == 0 {
		req.Wait = NoWait
		ctx, cancel = context.WithTimeout(ctx, m.cfg.AnswerTimeout)
		defer cancel()
	}
	defer context.AfterFunc(m.accepting, cancel)()
	for {
		sess, err := m.session(ctx)
		if err != nil {
			return nil, Holder{}, nil, err
		}
		req.Holder.Owner = uuid.New()
		req.Holder.Session = sess.backend.ID()
		req.Holder.Node = m.cfg.Session.Node
		req.Holder.Since = time.Now()
		grants, err := sess.backend.Acquire(ctx, req)
		switch {
		case err == nil:
			return sess, req.Holder, grants, nil
		case m.accepting.Err() != nil:
			return nil, Holder{}, nil, ErrClosed
		case ctx.Err() != nil:
			return nil, Holder{}, nil, err
		case errors.Is(err, ErrSessionLost):
			// The next attempt needs a new session, and gets one once the
			// end of this one is settled.
			select {
			case <-sess.renewal.Lost():
			case <-ctx.Done():
				return nil, Holder{}, nil, fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
			}
		case errors.Is(err, ErrLockLost):
			// Somebody deleted the entry while it waited: stand in line anew.
		default:
			return nil, Holder{}, nil, err
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

func (l *lock) lost() bool { return l.sess.renewal.State() == renew.Lost }

// closing reports whether each of the lock's holders is about to let it go.
func (l *lock) closing() bool {
	for h := range l.holds {
		if !h.closing {
			return false
		}
	}
	return true
}
