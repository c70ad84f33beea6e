package lockmgr

import (
	"context"
	"errors"
	"time"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/renew"
)

// ask asks the service for the keys whose turn it is; meanwhile m.mu is not held. r stays in the
// queues, so that no other request of this mount asks for a conflicting lock.
func (m *Manager) ask(ctx context.Context, r *request, missing []*place) error {
	contended := false // set by obtain
	missing, wait := r.turn(missing)
	prefer := m.sessionBelow(missing) // a delegation's entry keeps out the requests of all sessions but its own
	if len(r.hold.locks) > 0 {        // on one session, so that all locks of the hold are lost together or not at all
		prefer = r.hold.locks[0].sess
	}
	// The inode's owner may wait for the name. So r gives the name up before it waits for the
	// inode.
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
	handing := m.waitsEnd
	m.mu.Unlock()
	if r.HandedOn {
		var over func()
		ctx, over = r.untilHandedOn(ctx, handing, &req)
		defer over()
	}
	sess, grants, err := m.obtain(ctx, r, prefer, &req)
	m.mu.Lock()
	early := m.early[req.Holder.AcquisitionID]
	delete(m.early, req.Holder.AcquisitionID)
	if err != nil {
		m.leftover(err, req, r.Owner, missing, sess)
		if r.HandedOn && handing.Err() != nil {
			id := AcquisitionID{}
			if errors.Is(err, ErrStands) {
				id = req.Holder.AcquisitionID
			}
			return r.handedOn(ctx, id)
		}
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
	m.take(r, missing, grants, &req, sess, contended, early.recalled)
	for _, b := range early.breaks {
		m.giveUpFor(b)
	}
	if p := r.hold.lost.Load(); p != nil {
		return *p
	}
	return nil
}

// take makes locks of the grants that r has got on sess. m.mu is held.
func (m *Manager) take(r *request, missing []*place, grants []Grant, req *AcquireRequest, sess *session, contended, recalled bool) {
	now := time.Now()
	for i, p := range missing {
		l := &lock{grant: grants[i], since: now, holder: req.Holder, owner: r.Owner, sess: sess, holds: make(map[*Hold]struct{})}
		m.table.add(p.slot, l)
		l.contended, l.keep = contended, m.keepsFor(r)
		if req.Keep {
			l.asked = req.Holder.Since
			m.keepFor(l)
			if recalled {
				m.recalled(l)
			}
		}
		m.noteBelow(l)
		if r.Renames {
			m.mayChange(l)
		}
		r.hold.join(l)
		m.table.granted(p)
	}
}

// turn returns the keys to ask for next, and how. A queueing request takes all keys if they are
// free. Otherwise it gets the inode's key before it enters the name's line: the inode's owner may
// open the file by that name too (docs/adr/0025).
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

// dropAll gives up all locks of r, and reports whether one of them is released to the service,
// because no other hold has it. m.mu is held.
func (m *Manager) dropAll(r *request) (givenBack bool) {
	had := r.hold.locks
	r.hold.locks = nil
	for _, l := range had {
		givenBack = givenBack || len(l.holds) == 1
		m.drop(l, r.hold)
	}
	return givenBack
}

func (r *request) contended() {
	r.tracker.contended()
	r.trying.contended()
}

// obtain asks the service on a live session, and fills in req.Holder. It returns the session that
// an error comes from, if any.
func (m *Manager) obtain(ctx context.Context, r *request, prefer *session, req *AcquireRequest) (*session, []Grant, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	switch {
	case req.Wait == NoWait:
		ctx, cancel = context.WithTimeout(ctx, m.answerTime())
		defer cancel()
	case r.Queue && req.Wait == Retry: // waits for an answer, but for no other owner
		req.Waits = func() {
			r.contended()
			cancel()
		}
	}
	defer context.AfterFunc(m.accepting, cancel)()
	for {
		was := m.claim(r, req)
		var sess *session
		var id AcquisitionID
		if was != nil {
			sess, id = was.sess, was.holder.AcquisitionID
			r.tracker.resumes(id)
		} else {
			var err error
			if sess, err = m.session(ctx, prefer); err != nil {
				return nil, nil, err
			}
			id = r.tracker.fresh(r.inTurn)
		}
		m.mu.Lock()
		delete(m.early, req.Holder.AcquisitionID) // of the previous attempt
		m.early[id] = new(overtaken)
		m.mu.Unlock()
		req.Holder.AcquisitionID = id
		req.Holder.Session = sess.backend.ID()
		req.Holder.Node = m.cfg.Session.Node
		req.Holder.Since = time.Now()
		if req.Again = was != nil; req.Again {
			req.Holder.Since = was.holder.Since
		}
		sent := time.Now()
		grants, err := sess.backend.Acquire(ctx, *req)
		if err == nil {
			m.outage.answered()
			return sess, grants, nil // ask calls done for it
		}
		if !r.Queue && !(r.HandedOn && ctx.Err() != nil) { // a queueing request may have been answered long ago
			m.outage.note(sent, r.trying.outcome(err))
		}
		m.done(sess)
		if errors.Is(err, ErrStands) {
			m.stands(req, sess)
			return sess, nil, err
		}
		switch {
		case m.accepting.Err() != nil:
			return nil, nil, ErrClosed
		case ctx.Err() != nil:
			return sess, nil, err
		case errors.Is(err, ErrSessionLost):
			// The next attempt gets a new session once the end of this one is settled.
			select {
			case <-sess.renewal.Lost():
			case <-ctx.Done():
				return nil, nil, retry.Ended(ctx)
			}
		case errors.Is(err, ErrLockLost):
			// Somebody deleted the entry while it waited: stand in line again.
		default:
			return sess, nil, err
		}
	}
}

func (h *Hold) join(l *lock) {
	if _, ok := l.holds[h]; !ok {
		l.holds[h] = struct{}{}
		h.locks = append(h.locks, l)
	}
}

// closing reports whether each holder's close() was seen.
func (l *lock) closing() bool {
	for h := range l.holds {
		if !h.closing {
			return false
		}
	}
	return true
}
