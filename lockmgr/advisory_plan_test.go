package lockmgr

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/lockfs/lockfs/internal/longtest"
	"github.com/lockfs/lockfs/lockmgr/advisory"
)

// A plan decides as a plain one does that compares every request with every lock.
func TestAdvisoryPlanAgainstAPlainOne(t *testing.T) {
	var seen planned
	for seed := range longtest.Seeds(t, 3000, 100000) {
		seen.compare(t, fmt.Sprint("seed ", seed), randomTable(rand.New(rand.NewPCG(seed, 11))))
	}
	seen.check(t)
}

// So does each plan of a table that goes on to change. What earlier plans have found out about crowds is
// still so, or is forgotten.
func TestAdvisoryPlansOfATable(t *testing.T) {
	var seen planned
	for seed := range longtest.Seeds(t, 500, 20000) {
		random := rand.New(rand.NewPCG(seed, 13))
		tab := randomTable(random)
		tab.requests.most = 1 + random.IntN(4)
		if random.IntN(2) == 0 {
			tab.local, tab.held, tab.line = true, nil, nil
			tab.place(nil)
			clear(tab.rows)
		}
		for step := range 40 {
			tab.changeAtRandom(random, step)
			p := seen.compare(t, fmt.Sprintf("seed %d, step %d", seed, step), tab)
			for _, c := range tab.requests.crowds {
				if c.settled && len(c.list) > 1 {
					seen.settled++
				}
			}
			if tab.local || random.IntN(4) > 0 {
				tab.carryOut(p, int64(100+2*step))
			}
		}
	}
	seen.check(t)
	if seen.settled == 0 {
		t.Error("no crowd has settled: the test tries nothing")
	}
}

// changeAtRandom does to a table what happens between two plans.
func (t *AdvisoryTable) changeAtRandom(random *rand.Rand, step int) {
	switch random.IntN(8) {
	case 0, 1, 2:
		for i := range 1 + random.IntN(3) {
			r := &advisoryRequest{lock: randomLock(random, "here", random.IntN(3)), waits: random.IntN(4) > 0, id: fmt.Sprint(step, "-", i), given: make(chan error, 1)}
			t.requests.add(r)
			t.named[r.id] = r
		}
	case 3:
		for r := range t.requests.all() {
			if random.IntN(4) == 0 && !r.over {
				t.giveUp(r)
			}
		}
	case 4, 5:
		if all := t.mine.All(); len(all) > 0 {
			l := all[random.IntN(len(all))]
			t.change(func() { t.mine.Clear(l.Owner, l.Start+random.Uint64N(2), l.End) }, l.Owner)
		}
	case 6: // another table
		o := t.a.table(Key{Path: "other"}, t.local)
		l := randomLock(random, "here", 2)
		l.Start, l.End = l.Owner.ID, l.Owner.ID
		o.change(func() { o.mine.Set(l) }, l.Owner)
		if random.IntN(2) == 0 {
			o.change(func() { o.mine.Clear(l.Owner, 0, advisory.EOF) }, l.Owner)
		}
	case 7: // another mount
		if !t.local {
			l := randomLock(random, "there", random.IntN(3))
			if _, mine := t.mine.Conflict(l); mine || random.IntN(2) == 0 {
				t.held = nil
			} else {
				t.held = append(t.held, l)
			}
		}
	}
}

// carryOut makes a plan what is so, as a service does whose next ticket that is.
func (t *AdvisoryTable) carryOut(p advisoryPlan, ticket int64) {
	t.grant(p)
	for _, r := range p.refused {
		t.answer(r, ErrContended)
	}
	for _, name := range p.put.Delete {
		delete(t.rows, name)
		t.line = slices.DeleteFunc(t.line, func(w advisory.Waiter) bool { return w.ID == name })
	}
	for _, r := range p.line {
		t.rows[r.id] = ticket
		t.line = append(t.line, advisory.Waiter{ID: r.id, Lock: r.lock, Ticket: ticket})
	}
	tickets := make(map[*advisoryRequest]int64)
	for name, ticket := range t.rows {
		if r := t.named[name]; r != nil {
			tickets[r] = ticket
		}
	}
	if !t.local {
		t.place(tickets)
	}
}

// planned counts what plans have decided.
type planned struct{ granted, refused, stood, settled int }

func (seen *planned) check(t *testing.T) {
	if seen.granted == 0 || seen.refused == 0 || seen.stood == 0 {
		t.Errorf("%+v: the test tries nothing", seen)
	}
}

