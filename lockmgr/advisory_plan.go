package lockmgr

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/lockfs/lockfs/lockmgr/advisory"
)

// advisoryPlan is what the worker does next for a table.
type advisoryPlan struct {
	next   advisory.Locks     // what the mount has afterwards
	grants []*advisoryRequest // requests that get their locks
	// refused are answered by the first plan that needs no commit.
	refused []*advisoryRequest
	line    []*advisoryRequest // requests that the plan puts in line
	put     AdvisoryPut
	value   []byte // of the mount's row afterwards
	private bool   // it says that the table is private
	commit  bool   // put changes something
}

// plan decides, from what is known of the table, which requests get a lock, are refused, or stand
// in line. look: the table must be read again before that can be decided. mu is held.
func (t *AdvisoryTable) plan() (p advisoryPlan, look bool) {
	if t.sent != nil || t.recovering {
		return p, false
	}
	if t.local { // there is nothing to read
		t.stale, t.doubted = false, false
	}
	if t.vacates = t.vacates && t.value != nil; t.vacates {
		p.put = AdvisoryPut{Table: t.key, Since: AnyRevision, Delete: []string{t.row}}
		p.commit = true
		return p, false
	}
	if t.forgetOver(); len(t.requests) == 0 {
		t.planned = nil
	}
	if inOrder := func(x, y *advisoryRequest) int { return cmp.Compare(x.order(), y.order()) }; !slices.IsSortedFunc(t.requests, inOrder) {
		slices.SortStableFunc(t.requests, inOrder)
	}
	p.next = t.mine
	if t.publishes() { // nothing is granted meanwhile
		t.planRows(&p)
		return p, false
	}
	v := advisory.View{Held: t.held, Mine: p.next, Line: t.line}
	var free []*advisoryRequest
	t.planned = append(t.planned[:0], t.requests...)
	waiting := t.planned[:0]
	for _, r := range t.planned {
		if r.probes {
			if t.probe(&p, &v, r) {
				look = true
			}
			continue
		}
		by, held := v.Blocker(r.lock, r.by)
		blocked := held
		elsewhere := blocked && !t.a.Mine(by.Owner)
		if blocked {
			r.by = by.Owner
		} else {
			_, ahead := v.Ahead(r.lock, r.order())
			blocked = ahead || t.closed
			elsewhere = blocked
		}
		blocked = blocked || slices.ContainsFunc(free, func(w *advisoryRequest) bool { return w.lock.Conflicts(r.lock) })
		switch {
		case !blocked && r.parked: // its turn has come, but it has no caller to tell; later requests do not pass it
			free, waiting = append(free, r), append(waiting, r)
		case !blocked && v.Mine.Len() >= maxAdvisory && !v.Mine.Has(r.lock):
			t.answer(r, ErrTooMany)
		case !blocked && t.deaf():
			look = true
		case !blocked:
			v.Grant(r.lock)
			p.grants = append(p.grants, r)
		case elsewhere && t.stale:
			look = true
		default:
			t.meets(r)
			// If another owner has an exclusive flock, this owner can have none to drop.
			if o := r.lock.Owner; o.Kind == advisory.Flock && !(held && by.Exclusive) && t.has(o) {
				t.clear(o, 0, advisory.EOF)
				r.dropped = true
				return t.plan()
			}
			switch {
			case !r.waits && !held && t.closed && t.patient(r): // it may be free
			case !r.waits && (r.dropped || held && p.grants != nil && !t.stands(r)):
				// It is refused after the commit: others must find its former flock gone by then,
				// or the lock in its way is only granted by this plan, and may never be.
				p.refused = append(p.refused, r)
				continue
			case !r.waits:
				t.answer(r, ErrContended)
				continue
			}
			waiting = append(waiting, r)
			if !held {
				free = append(free, r)
			}
		}
	}
	p.next = v.Mine
	switch {
	case look:
		return p, true
	case t.private.row && t.tangled(waiting):
		t.private.ending = true
		return t.plan()
	case t.local || t.private.row:
		t.planLocal(waiting)
	default:
		t.planLine(&p, &v, waiting)
	}
	if !t.local {
		t.planRows(&p)
	}
	return p, false
}

// stands reports whether somebody has a lock, not only in this plan, that conflicts with what a
// request asks for. mu is held.
func (t *AdvisoryTable) stands(r *advisoryRequest) bool {
	now := advisory.View{Held: t.held, Mine: t.mine}
	_, held := now.Blocker(r.lock, r.by)
	return held
}

// forgetOver removes the requests that nobody waits for any more. mu is held.
func (t *AdvisoryTable) forgetOver() {
	t.requests = slices.DeleteFunc(t.requests, func(r *advisoryRequest) bool {
		if r.over {
			t.ends(r)
		}
		return r.over
	})
}

// knows answers a request that only asks if another owner of this mount is in the way, and reports whether
// it has. mu is held.
func (t *AdvisoryTable) knows(r *advisoryRequest) bool {
	by, ok := t.mine.Conflict(r.lock)
	if ok {
		r.found = &by
		t.answer(r, nil)
	}
	return ok
}

