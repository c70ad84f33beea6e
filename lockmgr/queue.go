package lockmgr

import "slices"

// place is a request's place in the line for one slot. A request waits only for the nearest thing
// in its way, so a change wakes only the requests that it concerns. All of it is
// GUARDED_BY(Manager.mu).
type place struct {
	*request
	slot           *slot
	prev, next     *place // in order of arrival
	older, younger *place // of the same owner, in order of arrival
	wall           *place // see exclusive
	gone           bool   // left the line
	behind         crowd  // requests that wait for this one
	doubts         seat   // its seat in slot.doubtful, until SelfWait was called
}

// slotOf returns the slot of k, which must get a lock or a request at once. m.mu is held.
func (t *table) slotOf(k Key) *slot {
	s := t.slots[k]
	if s == nil {
		s = &slot{key: k}
		t.slots[k] = s
		if k.Kind == Tree {
			t.trees++
		}
		if k.Kind != Inode {
			s.dir = t.dirOf(k.Path)
			s.dir.slots[s] = struct{}{}
		}
	}
	return s
}

func (t *table) enter(r *request, k Key) {
	s := t.slotOf(k)
	p := &place{request: r, slot: s, prev: s.last, doubts: seat{r: r}}
	r.places = append(r.places, p)
	s.last = p
	if p.prev == nil {
		s.first = p
		return
	}
	p.prev.next = p
	if p.wall = p.prev; p.prev.Mode != Exclusive {
		p.wall = p.prev.exclusive()
	}
	if s.youngest == nil { // most slots have only one request
		s.youngest = map[Owner]*place{p.prev.Owner: p.prev}
	}
	if p.older = s.youngest[r.Owner]; p.older != nil {
		p.older.younger = p
	}
	s.youngest[r.Owner] = p
}

func (t *table) leave(r *request) {
	r.waits.leave()
	r.noPassage()
	for _, p := range r.places {
		p.doubts.leave()
		s := p.slot
		if p.prev != nil {
			p.prev.next = p.next
		} else {
			s.first = p.next
		}
		if p.next != nil {
			p.next.prev = p.prev
		} else {
			s.last = p.prev
		}
		if p.older != nil {
			p.older.younger = p.younger
		}
		switch {
		case p.younger != nil:
			p.younger.older = p.older
		case p.older != nil:
			s.youngest[r.Owner] = p.older
		default:
			delete(s.youngest, r.Owner)
		}
		if s.first == nil {
			s.youngest = nil
		}
		p.wall, p.gone = p.exclusive(), true
		t.wake(&p.behind)
		t.tidy(s)
	}
}

// exclusive returns the nearest Exclusive request before p.
func (p *place) exclusive() *place {
	for p.wall != nil && p.wall.gone {
		p.wall = p.wall.wall
	}
	return p.wall
}

// before returns the nearest request that p must let pass, or nil.
func (p *place) before() *place {
	if p.Mode == Shared {
		for q := p.exclusive(); q != nil; q = q.exclusive() {
			if !p.passes(q) {
				return q
			}
		}
		return p.older // p's owner has asked before: p can share that lock
	}
	for q := p.prev; q != nil; q = q.prev {
		if !p.passes(q) {
			return q
		}
	}
	return nil
}

// passes reports whether p goes before another owner's earlier request.
func (p *place) passes(q *place) bool {
	if q.Owner == p.Owner {
		return false
	}
	p.hold.m.table.steps++
	// p passes two kinds of earlier requests. A Shared request for a key that p upgrades may have
	// to stand in line behind another mount's request, which waits for p's owner. A request that
	// also waits for another key of p's owner would wait for p as well.
	return q.Mode == Shared && p.upgradesFor(q.request) || q.waitsFor(p)
}

// upgradesFor reports whether r upgrades a key that q wants too.
func (r *request) upgradesFor(q *request) bool {
	return slices.ContainsFunc(q.places, func(at *place) bool {
		return slices.ContainsFunc(r.places, func(p *place) bool { return p.slot == at.slot }) && r.upgrades(at.slot)
	})
}

