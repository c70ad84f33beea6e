package lockmgr

import (
	"context"
	"errors"
	"time"

	"github.com/lockfs/lockfs/internal/retry"
)

// recalledDir gives up a directory that another mount wants something in. m.mu is held.
func (m *Manager) recalledDir(d *delegation) {
	if d.recalled || d.phase == delegationEnds {
		return
	}
	m.coolOff(d.key)
	m.observe(DirectoryRecalled{Key: d.key, Open: len(d.open)})
	m.end(d)
}

// end gives up a delegation, once what is open below it has entries. m.mu is held.
func (m *Manager) end(d *delegation) {
	if d.recalled = true; d.phase != delegationStands || m.closed {
		return
	}
	d.phase = delegationEnds
	d.lock.releasing = true
	for l := range d.open {
		m.putEntry(l)
	}
	m.deleteEmpty(d)
}

// endDelegations ends all.
func (m *Manager) endDelegations() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.dels {
		m.end(d)
	}
}

// tendDelegations gives up those that were not used for long. What is open for long below others
// gets an entry: people can see it, and it is not in the way of a recall.
func (m *Manager) tendDelegations() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.dels {
		if d.phase != delegationStands {
			continue
		}
		if len(d.open) == 0 && time.Since(d.used) >= d.keep-keeperTick {
			m.end(d)
			continue
		}
		for l := range d.open {
			if time.Since(l.since) >= m.backend.DescribesAfter() {
				m.putEntry(l)
			}
		}
	}
}

// leaveDelegation notes that a lock is over. m.mu is held.
func (m *Manager) leaveDelegation(l *lock) {
	if d := l.below; d != nil {
		delete(d.open, l)
		d.used = time.Now()
		m.deleteEmpty(d)
	}
}

// deleteEmpty deletes the entry of a delegation that ends, in the background, when nothing
// depends on it any more. m.mu is held.
func (m *Manager) deleteEmpty(d *delegation) {
	if d.phase != delegationEnds || len(d.open) > 0 || m.closed {
		return
	}
	d.phase = delegationDeletes
	m.wg.Go(func() {
		m.release(d.lock)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.forget(d)
	})
}

// forget removes a delegation whose entry is gone, or is not the mount's any more. m.mu is held.
func (m *Manager) forget(d *delegation) {
	if m.dels[d.key.Path] != d {
		return
	}
	delete(m.dels, d.key.Path)
	d.phase = delegationDeletes
	if d.lock.sess != nil {
		d.lock.sess.asking--
	}
	m.wake(&d.lock.waiting)
}

// loseDelegation follows the loss of a delegation's entry, while its session lives: what is open
// by it alone is lost. m.mu is held.
func (m *Manager) loseDelegation(d *delegation, cause error) {
	if !d.stands() {
		return
	}
	m.forget(d)
	for l := range d.open {
		for h := range l.holds {
			h.fail(cause)
		}
		m.lose(l, cause)
	}
}

// putEntry puts an entry for a lock that has none, in the background. m.mu is held.
func (m *Manager) putEntry(l *lock) {
	if l.putting || l.releasing || m.closed {
		return
	}
	l.putting = true
	m.wg.Go(func() {
		for r := (retry.Retrier{}); ; {
			err := m.tryEntry(l)
			var left *LeftoverError
			switch {
			case err == nil:
				return
			case errors.As(err, &left):
				select {
				case <-left.Gone:
				case <-m.ctx.Done():
					return
				}
			}
			select {
			case <-time.After(r.Delay()):
			case <-l.sess.renewal.Lost():
				return
			case <-m.ctx.Done():
				return
			}
		}
	})
}

// tryEntry asks once for the entry of l. An error means that there is none yet.
func (m *Manager) tryEntry(l *lock) error {
	ctx, cancel := context.WithCancel(m.ctx)
	defer cancel()
	m.mu.Lock()
	if !l.stands() {
		m.mu.Unlock()
		return nil // it is lost
	}
	h := l.holder
	h.Fencing = l.fencing
	if l.tried {
		h.AcquisitionID = NewAcquisitionID()
	}
	l.tried = true
	over := new(overtaken)
	m.early[h.AcquisitionID] = over
	key := l.grant.Key
	m.mu.Unlock()
	lost := false
	grants, err := l.sess.backend.Acquire(ctx, AcquireRequest{Keys: []Key{key}, Holder: h, Wait: Retry, Waits: func() {
		lost = true // nobody can have an entry there, unless somebody has deleted ours
		cancel()
	}})
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.early, h.AcquisitionID)
	switch {
	case lost:
		if d := l.below; d.stands() {
			m.loseDelegation(d, errDeleted)
		}
		return nil
	case err != nil:
		return err
	case !l.stands():
		m.wg.Go(func() { m.release(&lock{grant: grants[0], holder: h, sess: l.sess}) })
		return nil
	}
	d := l.below
	d.saw(grants[0].Token)
	l.grant, l.holder = grants[0], h
	l.below, l.putting = nil, false
	if l.left {
		m.giveBack(l)
	}
	for _, b := range over.breaks {
		m.giveUpFor(b)
	}
	delete(d.open, l)
	m.deleteEmpty(d)
	return nil
}