// compare makes a plan, which is to be as a plain one.
func (seen *planned) compare(t *testing.T, what string, tab *AdvisoryTable) advisoryPlan {
	t.Helper()
	want := plainPlan(tab)
	requests := maps.Clone(tab.named)
	p, look := tab.plan()
	got := make(map[string]string)
	for _, r := range tab.named {
		got[r.id] = "waits"
	}
	for _, r := range p.line {
		got[r.id] = "stands"
		seen.stood++
	}
	for _, r := range p.grants {
		got[r.id] = "granted"
		seen.granted++
	}
	for _, r := range p.refused {
		got[r.id] = "refused"
	}
	for id := range want {
		switch {
		case got[id] != "":
		case tab.local && errors.Is(<-requests[id].given, ErrDeadlock):
			got[id] = "waits" // before that was found out
		default:
			got[id] = "refused"
			seen.refused++
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || look {
		t.Fatalf("%s: %v, look %v; want %v", what, got, look, want)
	}
	return p
}

// plainPlan returns what becomes of each request. It changes nothing.
func plainPlan(t *AdvisoryTable) map[string]string {
	mine := t.mine
	requests := slices.DeleteFunc(slices.Collect(t.requests.all()), func(r *advisoryRequest) bool { return r.over })
	slices.SortStableFunc(requests, func(x, y *advisoryRequest) int { return cmp.Compare(x.order(), y.order()) })
	answered, dropped := make(map[string]string), make(map[string]bool)
again:
	next := mine
	has := maps.Clone(answered)
	var waiting, free, stand []*advisoryRequest
	blocked := func(l advisory.Lock) bool {
		return slices.ContainsFunc(slices.Concat(next.All(), t.held), l.Conflicts)
	}
	for _, r := range requests {
		if answered[r.id] != "" {
			continue
		}
		held := blocked(r.lock)
		ahead := slices.ContainsFunc(t.line, func(w advisory.Waiter) bool {
			return w.Ticket < r.order() && w.Lock.Conflicts(r.lock) && !blocked(w.Lock)
		})
		ahead = ahead || slices.ContainsFunc(free, func(w *advisoryRequest) bool { return w.lock.Conflicts(r.lock) })
		if !held && !ahead {
			next.Set(r.lock)
			has[r.id] = "granted"
			continue
		}
		if o := r.lock.Owner; o.Kind == advisory.Flock && mine.Any(o, 0, advisory.EOF) {
			mine.Clear(o, 0, advisory.EOF)
			dropped[r.id] = true
			goto again
		}
		if !r.waits {
			has[r.id] = "refused"
			if !dropped[r.id] {
				answered[r.id] = "refused" // at once, whoever drops what after it
			}
			continue
		}
		has[r.id] = "waits"
		waiting = append(waiting, r)
		if !held {
			free = append(free, r)
		}
		if r.ticket != 0 {
			stand = append(stand, r)
		}
	}
	if t.local {
		return has
	}
	cyclic := false
	for _, r := range waiting {
		o := r.lock.Owner
		switch inStand := func(s *advisoryRequest) bool { return s.lock.Conflicts(r.lock) }; {
		case r.ticket != 0:
			continue
		case o.Kind == advisory.Posix && !cyclic && (t.a.ranges[o.ID] > 0 || next.Any(o, 0, advisory.EOF)):
			cyclic = true
		case len(stand) < maxStanding && !slices.ContainsFunc(next.All(), r.lock.Conflicts) && !slices.ContainsFunc(stand, inStand):
		default:
			continue
		}
		has[r.id] = "stands"
		stand = append(stand, r)
	}
	return has
}

// randomTable is one that several mounts use.
func randomTable(random *rand.Rand) *AdvisoryTable {
	m := &Manager{}
	a := &Advisory{m: m, mount: "here", tables: make(map[Key]*AdvisoryTable), ranges: make(map[uint64]int), wanted: make(map[uint64]int)}
	t := a.table(Key{}, false)
	kinds := random.IntN(3)
	lock := func(mount string) advisory.Lock { return randomLock(random, mount, kinds) }
	var there advisory.Locks
	for range random.IntN(8) {
		l := lock([]string{"here", "there"}[random.IntN(2)])
		_, one := t.mine.Conflict(l)
		_, other := there.Conflict(l)
		switch {
		case one || other:
		case a.Mine(l.Owner):
			t.change(func() { t.mine.Set(l) }, l.Owner)
		default:
			there.Set(l)
		}
	}
	t.held = there.All()
	for i := range random.Int64N(25) {
		r := &advisoryRequest{lock: lock("here"), waits: random.IntN(4) > 0, id: fmt.Sprint(i), given: make(chan error, 1)}
		r.by = lock([]string{"here", "there"}[random.IntN(2)]).Owner
		if random.IntN(2) == 0 {
			r.met = time.Now()
		}
		if r.waits && random.IntN(4) == 0 {
			r.ticket = 1 + 2*random.Int64N(50)
			t.rows[r.id] = r.ticket
			t.line = append(t.line, advisory.Waiter{ID: r.id, Lock: r.lock, Ticket: r.ticket})
		}
		t.requests.add(r)
		t.named[r.id] = r
	}
	for i := range random.Int64N(4) {
		t.line = append(t.line, advisory.Waiter{ID: fmt.Sprint("there", i), Lock: lock("there"), Ticket: 2 * random.Int64N(50)})
	}
	t.requests.unsorted = true
	slices.SortFunc(t.line, func(x, y advisory.Waiter) int { return cmp.Compare(x.Ticket, y.Ticket) })
	return t
}

// randomLock is of flocks only if kinds is 0, and of ranges only if it is 2.
func randomLock(random *rand.Rand, mount string, kinds int) advisory.Lock {
	l := advisory.Lock{Owner: advisory.Owner{Mount: mount, ID: random.Uint64N(8)}, Exclusive: random.IntN(3) > 0}
	if kinds == 0 || kinds == 1 && random.IntN(2) == 0 {
		l.Owner.Kind, l.End = advisory.Flock, advisory.EOF
		return l
	}
	l.Start = random.Uint64N(12)
	l.End = l.Start + random.Uint64N(4)
	if random.IntN(4) == 0 {
		l.End = advisory.EOF
	}
	return l
}
