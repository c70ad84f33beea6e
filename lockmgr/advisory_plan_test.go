package lockmgr

import (
	"cmp"
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
	granted, refused, stood := 0, 0, 0
	for seed := range longtest.Seeds(t, 1000, 100000) {
		tab := randomTable(rand.New(rand.NewPCG(seed, 11)))
		want := plainPlan(tab)
		p, look := tab.plan()
		got := make(map[string]string)
		for _, r := range tab.named {
			got[r.id] = "waits"
		}
		for _, r := range p.line {
			got[r.id] = "stands"
			stood++
		}
		for _, r := range p.grants {
			got[r.id] = "granted"
			granted++
		}
		for _, r := range p.refused {
			got[r.id] = "refused"
		}
		for id := range want {
			if got[id] == "" {
				got[id] = "refused"
				refused++
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) || look {
			t.Fatalf("seed %d: %v, look %v; want %v", seed, got, look, want)
		}
	}
	if granted == 0 || refused == 0 || stood == 0 {
		t.Errorf("%d granted, %d refused, %d in line: the test tries nothing", granted, refused, stood)
	}
}

// plainPlan returns what becomes of each request. It changes nothing.
func plainPlan(t *AdvisoryTable) map[string]string {
	mine := t.mine
	requests := slices.Clone(t.requests)
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
	cyclic := false
	for _, r := range waiting {
		o := r.lock.Owner
		switch inStand := func(s *advisoryRequest) bool { return s.lock.Conflicts(r.lock) }; {
		case r.ticket != 0:
			continue
		case o.Kind == advisory.Posix && !cyclic && next.Any(o, 0, advisory.EOF):
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
	a := &Advisory{m: m, mount: "here", tables: make(map[Key]*AdvisoryTable), ranges: make(map[uint64]int)}
	t := a.table(Key{}, false)
	kinds := random.IntN(3)
	lock := func(mount string) advisory.Lock {
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
	var there advisory.Locks
	for range random.IntN(8) {
		l := lock([]string{"here", "there"}[random.IntN(2)])
		_, one := t.mine.Conflict(l)
		_, other := there.Conflict(l)
		switch {
		case one || other:
		case a.Mine(l.Owner):
			t.set(l)
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
		t.requests = append(t.requests, r)
		t.named[r.id] = r
	}
	for i := range random.Int64N(4) {
		t.line = append(t.line, advisory.Waiter{ID: fmt.Sprint("there", i), Lock: lock("there"), Ticket: 2 * random.Int64N(50)})
	}
	slices.SortFunc(t.line, func(x, y advisory.Waiter) int { return cmp.Compare(x.Ticket, y.Ticket) })
	return t
}
