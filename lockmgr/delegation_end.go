package lockmgr

import (
	"errors"
	"slices"
	"time"

	"github.com/lockfs/lockfs/internal/retry"
)

// recalledDir gives up a directory that another mount wants something in. m.mu is held.
func (m *Manager) recalledDir(d *delegation) {
	if d.recalled || d.phase == delegationEnds {
		return
	}
	m.keeper.coolOff(d.key)
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
	m.putEntries(d, 0)
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
		m.putEntries(d, m.backend.DescribesAfter())
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
	m.cfg.Record.Delete(recordDelegation, d.record) // before the request that takes the entry away
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
	m.cfg.Record.Delete(recordDelegation, d.record)
	d.phase = delegationDeletes
	if d.lock.sess != nil {
		d.lock.sess.asking--
	}
	m.table.wake(&d.lock.waiting)
}

// loseDelegation follows the loss of a delegation's entry, while its session lives: what is open
// by it alone is lost. m.mu is held.
func (m *Manager) loseDelegation(d *delegation, cause error) {
	if !d.stands() {
		return
	}
	m.forget(d)
	for l := range d.open {
		if l.releasing {
			m.void(l)
		} else {
			m.loseAlone(l, cause)
		}
	}
}

// putEntries puts entries for locks of d that have none, in the background: for those that have
// been locked for an age. m.mu is held.
func (m *Manager) putEntries(d *delegation, age time.Duration) {
	if m.closed {
		return
	}
	var locks []*lock
	for l := range d.open {
		if !l.putting && time.Since(l.since) >= age {
			l.putting = true
			locks = append(locks, l)
		}
	}
	for some := range slices.Chunk(locks, d.lock.sess.backend.(Delegator).MostBelow()) {
		m.wg.Go(func() { m.putTogether(d, some) })
	}
}

// putTogether tries until the locks have entries, or are lost.
func (m *Manager) putTogether(d *delegation, locks []*lock) {
	for r := (retry.Retrier{}); ; {
		err := m.tryEntries(d, locks, r.Failures() > 0 || d.adopted)
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
		case <-d.lock.sess.renewal.Lost():
			return
		case <-m.ctx.Done():
			return
		}
	}
}

// tryEntries asks once for the entries of locks. An error means that there are none yet.
func (m *Manager) tryEntries(d *delegation, all []*lock, again bool) error {
	var locks []*lock
	var entries []Entry
	m.mu.Lock()
	for _, l := range all {
		if !l.stands() {
			continue // it is lost
		}
		h := l.holder
		if !l.unsettled { // else the entry's own token is told
			h.Fencing = l.fencing
		}
		if again {
			h.AcquisitionID = NewAcquisitionID()
		}
		if m.early[h.AcquisitionID] == nil { // else another of its request's locks is asked for
			m.early[h.AcquisitionID] = new(overtaken)
		}
		m.early[h.AcquisitionID].asked++
		locks = append(locks, l)
		entries = append(entries, Entry{Key: l.grant.Key, Holder: h})
	}
	above := d.lock.grant
	m.mu.Unlock()
	if len(locks) == 0 {
		return nil
	}
	token, err := d.lock.sess.backend.(Delegator).PutBelow(m.ctx, above, entries)
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, l := range locks {
		id := entries[i].Holder.AcquisitionID
		early := m.early[id]
		if early.asked--; early.asked == 0 {
			delete(m.early, id)
		}
		if err == nil {
			entries[i].Token = token
			m.hasEntry(l, entries[i], early.breaks)
		}
	}
	switch {
	case errors.Is(err, ErrNotHeld): // somebody has deleted it
		m.loseDelegation(d, errDeleted)
		return nil
	case err != nil:
		return err
	}
	m.deleteEmpty(d)
	return nil
}

// hasEntry notes that l has an entry now, and what breaks were heard of it. m.mu is held.
func (m *Manager) hasEntry(l *lock, e Entry, breaks []Break) {
	if !l.stands() {
		m.wg.Go(func() { m.release(&lock{grant: e.Grant(), holder: e.Holder, sess: l.sess}) })
		return
	}
	l.below.saw(e.Token)
	delete(l.below.open, l)
	l.grant, l.holder = e.Grant(), e.Holder
	had := l.fencing
	l.fencing, l.told, l.unsettled = e.Holder.Fencing, e.Holder.Fencing != 0 && l.looked, l.changes
	l.below, l.putting = nil, false
	if had > l.token() { // a rename has raised it meanwhile
		m.setToken(l, had)
	}
	l.rewrite()
	if l.left {
		m.giveBack(l)
	}
	for _, b := range breaks {
		m.giveUpFor(b)
	}
}
