package lockmgr

import (
	"slices"
	"time"

	"github.com/lockfs/lockfs/lockmgr/advisory"
)

// A table that one mount alone uses is private: the mount's row says so, and conflicts with every
// lock. The mount then locks and unlocks without the service. Any row of another mount asks it to
// publish its locks, so a request that only tries stands in line as well. The model private has the
// rules.
//
// Until the locks are published, what was written under a lock need not be on the volume after the
// unlock, and nobody else has changed the file.

// advisoryPrivate is a mount's knowledge of a private table. All of it is GUARDED_BY(Advisory.mu).
type advisoryPrivate struct {
	keep    time.Duration // how long it stays private without locks; 0: it is never private
	row     bool          // the mount's row says private
	gen     uint64        // see AdvisoryTable.Private
	ending  bool          // the list is published, or is about to be
	others  bool          // other mounts had rows when the table was read
	heard   time.Time     // when the last read that was answered was sent
	since   time.Time     // when it became private
	used    time.Time     // when a lock was last asked for, or given up
	changed bool          // the mount's locks may differ from those that its row lists
	listed  bool          // its row lists something

	idle      bool // it was private without locks for longer than keep
	describes bool // the next put lists what the mount has, for people
}

// advisoryHears bounds the time since the last read of a table in which a lock is granted without
// the service: a mount whose watch hangs would keep others waiting for ever.
const advisoryHears = 2 * advisoryLook

// Private returns the number of the table's private period on this mount, 0 if it is not private.
// While the number is the same, no other mount has had a lock there.
func (t *AdvisoryTable) Private() uint64 {
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	return t.private.gen
}

// The functions below need mu.

// publishes reports whether the next put publishes the mount's locks in a private table. From then
// until the table is private again, each unlock brings to the volume what was written.
func (t *AdvisoryTable) publishes() bool {
	p := &t.private
	if p.row && !p.ending && p.others {
		t.a.recalledTable(t)
	}
	p.ending = p.row && (p.ending || p.others || p.idle && t.idle())
	p.idle = false
	if p.ending {
		p.gen = 0
	}
	return p.ending
}

// deaf reports whether the table is private and was not read for so long that the mount may have
// missed another mount's row.
func (t *AdvisoryTable) deaf() bool {
	return t.private.row && time.Since(t.private.heard) > advisoryHears
}

// decides does all that there is to do without a worker, and reports whether it could: it can if
// the table is local, or private and wanted by no other mount.
func (t *AdvisoryTable) decides() bool {
	p := &t.private
	switch {
	case t.a.refused || t.unused():
		return false
	case t.local:
	case !p.row || p.ending || p.idle || p.describes || t.doubted || t.vacates || len(t.broken) > 0 || !t.sess.renewal.Valid():
		return false
	}
	for {
		asked := t.asks
		plan, look := t.plan()
		if look || plan.commit {
			return false
		}
		t.grant(plan)
		for _, r := range plan.refused {
			t.answer(r, ErrContended)
		}
		if t.asks == asked {
			return true
		}
	}
}

// unused reports whether the table can be forgotten.
func (t *AdvisoryTable) unused() bool {
	return t.users == 0 && t.mine.Empty() && len(t.requests) == 0 && len(t.rows) == 0
}

func (t *AdvisoryTable) idle() bool {
	return t.private.row && t.mine.Empty() && len(t.requests) == 0
}

// becomesPrivate reports whether a plan that grants can make the table private. Its put fails if
// anybody has put a row since the table was read, without rows of others.
func (t *AdvisoryTable) becomesPrivate(p *advisoryPlan) bool {
	if t.private.keep == 0 || t.private.row || t.private.others || len(p.grants) == 0 || len(p.line) > 0 || t.a.cools(t.key) {
		return false
	}
	if slices.ContainsFunc(t.requests, func(r *advisoryRequest) bool { return r.ticket != 0 && !slices.Contains(p.grants, r) }) {
		return false
	}
	t.private.since = time.Now()
	return true
}

