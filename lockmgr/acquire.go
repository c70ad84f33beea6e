package lockmgr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/renew"
)

// Request asks for locks.
type Request struct {
	// Owner shares with, and only with, itself.
	Owner Owner
	// Process is the caller's; Ancestors returns its parents. A request that
	// would wait for one of them fails with ErrDeadlock. Ancestors is called
	// only when there is somebody to wait for; both may be zero.
	Process   Process
	Ancestors func() []Process
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
	hold      *Hold
	slots     []*slot       // one a key, in the order of Keys
	woken     chan struct{} // buffered, 1
	graceOver bool          // it has given a closing holder its moment
	family    []Process     // the caller and its ancestors; nil until asked for
}

// errWho: look needs the request's family, which is not asked for under a lock.
var errWho = errors.New("family unknown")

func (r *request) wake() {
	select {
	case r.woken <- struct{}{}:
	default:
	}
}

// Acquire takes the locks of req, or shares those its owner holds already.
// The caller releases the returned Hold.
//
// Errors: ErrContended, ErrUnavailable, ErrDeadlock, ErrClosed; one that also
// is context.Canceled if ctx was cancelled.
func (m *Manager) Acquire(ctx context.Context, req Request) (*Hold, error) {
	if req.Wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, req.Wait)
		defer cancel()
	}
	r := &request{
		Request: req,
		hold:    &Hold{m: m, owner: req.Owner, proc: req.Process},
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
// belong to a session that has since been suspended.
func (m *Manager) settle(ctx context.Context, r *request) error {
	if r.hold.Check() == nil {
		return nil
	}
	if r.Wait == 0 {
		return fmt.Errorf("%w: %w", ErrUnavailable, ErrSuspended)
	}
	if err := r.hold.Await(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil
}

// acquire returns when r.hold has all its locks, or with the reason why it
// cannot. m.mu is held, and let go while it waits.
func (m *Manager) acquire(ctx context.Context, r *request) error {
	var grace <-chan time.Time
	for {
		if m.closed {
			return ErrClosed
		}
		missing, wait, err := m.look(r)
		if err == errWho {
			m.mu.Unlock()
			r.askFamily()
			m.mu.Lock()
			continue
		}
		if err != nil {
			return err
		}
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
		if grace == nil && (r.Wait == 0 || !r.Queue) {
			grace = time.After(m.cfg.CloseGrace)
		}
		m.mu.Unlock()
		select {
		case <-r.woken:
		case <-grace:
			r.graceOver = true
		case <-ctx.Done():
			if err = contended(wait, ctx.Err()); wait.under == releasing {
				// Nobody has it: the service does not answer that it let go.
				err = fmt.Errorf("%w: release of %s: %w", ErrUnavailable, wait.key, ctx.Err())
			}
		}
		m.mu.Lock()
		if err != nil {
			return err
		}
	}
}

// look shares what can be shared. It returns the slots that r lacks, and the
// first of them that r has to wait for on this mount: nil if it may ask the
// service now. m.mu is held.
func (m *Manager) look(r *request) (missing []*slot, wait *slot, err error) {
	r.hold.locks = slices.DeleteFunc(r.hold.locks, (*lock).lost)
	for _, s := range r.slots {
		if s.lock != nil && s.lock.lost() {
			s.lock = nil // ahead of the session's own goroutine
		}
		l := s.lock
		if l != nil && l.owner == r.Owner {
			r.hold.join(l)
			continue
		}
		missing = append(missing, s)
		switch {
		case l != nil:
			if r.family == nil {
				return nil, nil, errWho
			}
			if r.descendsFrom(l) {
				return nil, nil, fmt.Errorf("%w: %s is held by %v", ErrDeadlock, s.key, l.holder)
			}
			if (!r.Queue || r.Wait == 0) && (r.graceOver || !l.closing()) {
				return nil, nil, contended(s, nil)
			}
		case s.under != nothing || s.queue[0] != r:
			if r.Wait == 0 && r.graceOver {
				return nil, nil, contended(s, nil)
			}
		case s.key.Kind == Tree:
			if below := m.heldBelow(s.key); below != nil {
				return nil, nil, contended(below, nil)
			}
			continue
		default:
			continue
		}
		if wait == nil {
			wait = s
		}
	}
	return missing, wait, nil
}

// heldBelow finds a slot that keeps a whole directory from being locked. The
// service would find it too, but not before the request had waited.
func (m *Manager) heldBelow(tree Key) *slot {
	for k, s := range m.slots {
		if k != tree && s.lock != nil && tree.Conflicts(k) {
			return s
		}
	}
	return nil
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
	defer context.AfterFunc(m.ctx, cancel)()
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
		case m.ctx.Err() != nil:
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

func (r *request) askFamily() {
	r.family = []Process{r.Process}
	if r.Ancestors != nil {
		r.family = append(r.family, r.Ancestors()...)
	}
}

// descendsFrom reports whether the caller, or one it descends from, holds l.
func (r *request) descendsFrom(l *lock) bool {
	for h := range l.holds {
		if h.proc != (Process{}) && slices.Contains(r.family, h.proc) {
			return true
		}
	}
	return false
}

// contended says who holds s, and why the wait ended if there was one.
func contended(s *slot, why error) error {
	e := &ContendedError{Key: s.key, Err: why}
	if s.lock != nil {
		e.Holder = s.lock.holder
	}
	return e
}
