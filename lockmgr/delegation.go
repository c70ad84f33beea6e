package lockmgr

import (
	"context"
	"log/slog"
	"time"

	"github.com/lockfs/lockfs/renew"
)

// A mount that locks many files below a directory, which nobody else wants, has the directory
// delegated to it. One entry then stands for all files below it: the mount grants their locks
// itself, as kept ones, in the order of its queues. Another mount that wants anything there
// recalls the entry, and puts nothing while it stands. The mount puts an entry for each file
// that is open, then deletes the directory's, and only then others go on. So an entry of a file
// never has to pass one that came before it (docs/adr/0035).
//
// What the mount grants itself is an exclusive lock of a file or a directory below. Inodes, shared
// locks, and whatever is locked together with these have entries of their own, as without a
// delegation. The delegation does not conflict with these entries.

// Delegator is a Session that grants the Delegated mode: the entry of a directory for the mount
// itself.
//
// Acquire in this mode does not wait, and recalls nothing. It fails with ErrContended if another
// session has an entry in the directory or below it, or if there is an entry of the directory, or of
// one above or below it. While the delegation stands, it does not block requests of its own session.
// No other session puts an entry that conflicts with it, not even in line: it recalls the delegation.
type Delegator interface {
	Session

	// PutBelow puts Exclusive entries for what is locked strictly below d, a delegation of the
	// session: all of them, if d stands, or none. Nothing else on the mount conflicts with them.
	// It returns their token. Errors: ErrNotHeld, if d is gone and none stands; and, as Acquire's,
	// ErrUnavailable, ErrSessionLost, ErrLockLost.
	PutBelow(ctx context.Context, d Grant, entries []Entry) (int64, error)

	// MostBelow is how many entries PutBelow takes.
	MostBelow() int

	// Stands reads whether g, of the session, stands. It returns a revision of that moment: no
	// smaller than any token that was granted before the call. Errors: ErrNotHeld, ErrUnavailable.
	Stands(ctx context.Context, g Grant) (int64, error)
}

const (
	delegatedAfter = 4      // uncontended grants below a directory, within evidenceFor
	maxDelegations = 64     // bounds those of a mount
	maxOnly        = 10_000 // bounds the files of a delegation that are known to have had one name
)

// delegation is a directory that is delegated to the mount, from the request on. All of it is
// GUARDED_BY(Manager.mu), but the constants.
type delegation struct {
	key      Key           // constant
	keep     time.Duration // how long it may be without use; constant
	lock     *lock         // has no owner, and is in no slot; releasing, once it ends
	phase    delegationPhase
	recalled bool               // another mount has recalled it before it was granted
	open     map[*lock]struct{} // locks below it without an entry of their own
	used     time.Time
	known    int64 // the last revision at which the entry is known to have stood
	last     int64 // later tokens below it are larger than this
	record   uint64
	adopted  bool // a former process may have put entries for open, of which nobody knows; constant

	// only has the files below that have had no other name since a token was given out: see isOnly.
	only map[string]struct{}
}

type delegationPhase uint8

const (
	delegationAsked delegationPhase = iota
	delegationStands
	delegationEnds    // what is open gets entries; nothing else is granted
	delegationDeletes // its entry is being deleted, or gone
)

// stands reports whether the entry has to be in the service.
func (d *delegation) stands() bool {
	return d.phase == delegationStands || d.phase == delegationEnds && len(d.open) > 0
}

// delegationAbove returns the delegation of a directory that k is below. m.mu is held.
func (m *Manager) delegationAbove(k Key) *delegation {
	if len(m.dels) == 0 || k.Kind == Inode {
		return nil
	}
	for path := parent(k.Path); path != ""; path = parent(path) {
		if d := m.dels[path]; d != nil {
			return d
		}
	}
	return nil
}

// delegationOfID returns the delegation with an entry. m.mu is held.
func (m *Manager) delegationOfID(id AcquisitionID) *delegation {
	for _, d := range m.dels {
		if d.lock.grant.AcquisitionID == id {
			return d
		}
	}
	return nil
}

// endingFor returns a delegation that is ending and for which k has to wait, because another mount
// has asked before; nil: there is none. m.mu is held.
func (m *Manager) endingFor(k Key) *delegation {
	for _, d := range m.dels {
		if d.phase >= delegationEnds && d.key.Conflicts(k) {
			return d
		}
	}
	return nil
}

// sessionBelow returns the session of a delegation above one of the keys, or nil. m.mu is held.
func (m *Manager) sessionBelow(places []*place) *session {
	for _, p := range places {
		if d := m.delegationAbove(p.slot.key); d != nil {
			return d.lock.sess
		}
	}
	return nil
}