// isPrivate notes what the mount's row says.
func (t *AdvisoryTable) isPrivate(private bool) {
	a, p := t.a, &t.private
	if private == p.row {
		return
	}
	for _, r := range t.requests {
		r.ticket = 0 // it was a place in the other line: the service's, or the mount's own
	}
	p.row, p.ending, p.gen = private, false, 0
	if private {
		a.gens++
		p.gen = a.gens
		select {
		case a.tended <- struct{}{}:
		default:
		}
	}
}

// patient reports whether a try still waits for another mount to publish its locks. If that mount
// does not answer, it counts as the lock's holder.
func (t *AdvisoryTable) patient(r *advisoryRequest) bool {
	left := time.Until(r.expires)
	if left > 0 && r.late == nil {
		r.late = time.AfterFunc(left, func() {
			t.a.mu.Lock()
			defer t.a.mu.Unlock()
			t.ask()
		})
	}
	return left > 0
}

// tangled reports whether a request that waits in a private table may be part of a cycle of waits
// through other mounts. Such a cycle has at least two waits of this mount, and one of them is in a
// table that others use.
func (t *AdvisoryTable) tangled(waiting []*advisoryRequest) bool {
	for _, o := range t.a.tables {
		if !o.local && !o.private.row && slices.ContainsFunc(o.requests, t.a.cyclic) {
			return slices.ContainsFunc(waiting, t.a.cyclic)
		}
	}
	return false
}

// publishTangled publishes the private tables that have a waiter which may be part of a cycle.
func (a *Advisory) publishTangled() {
	for _, t := range a.tables {
		if t.private.row && !t.private.ending && slices.ContainsFunc(t.requests, a.cyclic) {
			t.private.ending = true
			t.ask()
		}
	}
}

// cyclic reports whether others may wait for the owner of a request that waits.
func (a *Advisory) cyclic(r *advisoryRequest) bool {
	return r.waits && !r.over && r.lock.Owner.Kind == advisory.Posix && a.ranges[r.lock.Owner.ID] > 0
}

// A table that was recalled is not private for a while, as a lock is not kept.

func (a *Advisory) recalledTable(t *AdvisoryTable) {
	a.coolOff(t.key)
	a.m.observe(LockRecalled{Idle: t.mine.Empty()})
}

func (a *Advisory) coolOff(key Key) {
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	a.m.keeper.coolOff(key)
}

func (a *Advisory) cools(key Key) bool {
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	p := a.m.keeper.pasts[key]
	return p != nil && time.Now().Before(p.cool)
}

// tend gives idle tables back, lists the locks of private tables in the service for people, and
// reads all tables every advisoryLook.
func (a *Advisory) tend() {
	looked := time.Now()
	tick := time.NewTimer(advisoryLook)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-a.tended:
		case <-a.m.ctx.Done():
			return
		}
		private := a.tendPrivate()
		left := advisoryLook - time.Since(looked)
		if left <= 0 {
			a.look()
			looked, left = time.Now(), advisoryLook
		}
		if private {
			left = min(left, keeperTick)
		}
		tick.Reset(left)
	}
}

// tendPrivate reports whether there are private tables.
func (a *Advisory) tendPrivate() (found bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var idle []*AdvisoryTable
	for _, t := range a.tables {
		p := &t.private
		if !p.row {
			continue
		}
		found = true
		unused := time.Since(p.used)
		switch {
		case t.working:
		case t.idle() && unused >= p.keep-keeperTick:
			p.idle = true
			t.ask()
		case p.changed && unused >= time.Second && (p.listed || !t.mine.Empty()):
			p.changed, p.describes = false, true
			t.ask()
		case t.idle():
			idle = append(idle, t)
		}
	}
	if over := len(idle) - maxIdle; over > 0 {
		slices.SortFunc(idle, func(x, y *AdvisoryTable) int { return x.private.used.Compare(y.private.used) })
		for _, t := range idle[:over] {
			t.private.idle = true
			t.ask()
		}
	}
	return found
}
