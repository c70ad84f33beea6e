package lockmgr

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lockfs/lockfs/renew"
)

// A mount can hand its locks on to another process, with the sessions that they depend on. First
// HandOn ends the requests that wait in line; the entries by which they wait stay. Then Export
// returns what the other process needs for Adopt, and this one does nothing more, or goes on with
// GoOn (docs/adr/0050).

// Resume says where a request has waited in line, so that it keeps its place.
type Resume struct {
	ID    AcquisitionID // of its entry; zero: it has none
	Since time.Time     // when it began to wait
	Until time.Time     // when its patience is over; zero: never
	Asked bool          // SelfWait was called: the request does not wait for itself
}

// HandedOnError is the error of a request that HandOn has ended.
type HandedOnError struct{ Resume Resume }

func (e *HandedOnError) Error() string { return "the request is handed on" }

// ErrHandOn is the cause of the end of a context whose request is handed on: its entry must stay.
var ErrHandOn = errors.New("handed on")

// HandsOn reports whether ctx was ended by HandOn: the entry of the request is to stay. A Backend
// then returns ErrStands if the entry stands.
func HandsOn(ctx context.Context) bool { return errors.Is(context.Cause(ctx), ErrHandOn) }

// left is an entry by which a request waited when it was handed on.
type left struct {
	keys   []Key
	mode   Mode
	holder Holder
	sess   *session
}

// forsakenAfter is how long the entry of a request that was handed on is kept if the request does
// not come again.
const forsakenAfter = 5 * time.Second

// HandOn fails the requests that wait in line, now and until GoOn, with a *HandedOnError. Nothing
// is kept or delegated meanwhile.
func (m *Manager) HandOn() {
	m.mu.Lock()
	cancel, advisory := m.endWaits, m.advisory
	m.keepsNothing = true
	m.mu.Unlock()
	cancel()
	if advisory != nil {
		advisory.handOn()
	}
}

// GoOn ends HandOn.
func (m *Manager) GoOn() {
	m.mu.Lock()
	m.keepsNothing = false
	m.waitsEnd, m.endWaits = context.WithCancel(context.Background())
	m.forsakeLate()
	advisory := m.advisory
	m.mu.Unlock()
	if advisory != nil {
		advisory.goOn()
	}
}

// GiveBackKept gives back what is not handed on: kept locks that are idle, and delegations. It returns
// when there are no delegations, and there will be none until GoOn. An error says why this mount cannot be handed on now.
func (m *Manager) GiveBackKept(ctx context.Context) error {
	m.mu.Lock()
	m.keepsNothing = true
	m.mu.Unlock()
	m.releaseAllIdle()
	m.endDelegations()
	for {
		m.mu.Lock()
		n := len(m.dels)
		for _, d := range m.dels {
			if d.phase == delegationStands { // asked for before, and granted since
				m.end(d)
			}
		}
		m.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("directories are delegated: %w", ctx.Err())
		}
	}
}

// handedOn returns the error of a request that HandOn has ended.
func (r *request) handedOn(ctx context.Context, id AcquisitionID) error {
	if id.IsZero() && r.Resume != nil { // it has not come to claim its entry
		id = r.Resume.ID
	}
	e := &HandedOnError{Resume{ID: id, Since: r.tracker.began, Asked: r.asked}}
	if until, ok := ctx.Deadline(); ok {
		e.Resume.Until = until
	}
	return e
}

// untilHandedOn ends ctx when the request is to be handed on. Only a request that waits for all its
// keys at once keeps its entry: one that has the inode's key and waits for the name's would keep
// out all that wait for the inode.
func (r *request) untilHandedOn(ctx, handing context.Context, req *AcquireRequest) (context.Context, func()) {
	cause := context.Canceled
	if req.Wait == Queue && len(r.Keys) == 1 {
		cause = ErrHandOn
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(handing, func() { cancel(cause) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// stands keeps the entry of a request that is handed on.
func (m *Manager) stands(req *AcquireRequest, sess *session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keepLeft(req.Holder.AcquisitionID, &left{req.Keys, req.Mode, req.Holder, sess})
}

// keepLeft keeps an entry until it is claimed, or forsaken. m.mu is held.
func (m *Manager) keepLeft(id AcquisitionID, l *left) {
	m.left[id] = l
	if !m.keepsNothing { // it comes late: the requests are sent again already
		m.forsakeLate()
	}
}

// forsakeLate gives the requests that were handed on forsakenAfter to claim their entries, which is
// from when they are sent again. During the next HandOn they have time until its GoOn. m.mu is held.
func (m *Manager) forsakeLate() {
	waiting := maps.Clone(m.left)
	time.AfterFunc(forsakenAfter, func() {
		m.mu.Lock()
		if m.keepsNothing {
			clear(waiting)
		}
		maps.DeleteFunc(waiting, func(id AcquisitionID, l *left) bool { return m.left[id] != l })
		m.mu.Unlock()
		for id := range waiting {
			m.Forsake(Resume{ID: id})
		}
	})
}

// keepsLeft reports whether an entry of s is kept for its request. m.mu is held.
func (m *Manager) keepsLeft(s *session) bool {
	for _, l := range m.left {
		if l.sess == s {
			return true
		}
	}
	return false
}

// claim returns the entry of a request that was handed on, if it is for the keys.
func (m *Manager) claim(r *request, req *AcquireRequest) *left {
	if r.Resume == nil || r.Resume.ID.IsZero() {
		return nil
	}
	m.mu.Lock()
	l := m.left[r.Resume.ID]
	fits := l != nil && slices.Equal(l.keys, req.Keys) && l.mode == req.Mode && l.sess.renewal.State() != renew.Lost
	if fits {
		delete(m.left, r.Resume.ID)
		l.sess.asking++
		l.sess.idle = time.Time{}
	}
	m.mu.Unlock()
	if !fits {
		m.Forsake(*r.Resume)
		return nil
	}
	r.Resume = nil
	return l
}

// Forsake deletes the entry of a request that was handed on, unless it has been claimed.
func (m *Manager) Forsake(at Resume) {
	m.mu.Lock()
	advisory := m.advisory
	m.mu.Unlock()
	if advisory != nil && advisory.forsake(at) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.left[at.ID]
	if l == nil || m.closed {
		return
	}
	delete(m.left, at.ID)
	h, ok := l.sess.backend.(HandedOn)
	if !ok {
		return
	}
	m.wg.Go(func() {
		h.Disclaim(l.keys, l.mode, at.ID)
		if err := h.RemoveUnclaimed(m.ctx); err != nil {
			m.log.Warn("the entry of a request that nobody waits for any more remains for now", LogID(at.ID), "error", err)
		}
	})
}
