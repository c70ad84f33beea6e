package lockmgr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockfs/lockfs/internal/retry"
)

// A file can have one name below a delegated directory and another name elsewhere. An owner on
// another mount that uses the other name locks the inode too, and that does not recall the
// directory. When the other name has been removed, this mount locks the file without the service,
// by its only name. Its token must then be larger than that owner's. Nobody can give the file
// another name without the lock of the present one, and that recalls the directory. So a revision
// that is read under the lock while the file has one name is large enough, and stays so
// (docs/adr/0064).
//
// An owner can also have the lock of a name at the time when another file gets that name, by a call
// of the same owner. Other owners may have had that file with larger tokens than the lock's. So
// each open that shares such a lock reads a revision, whether the lock has an entry or not.
//
// All other locks are settled when somebody asks for their token: between the grant and the owner's
// look at the file, another owner can have had it by another name that is gone.

// Looked notes that an OPEN has looked at its file under the lock. It reports whether the OPEN may be
// answered. If not, Settle has to be called first.
func (h *Hold) Looked() bool {
	if h.Unlocked() {
		return true
	}
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	for _, l := range h.locks {
		l.looked = true
	}
	return h.unsettled() == nil
}

// unsettled returns a lock whose token Settle has to raise, or nil. m.mu is held.
func (h *Hold) unsettled(but ...*lock) *lock {
	i := slices.IndexFunc(h.locks, func(l *lock) bool { return l.unsettled && l.stands() && !slices.Contains(but, l) })
	if i < 0 {
		return nil
	}
	return h.locks[i]
}

// Settle makes the token larger than every token that other owners of the file have had. If the lock
// gets an entry in a recall meanwhile, the token of that entry is large enough too. Errors:
// ErrUnavailable, ErrLockLost.
func (h *Hold) Settle(ctx context.Context) error {
	m := h.m
	ctx, cancel := context.WithTimeout(ctx, m.outage.patience(outageWait))
	defer cancel()
	m.mu.Lock()
	defer m.mu.Unlock()
	var settled []*lock
	for l := h.unsettled(); l != nil && h.why() == nil; l = h.unsettled(settled...) { // a lost lock stands for a while
		if again, err := m.settle(ctx, l); err != nil {
			return err
		} else if again {
			continue
		}
		if l.unsettled = l.changes; !l.unsettled && l.below != nil && !h.hasInode() {
			l.below.isOnly(l.grant.Key)
		}
		settled = append(settled, l) // if it changes, the name may be another file's in a moment, or by now
		l.rewrite()
	}
	return h.why()
}

// settle makes a lock's token larger than all that anybody has had before the call. again: the lock has
// changed meanwhile. m.mu is held except while it asks.
func (m *Manager) settle(ctx context.Context, l *lock) (again bool, err error) {
	d, g := l.below, l.grant
	if d != nil {
		g = d.lock.grant
	}
	putting := l.putting
	m.mu.Unlock()
	var revision int64
	if putting {
		err = new(retry.Retrier).Pause(ctx)
	} else {
		revision, err = m.readRevision(ctx, l.sess, g)
	}
	m.mu.Lock()
	switch {
	case putting && err != nil:
		return false, fmt.Errorf("%w: an entry for %s is being put", ErrUnavailable, l.grant.Key)
	case putting || l.putting || l.below != d || l.releasing || !l.stands():
		return true, nil // it has an entry now, or gets one, or the file has lost the name
	case l.told && !l.unsettled: // another one has asked meanwhile
		return false, nil
	case errors.Is(err, ErrNotHeld): // somebody has deleted it
		if d != nil {
			m.loseDelegation(d, errDeleted)
		} else {
			m.loseAlone(l, errDeleted)
		}
		return false, errDeleted
	case err != nil:
		return false, err
	}
	return false, m.raise(l, revision)
}

// readRevision reads at which revision a grant stands. It waits out a short outage.
func (m *Manager) readRevision(ctx context.Context, s *session, g Grant) (revision int64, err error) {
	for r := (retry.Retrier{}); ; {
		sent := time.Now()
		bounded, cancel := context.WithTimeout(ctx, m.cfg.AnswerTimeout)
		revision, err = s.backend.(Delegator).Stands(bounded, g)
		cancel()
		m.outage.note(sent, err)
		if !errors.Is(err, ErrUnavailable) || r.Pause(ctx) != nil {
			return revision, err
		}
	}
}

// raise gives a lock a token that is larger than all before the revision, and than all that this
// mount has given out without the service. m.mu is held.
func (m *Manager) raise(l *lock, revision int64) error {
	last := FencingToken(revision, 0)
	for _, d := range m.dels {
		last = max(last, d.last)
	}
	if l.token() > last {
		return nil // another open has raised it
	}
	if last&maxTurn == maxTurn { // the next entry's token would not be larger
		if d := l.below; d != nil {
			d.last = max(d.last, FencingToken(d.known, maxTurn)) // the next request asks the service
		}
		return fmt.Errorf("%w: the fencing tokens of this moment are used up", ErrUnavailable)
	}
	m.setToken(l, last+1)
	if d := l.below; d != nil {
		d.known = max(d.known, revision)
	}
	return nil
}

// level gives the names of a rename the largest of their tokens: the owner may have a file open
// that changes its name for one with an older lock. m.mu is held.
func (m *Manager) level(h *Hold) {
	isName := func(l *lock) bool { return l.grant.Key.Kind == File && l.grant.Mode == Exclusive }
	var most int64
	for _, l := range h.locks {
		if isName(l) {
			most = max(most, l.token())
		}
	}
	for _, l := range h.locks {
		if isName(l) && l.token() < most {
			m.setToken(l, most)
			l.rewrite()
		}
	}
}

// setToken gives a lock a larger token. If it has an entry, that gets it too, later. m.mu is held.
func (m *Manager) setToken(l *lock, token int64) {
	l.fencing = token
	if d := m.delegationAbove(l.grant.Key); d != nil {
		d.last = max(d.last, token)
	}
	if l.below == nil {
		m.keeper.raised[l] = struct{}{}
		m.keeper.begin()
	}
}

// hasInode reports whether the file may have more names: who locks the inode has seen them. m.mu is
// held.
func (h *Hold) hasInode() bool {
	return slices.ContainsFunc(h.locks, func(l *lock) bool { return l.grant.Key.Kind == Inode })
}

// Made notes that the file of k was made under its lock.
func (h *Hold) Made(k Key) {
	if h.Unlocked() {
		return
	}
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	i := h.find(k)
	if i < 0 {
		return
	}
	l := h.locks[i]
	if l.looked = true; l.unsettled && !l.putting && !l.changes { // else the entry settles it
		l.unsettled = false
		l.below.isOnly(k)
	}
}

func (d *delegation) isOnly(k Key) {
	if len(d.only) >= maxOnly {
		clear(d.only)
	}
	d.only[k.Path] = struct{}{}
}

// mayChange notes that another file may get the name, now or as long as somebody has the lock, which
// may have an entry by now. m.mu is held.
func (m *Manager) mayChange(l *lock) {
	if d := m.delegationAbove(l.grant.Key); d != nil {
		d.mayChange(l.grant.Key)
	}
	if l.grant.Key.Kind == File && l.grant.Mode == Exclusive {
		l.unsettled, l.changes, l.told = true, true, false
	}
}

// mayChange notes that another file may get the name k.
func (d *delegation) mayChange(k Key) {
	switch k.Kind {
	case File:
		delete(d.only, k.Path)
	case Tree:
		clear(d.only)
	}
}
