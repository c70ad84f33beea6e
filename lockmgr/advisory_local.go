package lockmgr

import (
	"strconv"

	"github.com/lockfs/lockfs/lockmgr/advisory"
)

// The policy can leave a file's locks to each mount. The kernel sends these too, because it sends
// the locks of all files of a view, or of none. Such a table is local: it is never in the service.

// OpenLocal is Open for a file whose locks exclude programs on this mount only. A table that is
// open stays what it is.
func (a *Advisory) OpenLocal(key Key) *AdvisoryTable { return a.open(key, true, 0) }

// Local reports whether the table is of this mount only.
func (t *AdvisoryTable) Local() bool { return t.local }

// planLocal refuses the requests that close a cycle of waits within this mount, in local and
// private tables. mu is held.
func (t *AdvisoryTable) planLocal(waiting []*advisoryRequest) {
	a := t.a
	var cyclic []*advisoryRequest
	for _, r := range waiting {
		if r.ticket != 0 {
			continue
		}
		if r.parked { // it cannot be refused now, and later requests do not overtake it
			break
		}
		a.tickets++
		r.ticket = a.tickets
		if a.cyclic(r) {
			cyclic = append(cyclic, r)
		}
	}
	var waits advisory.Waits
	for _, r := range cyclic {
		if waits == nil {
			waits = advisory.WaitsOf(a.localFiles())
		}
		if waits.Cycle(r.lock.Owner, r.name()) {
			t.answer(r, ErrDeadlock)
			t.asks++
			waits = nil // it is no part of another cycle
		}
	}
}

// localFiles returns what this mount's owners have and wait for in local and private tables. mu is
// held.
func (a *Advisory) localFiles() (files []advisory.File) {
	for _, t := range a.tables {
		if !t.local && !t.private.row {
			continue
		}
		f := advisory.File{Held: t.mine.All()}
		for _, r := range t.requests {
			if r.ticket != 0 && !r.over {
				f.Line = append(f.Line, advisory.Waiter{ID: r.name(), Lock: r.lock, Ticket: r.ticket})
			}
		}
		files = append(files, f)
	}
	return files
}

// name is a request's name in a local or private table.
func (r *advisoryRequest) name() string { return strconv.FormatInt(r.ticket, 10) }