// waitsFor reports whether q also wants another key, which p's owner has.
func (q *place) waitsFor(p *place) bool {
	return slices.ContainsFunc(q.places, func(at *place) bool {
		return at.slot != p.slot && slices.ContainsFunc(at.slot.of(p.Owner), func(l *lock) bool {
			return l.owner == p.Owner && !l.releasing && l.grant.Mode.Conflicts(q.Mode)
		})
	})
}

// granted wakes the requests that a new lock of p's slot concerns: those of the same owner may
// share it, and others may have to ask SelfWait. m.mu is held.
func (t *table) granted(p *place) {
	for q := p.older; q != nil; q = q.older {
		t.steps++
		q.wake()
	}
	for q := p.younger; q != nil; q = q.younger {
		t.steps++
		q.wake()
	}
	if c := p.slot.passages[p.Owner]; c != nil {
		t.wake(c)
		delete(p.slot.passages, p.Owner)
	}
	t.wake(&p.slot.doubtful[Exclusive])
	if p.Mode == Exclusive {
		t.wake(&p.slot.doubtful[Shared])
	}
}

// passage is where a request is woken when its owner gets a key that the request ahead waits for: it may
// pass that one then, see waitsFor.
type passage struct {
	slot *slot
	seat seat
}

// waitBehind makes r wait until ahead has left the line, or r may pass it. m.mu is held.
func (r *request) waitBehind(ahead *place) {
	r.noPassage()
	ahead.behind.join(&r.waits)
	for _, at := range ahead.places {
		if at == ahead {
			continue
		}
		if at.slot.passages == nil {
			at.slot.passages = make(map[Owner]*crowd)
		}
		c := at.slot.passages[r.Owner]
		if c == nil {
			c = new(crowd)
			at.slot.passages[r.Owner] = c
		}
		p := &passage{at.slot, seat{r: r}}
		c.join(&p.seat)
		r.passages = append(r.passages, p)
	}
}

// noPassage takes r off its passages. m.mu is held.
func (r *request) noPassage() {
	for _, p := range r.passages {
		p.seat.leave()
		if c := p.slot.passages[r.Owner]; c != nil && len(*c) == 0 {
			delete(p.slot.passages, r.Owner)
		}
	}
	r.passages = nil
}

// undisputed reports whether nothing on this mount that conflicts with a key of r's is locked, or
// asked for by another request: the service may be granting it now. m.mu is held.
func (t *table) undisputed(own *slot, r *request) bool {
	others := func(s *slot) bool {
		return s != nil && (len(s.locks) > 0 || s.first.request != r || s.first != s.last)
	}
	if len(own.locks) > 0 {
		return false
	}
	if t.trees > 0 {
		for path := own.key.Path; path != ""; path = parent(path) {
			if others(t.slots[Key{Tree, path}]) {
				return false
			}
		}
	}
	if own.key.Kind == File {
		return true
	}
	d := t.dirs[own.key.Path]
	return !others(t.slots[Key{File, own.key.Path}]) &&
		(d == nil || d.below(func(s *slot) bool { return !others(s) }))
}

func (t *table) wakeAll() {
	for _, s := range t.slots {
		for p := s.first; p != nil; p = p.next {
			p.wake()
		}
	}
}

// seat is a request's place in a crowd, one at most.
type seat struct {
	r  *request
	in *crowd
	at int
}

// crowd is the requests that one event wakes. Each checks again what is in its way.
type crowd []*seat

func (c *crowd) join(s *seat) {
	s.leave()
	s.in, s.at = c, len(*c)
	*c = append(*c, s)
}

func (s *seat) leave() {
	if s.in == nil {
		return
	}
	c := *s.in
	last := c[len(c)-1]
	c[s.at], last.at = last, s.at
	c[len(c)-1] = nil
	*s.in, s.in = c[:len(c)-1], nil
}

func (t *table) wake(c *crowd) {
	for _, s := range *c {
		t.steps++
		s.in = nil
		s.r.wake()
	}
	*c = nil
}
