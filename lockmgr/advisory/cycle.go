package advisory

import "slices"

// File is what owners have and wait for in one file.
type File struct {
	Held []Lock
	Line []Waiter
}

// Cycle reports whether the request with that id closes a cycle: its owner waits for an owner
// that waits, for another and so on, for the owner of the request, and all of them have waited
// before. files are all files of the volume at one moment. Only ranges count: Linux does not
// look for cycles of flocks.
//
// Each edge is a lock that an owner has at that moment and that conflicts with what another
// waits for at that moment. So no cycle is false as long as each owner is one thread. Of the
// requests of a cycle exactly one has the largest ticket, and finds all others.
func Cycle(files []File, id string) bool {
	type wait struct {
		file   *File
		waiter Waiter
	}
	waits := make(map[Owner][]wait)
	var last *wait
	for i := range files {
		for _, w := range files[i].Line {
			if w.Lock.Owner.Kind != Posix || w.Tries {
				continue
			}
			waits[w.Lock.Owner] = append(waits[w.Lock.Owner], wait{&files[i], w})
			if w.ID == id {
				last = &wait{&files[i], w}
			}
		}
	}
	if last == nil {
		return false
	}
	seen := make(map[Owner]bool)
	var reaches func(w wait) bool
	reaches = func(w wait) bool {
		return slices.ContainsFunc(w.file.Held, func(l Lock) bool {
			switch by := l.Owner; {
			case !l.Conflicts(w.waiter.Lock):
				return false
			case by == last.waiter.Lock.Owner:
				return true
			case seen[by]:
				return false
			default:
				seen[by] = true
				return slices.ContainsFunc(waits[by], func(next wait) bool {
					return next.waiter.Ticket < last.waiter.Ticket && reaches(next)
				})
			}
		})
	}
	return reaches(*last)
}
