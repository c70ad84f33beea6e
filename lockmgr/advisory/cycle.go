package advisory

import "slices"

// File is what owners have and wait for in one file.
type File struct {
	Held []Lock
	Line []Waiter
}

// Waits are the requests that may be part of a cycle, by owner. Only ranges count: Linux does not
// look for cycles of flocks.
type Waits map[Owner][]wait

type wait struct {
	file   *File
	waiter Waiter
}

// WaitsOf returns the waits in files, which are all files of the volume at one moment.
func WaitsOf(files []File) Waits {
	ws := make(Waits)
	for i := range files {
		for _, w := range files[i].Line {
			if o := w.Lock.Owner; o.Kind == Posix && !w.Tries {
				ws[o] = append(ws[o], wait{&files[i], w})
			}
		}
	}
	return ws
}

// Cycle reports whether the request of o with that id closes a cycle: o waits for an owner that
// waits, for another and so on, for o, and all of them have waited before.
//
// Each edge is a lock that an owner has at that moment and that conflicts with what another
// waits for at that moment. So no cycle is false as long as each owner is one thread. Of the
// requests of a cycle exactly one has the largest ticket, and finds all others.
func (ws Waits) Cycle(o Owner, id string) bool {
	i := slices.IndexFunc(ws[o], func(w wait) bool { return w.waiter.ID == id })
	if i < 0 {
		return false
	}
	last := ws[o][i]
	seen := make(map[Owner]bool)
	var reaches func(w wait) bool
	reaches = func(w wait) bool {
		return slices.ContainsFunc(w.file.Held, func(l Lock) bool {
			switch by := l.Owner; {
			case !l.Conflicts(w.waiter.Lock):
				return false
			case by == o:
				return true
			case seen[by]:
				return false
			default:
				seen[by] = true
				return slices.ContainsFunc(ws[by], func(next wait) bool {
					return next.waiter.Ticket < last.waiter.Ticket && reaches(next)
				})
			}
		})
	}
	return reaches(last)
}