// probe answers a request that only asks, if that can be decided. look: the table must be read
// before. mu is held.
func (t *AdvisoryTable) probe(p *advisoryPlan, v *advisory.View, r *advisoryRequest) (look bool) {
	if t.knows(r) {
		return false
	}
	if t.stale && !t.private.row || t.deaf() {
		return true
	}
	i := slices.IndexFunc(v.Held, r.lock.Conflicts)
	switch {
	case i >= 0:
		by := v.Held[i]
		r.found = &by
	case t.closed && t.patient(r):
		// One row asks the other mount to publish, however many requests wait for that.
		if len(p.line) == 0 && !slices.ContainsFunc(t.requests, func(o *advisoryRequest) bool { return o.ticket != 0 }) {
			p.line = append(p.line, r)
		}
		return false
	case t.closed:
		r.found = &advisory.Lock{End: advisory.EOF, Exclusive: true}
	}
	t.answer(r, nil)
	return false
}

// planLine decides which waiting requests stand in line in the service: those with nobody on this
// mount in their way, and those whose owner others may wait for. mu is held.
func (t *AdvisoryTable) planLine(p *advisoryPlan, v *advisory.View, waiting []*advisoryRequest) {
	var stand []*advisoryRequest
	for _, r := range waiting {
		if r.ticket != 0 {
			stand = append(stand, r)
		}
	}
	cyclic := false // one at a time, so that each has a ticket of its own
	for _, r := range waiting {
		o := r.lock.Owner
		switch {
		case r.ticket != 0:
		case r.parked: // later requests do not overtake it
			stand = append(stand, r)
		case o.Kind == advisory.Posix && !cyclic && r.waits && (t.a.ranges[o.ID] > 0 || len(p.grants) > 0 && p.next.Any(o, 0, advisory.EOF)):
			cyclic = true
			t.a.publishTangled()
			stand, p.line = append(stand, r), append(p.line, r)
		case len(stand) < maxStanding && !slices.ContainsFunc(stand, func(s *advisoryRequest) bool { return s.lock.Conflicts(r.lock) }):
			if _, local := v.Here(r.lock, r.by); !local {
				stand, p.line = append(stand, r), append(p.line, r)
			}
		}
	}
}

// planRows makes the put that the plan needs. mu is held.
func (t *AdvisoryTable) planRows(p *advisoryPlan) {
	p.put = AdvisoryPut{Table: t.key, Since: AnyRevision, Put: make(map[string][]byte)}
	if len(p.grants)+len(p.line) > 0 {
		p.put.Since = t.rev
	}
	for name := range t.rows {
		if len(p.put.Delete) == maxDeleted {
			break // the next plan has the others
		}
		if r := t.named[name]; name != t.row && (r == nil || slices.Contains(p.grants, r)) {
			p.put.Delete = append(p.put.Delete, name)
		}
	}
	for _, r := range p.line {
		var locks []advisory.Lock
		if !r.probes { // which is in nobody's way
			locks = append(locks, r.lock)
		}
		r.stood.Store(true)
		p.put.Put[r.id] = t.encode(advisoryValue{Waits: true, Tries: !r.waits}, locks)
	}
	p.private = t.private.row && !t.private.ending || t.becomesPrivate(p)
	switch {
	case p.private && t.private.row && !t.private.describes:
		p.value = t.value
	case p.private && !t.private.row:
		p.value = t.encode(advisoryValue{Private: true, Since: t.private.since}, nil)
		t.private.listed = false
	case p.private:
		p.value = t.encode(advisoryValue{Private: true, Since: t.private.since}, shown(p.next))
		t.private.listed = !p.next.Empty()
	case !p.next.Empty():
		p.value = t.encode(advisoryValue{}, shown(p.next))
	}
	t.private.describes = false
	if !bytes.Equal(p.value, t.value) {
		if p.value == nil {
			p.put.Delete = append(p.put.Delete, t.row)
		} else {
			p.put.Put[t.row] = p.value // by put
		}
	}
	p.commit = len(p.put.Put)+len(p.put.Delete) > 0
}

// shown returns the locks that a mount's row names. One flock stands for all: all are shared, or
// there is only one. So one more reader on the mount costs no commit.
func shown(locks advisory.Locks) (list []advisory.Lock) {
	var first *advisory.Lock
	for _, l := range locks.All() {
		if l.Owner.Kind == advisory.Posix {
			list = append(list, l)
			continue
		}
		if first == nil || l.Since.Before(first.Since) || l.Since.Equal(first.Since) && l.Owner.ID < first.Owner.ID {
			first = &l
		}
	}
	if first != nil {
		list = append(list, *first)
	}
	return list
}

// encode returns the value of a row.
func (t *AdvisoryTable) encode(v advisoryValue, locks []advisory.Lock) []byte {
	v.Mount, v.Node = t.a.mount, t.a.m.cfg.Session.Node
	if t.sess != nil {
		v.Session = t.sess.backend.ID()
	}
	for _, l := range locks {
		v.add(l)
	}
	value, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("lockmgr: a row of advisory locks: %v", err)) // no such types
	}
	return value
}
