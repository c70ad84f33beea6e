package lockmgr

import (
	"cmp"
	"iter"
	"slices"

	"github.com/lockfs/lockfs/lockmgr/advisory"
)

// advisoryRequests are the requests for locks of one table, in order, by crowds: some that follow each
// other. If one lock is in the way of all of a crowd that has settled, a plan passes over the crowd.
// So many requests that wait cost what few do. What is in the way is found out anew by each plan.
//
// All of it is GUARDED_BY(Advisory.mu).
type advisoryRequests struct {
	crowds   []*advisoryCrowd
	most     int                    // in a crowd; 0: advisoryCrowdSize
	n        int                    // requests
	of       map[advisory.Owner]int // how many an owner has
	posix    map[uint64]int         // of all tables, how many an owner of ranges has, by Owner.ID
	unsorted bool                   // tickets have changed
}

type advisoryCrowd struct {
	list []*advisoryRequest
	// When a plan last looked at each of them, a lock was in its way, and there was nothing to do but wait for
	// that. They go on to wait as long as any lock is in their way, see AdvisoryTable.stir.
	settled bool
	span    advisory.Span // of them, if it has settled
}

const advisoryCrowdSize = 64

// add puts a request behind all others.
func (rs *advisoryRequests) add(r *advisoryRequest) {
	rs.n++
	o := r.lock.Owner
	rs.of[o]++
	if o.Kind == advisory.Posix {
		rs.posix[o.ID]++
	}
	rs.put(r)
}

func (rs *advisoryRequests) put(r *advisoryRequest) {
	if n := len(rs.crowds); n == 0 || len(rs.crowds[n-1].list) >= cmp.Or(rs.most, advisoryCrowdSize) {
		rs.crowds = append(rs.crowds, &advisoryCrowd{})
	}
	c := rs.crowds[len(rs.crowds)-1]
	c.list, c.settled = append(c.list, r), false
	r.crowd = c
}

// remove removes a request, if it is there.
func (rs *advisoryRequests) remove(r *advisoryRequest) {
	if r.crowd == nil {
		return
	}
	i := slices.Index(r.crowd.list, r)
	r.crowd.list = slices.Delete(r.crowd.list, i, i+1)
	r.crowd = nil
	rs.n--
	o := r.lock.Owner
	less(rs.of, o)
	if o.Kind == advisory.Posix {
		less(rs.posix, o.ID)
	}
}

// less takes one from a count.
func less[K comparable](counts map[K]int, k K) {
	if counts[k]--; counts[k] == 0 {
		delete(counts, k)
	}
}

// tidy brings the requests into order, and forgets the crowds that have gone.
func (rs *advisoryRequests) tidy() {
	rs.crowds = slices.DeleteFunc(rs.crowds, func(c *advisoryCrowd) bool { return len(c.list) == 0 })
	if !rs.unsorted {
		return
	}
	rs.unsorted = false
	all := slices.Collect(rs.all())
	if inOrder := func(x, y *advisoryRequest) int { return cmp.Compare(x.order(), y.order()) }; !slices.IsSortedFunc(all, inOrder) {
		slices.SortStableFunc(all, inOrder)
		rs.crowds = nil
		for _, r := range all {
			rs.put(r)
		}
	}
}

// all are the requests. They must not change meanwhile.
func (rs *advisoryRequests) all() iter.Seq[*advisoryRequest] {
	return func(yield func(*advisoryRequest) bool) {
		for _, c := range rs.crowds {
			for _, r := range c.list {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// any reports whether there is such a request in a crowd that has not settled.
func (rs *advisoryRequests) any(such func(*advisoryRequest) bool) bool {
	return slices.ContainsFunc(rs.crowds, func(c *advisoryCrowd) bool { return !c.settled && slices.ContainsFunc(c.list, such) })
}

// place gives the requests of a shared table the tickets of their rows.
func (t *AdvisoryTable) place(tickets map[*advisoryRequest]int64) {
	set := func(r *advisoryRequest, ticket int64) {
		if r.ticket != ticket {
			r.ticket, r.crowd.settled, t.requests.unsorted = ticket, false, true
		}
	}
	t.requests.any(func(r *advisoryRequest) bool {
		set(r, tickets[r])
		return false
	})
	for r, ticket := range tickets {
		set(r, ticket)
	}
}

// stir makes the next plan look at each request, and reports whether it would have passed over any.
func (t *AdvisoryTable) stir() (any bool) {
	for _, c := range t.requests.crowds {
		any = any || c.settled
		c.settled = false
	}
	return any
}

// unsettles reports whether the grant of a request changes what others of its owner mean, or others can
// have. The next plan would find that out as well, but not in order.
func (t *AdvisoryTable) unsettles(v *advisory.View, r *advisoryRequest) bool {
	l := r.lock
	return t.requests.of[l.Owner] > 1 || !l.Exclusive && v.Mine.Any(l.Owner, l.Start, l.End)
}

// stir is AdvisoryTable.stir where an owner asks for ranges that may be part of a cycle from now on.
func (a *Advisory) stir(o advisory.Owner) {
	if a.wanted[o.ID] == 0 {
		return
	}
	for _, t := range a.tables {
		if t.requests.of[o] > 0 {
			t.stir()
		}
	}
}

// settle notes whether a crowd that a plan has looked at has settled. Then none of its requests
//
//   - is owed an answer, as a probe, a try and one that was handed on may be
//   - has a place in line to be given or kept, which in a shared table is a row
//   - is of an owner that has anything here, or that others may wait for, so that it may be part of a
//     cycle
func (t *AdvisoryTable) settle(c *advisoryCrowd, p *advisoryPlan) {
	here := t.local || t.private.row
	c.settled = !slices.ContainsFunc(c.list, func(r *advisoryRequest) bool {
		return !r.waits || r.parked || r.over || !r.blocked || (r.ticket != 0) != here || slices.Contains(p.line, r) || t.has(r.lock.Owner) || t.a.cyclic(r)
	})
	if c.settled {
		c.span = advisory.Span{}
		for _, r := range c.list {
			c.span.Add(r.lock)
		}
	}
}

// passes reports whether a plan can pass over a crowd: all of it waits for one lock. waiting are the
// requests before it that wait.
func (t *AdvisoryTable) passes(v *advisory.View, c *advisoryCrowd, waiting []*advisoryRequest) (elsewhere, ok bool) {
	if !c.settled || len(c.list) == 0 {
		return false, false
	}
	by, ok := v.BlockerOfAll(c.span)
	if !ok {
		return false, false
	}
	if t.a.Mine(by.Owner) {
		return false, true // who has anything asks for nothing in a crowd that has settled
	}
	// In a shared table, one of them may have to stand in line.
	return true, slices.ContainsFunc(waiting, func(r *advisoryRequest) bool {
		return r.ticket != 0 && t.requests.of[r.lock.Owner] == 1 && c.span.Blocked(r.lock)
	})
}
