package main

// The links model: does the lock of a file follow its names? Programs of two owners open,
// link, rename and unlink files with several names, through two mounts. The lock service
// always works: a key is free or another's. Between any two steps of a request others take
// their steps, so each check that is made before the lock must be repeated under it. The
// volume may fail a change of names that it has done, or does later.

const (
	maxNames   = 3
	maxInodes  = 2
	maxThreads = 3
)

// keys is a set of locks: bit i is name i, bit maxNames+j is inode j+1.
type keys uint8

func nameKey(x int8) keys  { return 1 << x }
func inodeKey(n int8) keys { return 1 << (maxNames + n - 1) }

type linksWorld struct {
	threads []linksThread
	first   [maxNames]int8 // the inode of each name at first; 0: none
	faults  bool           // the volume fails changes of names
	mut     string
}

// linksThread is constant. Threads are on one mount if, and only if, they have one owner.
type linksThread struct {
	owner int8
	ops   []int8 // what it may do, in this order, each once or not at all
}

// The requests.
const (
	nothing int8 = iota
	opening
	linking
	unlinking
	renaming
)

// linksHold is a lockmgr.Hold of a file that is open, or is being opened.
type linksHold struct {
	keys  keys
	inode int8
	known bool // registered with the node, so that changes of names update it
	open  bool
}

type linksCall struct {
	op, at int8 // the request, and its progress
	x, y   int8 // names
	n, m   int8 // the inodes of x and y when they were looked at
	want   keys
	heirs  keys // names that keep the locks of the file that is replaced
	hold   keys // what the call itself has locked
	next   int8 // in ops
}

// linksLate is a change of names that the volume has failed and may still do. It concerns
// the files that are open then. It is dropped once somebody else has got one of its locks,
// or has opened its file.
type linksLate struct{ op, x, y, n, m int8 }

type linksState struct {
	names [maxNames]int8 // the directory on the volume
	known [2][maxInodes + 1]keys
	hold  [maxThreads]linksHold
	call  [maxThreads]linksCall
	late  linksLate
}

func (w *linksWorld) start() linksState { return linksState{names: w.first} }

func (w *linksWorld) broken(s linksState) string {
	for i, t := range w.threads {
		for j, o := range w.threads[:i] {
			if s.hold[i].open && s.hold[j].open && s.hold[i].inode == s.hold[j].inode && t.owner != o.owner {
				return "two owners have one file open for write"
			}
		}
	}
	return ""
}

func (w *linksWorld) waits(s linksState) bool {
	for i := range w.threads {
		if s.call[i].op == opening {
			return true
		}
	}
	return false
}

func (s *linksState) nlink(n int8) (count int) {
	for _, i := range s.names {
		if i == n {
			count++
		}
	}
	return count
}

// locks returns the keys that lock a file under name x (fs: fileKeys, linkKeys).
func (w *linksWorld) locks(s *linksState, x int8) keys {
	n := s.names[x]
	if n == 0 || s.nlink(n) < 2 || w.mut == "noinode" {
		return nameKey(x)
	}
	return nameKey(x) | inodeKey(n)
}

// free reports whether thread t's owner may have the keys.
func (w *linksWorld) free(s *linksState, t int, k keys) bool {
	for j, o := range w.threads {
		if o.owner != w.threads[t].owner && k&(s.hold[j].keys|s.call[j].hold) != 0 {
			return false
		}
	}
	return true
}

// holds returns the registered holds of an inode on thread t's mount.
func (w *linksWorld) holds(s *linksState, t int, n int8) []*linksHold {
	var hs []*linksHold
	for j, o := range w.threads {
		if h := &s.hold[j]; o.owner == w.threads[t].owner && h.known && h.inode == n {
			hs = append(hs, h)
		}
	}
	return hs
}

// heir returns the name that is left when x goes, the last name but one of a file that is
// open here; ok is false if it is not known.
func (w *linksWorld) heir(s *linksState, t int, x int8) (heir keys, ok bool) {
	n := s.names[x]
	if n == 0 || s.nlink(n) != 2 || len(w.holds(s, t, n)) == 0 || w.mut == "noheir" {
		return 0, true
	}
	for y, m := range s.names {
		if k := nameKey(int8(y)); int8(y) != x && m == n {
			return k, s.known[w.threads[t].owner][n]&k != 0
		}
	}
	return 0, true
}

// excluded reports whether another change of names is under way through thread t's mount
// that has a name or file in common: the kernel has locked both. It does not lock for an
// OPEN.
func (w *linksWorld) excluded(s *linksState, t int, c linksCall) bool {
	for j, o := range w.threads {
		other := s.call[j]
		if j == t || o.owner != w.threads[t].owner || other.op <= opening {
			continue
		}
		names := nameKey(other.x) | nameKey(other.y)
		if names&(nameKey(c.x)|nameKey(c.y)) != 0 || other.concerns(c.n) || other.concerns(c.m) {
			return true
		}
	}
	return false
}

func (c *linksCall) concerns(n int8) bool { return n != 0 && (c.n == n || c.m == n) }

// changing reports whether an inode's names are being changed through thread t's mount:
// from when its holds are given locks until they have been updated.
func (w *linksWorld) changing(s *linksState, t int, n int8) bool {
	for j, o := range w.threads {
		if c := &s.call[j]; o.owner == w.threads[t].owner && c.op > opening && c.at >= 2 && c.concerns(n) {
			return true
		}
	}
	return false
}

// end ends a call.
func (s *linksState) end(t int) { s.call[t] = linksCall{next: s.call[t].next} }

// change does a change of names of the file n, if that is possible.
func (s *linksState) change(op, x, y, n int8) {
	switch {
	case op == linking && s.names[y] == 0 && s.nlink(n) > 0:
		s.names[y] = n
	case op == unlinking && s.names[x] == n:
		s.names[x] = 0
	case op == renaming && s.names[x] == n:
		s.names[x], s.names[y] = 0, n
	}
}

// lapse drops the late change if it concerns keys.
func (s *linksState) lapse(k keys) {
	l := s.late
	if l.op == nothing {
		return
	}
	concerned := nameKey(l.x) | nameKey(l.y) | inodeKey(l.n)
	if l.m != 0 {
		concerned |= inodeKey(l.m)
	}
	if k&concerned != 0 {
		s.late = linksLate{}
	}
}