// grantBelow grants r all that is missing, if all of it is below delegated directories. Nothing
// on this mount is in its way. m.mu is held.
func (m *Manager) grantBelow(r *request, missing []*place) bool {
	if len(m.dels) == 0 || len(missing) == 0 || r.Mode != Exclusive || m.keepsFor(r) == 0 {
		return false
	}
	var d *delegation
	for _, p := range missing {
		above := m.delegationAbove(p.slot.key)
		if above == nil || d != nil && above != d || !m.table.undisputed(p.slot, r) {
			return false
		}
		d = above
	}
	now := time.Now()
	deaf := now.Sub(m.keeper.heard) > hearsFor && now.Sub(d.lock.asked) > hearsFor
	usedUp := d.last+int64(len(missing)) > FencingToken(d.known, maxTurn)
	if d.phase != delegationStands || deaf || usedUp || d.lock.lost() {
		return false
	}
	h := r.tracker.byItself(d.lock.sess)
	d.used = now
	for _, p := range missing {
		d.last++
		l := &lock{
			grant: Grant{Key: p.slot.key, AcquisitionID: h.AcquisitionID, Token: d.known}, since: now, holder: h, owner: r.Owner,
			sess: d.lock.sess, holds: make(map[*Hold]struct{}), below: d, fencing: d.last,
		}
		if l.grant.Key.Kind == Tree {
			m.moved[PathHash(l.grant.Key.Path)] = l.fencing
		}
		if _, only := d.only[l.grant.Key.Path]; r.Found {
			l.unsettled = !only
		} else {
			d.mayChange(l.grant.Key)
		}
		if r.Renames {
			m.mayChange(l)
		}
		d.open[l] = struct{}{}
		m.table.add(p.slot, l)
		r.hold.join(l)
		m.table.granted(p)
	}
	return true
}

// movedSince reports whether the mount may have locked a directory at or above k by itself since a
// token. m.mu is held.
func (m *Manager) movedSince(k Key, token int64) (moved bool) {
	PathHashes(k.Path, func(h uint16) bool {
		moved = m.moved[h] > token
		return !moved
	})
	return moved
}

// noteBelow counts a lock that the service has granted for the directories above it. If enough
// locks were granted below one of them, it begins to ask for the topmost such directory. m.mu is
// held.
func (m *Manager) noteBelow(l *lock) {
	_, able := l.sess.backend.(Delegator)
	if !able {
		return
	}
	for _, d := range m.dels {
		// The delegation stood when this token was given out, if it had been granted by then: it
		// was not deleted since.
		d.saw(l.grant.Token)
		d.mayChange(l.grant.Key)
	}
	key := l.grant.Key
	if m.delegationAbove(key) != nil && l.keepable {
		l.recalled = true // not kept: its next owner's token would be smaller than those of the delegation
	}
	if l.keep == 0 || key.Kind != File || l.grant.Mode != Exclusive {
		return
	}
	now := time.Now()
	top := ""
	for path := parent(key.Path); path != ""; path = parent(path) {
		p := m.keeper.pastOf(Key{Tree, path}, now)
		if now.Sub(p.since) > evidenceFor || l.contended {
			p.since, p.granted = now, 0
		}
		p.granted++
		p.used = now
		if p.granted >= delegatedAfter && now.After(p.cool) {
			top = path
		}
	}
	if top == "" || m.refusing || m.keepsNothing || len(m.dels) >= maxDelegations {
		return
	}
	k := Key{Tree, top}
	for _, d := range m.dels {
		if d.key.Conflicts(k) {
			return
		}
	}
	d := &delegation{key: k, keep: l.keep, lock: &lock{}, open: make(map[*lock]struct{}), only: make(map[string]struct{})}
	m.dels[top] = d
	m.wg.Go(func() { m.delegate(d) })
}

func (d *delegation) saw(revision int64) {
	d.known = max(d.known, revision)
	d.last = max(d.last, FencingToken(revision, 0))
}

// delegate asks for a directory.
func (m *Manager) delegate(d *delegation) {
	ctx, cancel := context.WithTimeout(m.accepting, m.cfg.AnswerTimeout)
	defer cancel()
	sess, err := m.session(ctx, nil) // it is needed until forget
	if err != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.forget(d)
		return
	}
	h := Holder{AcquisitionID: NewAcquisitionID(), Session: sess.backend.ID(), Node: m.cfg.Session.Node, Since: time.Now(), Kept: true}
	m.mu.Lock()
	d.lock.sess, d.lock.asked, d.lock.holder = sess, h.Since, h
	d.lock.grant = Grant{Key: d.key, Mode: Delegated, AcquisitionID: h.AcquisitionID}
	m.mu.Unlock()
	grants, err := sess.backend.Acquire(ctx, AcquireRequest{Keys: []Key{d.key}, Mode: Delegated, Holder: h, Keep: true})
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil || sess.renewal.State() == renew.Lost {
		m.keeper.coolOff(d.key)
		m.forget(d)
		m.debug("directory not delegated", d.lock, slog.Any("error", err))
		return
	}
	d.lock.grant, d.lock.since, d.used = grants[0], time.Now(), time.Now()
	d.saw(d.lock.grant.Token)
	d.phase = delegationStands
	m.recordDelegation(d)
	m.observe(DirectoryDelegated{Key: d.key})
	m.debug("directory delegated", d.lock)
	m.keeper.begin()
	if d.recalled || m.refusing {
		m.end(d)
	}
}
