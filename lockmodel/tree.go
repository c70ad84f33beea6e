package main

import (
	"fmt"
	"slices"
)

// The tree model: can a directory move away while a file below it is open? There are
// directories with one file each, opens that queue for the path of a file, renames that try
// for a whole directory, and the service's one Txn that compares what is there. A mount may also
// go by where it has found a directory under an earlier lock, if the stamps say that nobody has
// locked it since.

const (
	treeDirs    = 2 // directories: 1 and 2, with the files 1 and 2 in them
	treeNames   = 3 // their names: d, e, f
	treeThreads = 3
)

type treeWorld struct {
	threads []treeThread
	mut     string
}

// treeThread is constant. Each thread has its own owner.
type treeThread struct {
	mount int8
	opens int8 // how often it opens a file
	moves int8 // how often it renames a directory
}

// treeCall is a request on its way.
type treeCall struct {
	op     int8 // nothing, opening, renaming
	at     int8
	dir    int8 // the directory that is meant
	x, y   int8 // its name as the mount believes it, and the new one
	stamp  int8 // the stamp of x, as the Txn has read it
	placed bool
	ahead  uint8 // bit t: the entry of thread t
	tries  int8
	opens  int8
	moves  int8
}

// treeEntry is a thread's entries in the service: it puts all in one Txn.
type treeEntry struct {
	tree bool
	x, y int8 // a file in x, or the directories x and y
	rev  int8 // 0: none
}

// treeFound is where a mount has found a directory under a lock: fs.place.
type treeFound struct {
	dir, x int8
	token  int8
}

type treeState struct {
	names  [treeNames]int8 // the volume: which directory has the name
	entry  [treeThreads]treeEntry
	rev    int8
	stamps [treeNames]int8       // when a directory entry of the name was last put
	seen   [2][treeNames]int8    // the stamps that each mount has seen
	found  [2]treeFound          // what each mount has found last
	belief [2][treeDirs + 1]int8 // by which name a mount knows a directory
	call   [treeThreads]treeCall
	open   [treeThreads]int8 // the file a thread has open for write, 0: none
}

func (w *treeWorld) start() treeState {
	var s treeState
	for d := range int8(treeDirs) {
		s.names[d] = d + 1
		for m := range s.belief {
			s.belief[m][d+1] = d
		}
	}
	s.rev = 1
	return s
}

func (w *treeWorld) broken(s treeState) string {
	for i := range w.threads {
		for j := range w.threads[:i] {
			if s.open[i] != 0 && s.open[i] == s.open[j] {
				return "two owners have one file open for write"
			}
		}
	}
	for d := range int8(treeDirs) {
		if !slices.Contains(s.names[:], d+1) {
			return "a directory was renamed over another"
		}
	}
	for i := range w.threads {
		if s.open[i] != 0 && s.names[s.entry[i].x] != s.open[i] {
			return "a directory has moved away over an open file"
		}
	}
	return ""
}

func (w *treeWorld) waits(s treeState) bool {
	for t := range w.threads {
		if s.call[t].op == opening {
			return true
		}
	}
	return false
}

func (e treeEntry) conflicts(o treeEntry) bool {
	if e.tree || o.tree {
		return (1<<e.x|1<<e.y)&(1<<o.x|1<<o.y) != 0
	}
	return e.x == o.x
}

func (w *treeWorld) steps(s treeState, to func(treeState, step)) {
	for t, th := range w.threads {
		who := fmt.Sprintf("thread %d (mount %d)", t, th.mount)
		do := func(what string, maybe bool, f func(n *treeState, c *treeCall)) {
			n := s
			f(&n, &n.call[t])
			to(n, step{who, what, maybe})
		}
		c := &s.call[t]
		switch {
		case c.op == nothing && s.open[t] != 0:
			do("close, release", false, func(n *treeState, _ *treeCall) {
				n.open[t] = 0
				n.entry[t] = treeEntry{}
			})
		case c.op == nothing:
			w.begin(&s, t, do)
		case c.at == 0:
			do("sends its Txn", false, func(n *treeState, c *treeCall) {
				c.at = 1
			})
		case c.at == 1:
			do("service carries out the Txn", false, func(n *treeState, _ *treeCall) { w.txn(n, t) })
		case c.at == 2:
			do("gets the answer", false, func(n *treeState, c *treeCall) { w.answered(n, t) })
		case c.at == 3:
			w.wait(&s, t, do)
		case c.at == 4:
			w.granted(&s, t, do)
		case c.at == 5:
			do("renameat2", false, func(n *treeState, c *treeCall) {
				n.names[c.y], n.names[c.x] = n.names[c.x], 0
				n.belief[th.mount][n.names[c.y]] = c.y
				c.at = 6
			})
		case c.at == 6:
			do("releases the directories", false, func(n *treeState, _ *treeCall) { n.end(t) })
		}
	}
}

type treeDo func(what string, maybe bool, f func(n *treeState, c *treeCall))

// end takes a call and its entries to their end.
func (s *treeState) end(t int) {
	s.entry[t] = treeEntry{}
	s.call[t] = treeCall{opens: s.call[t].opens, moves: s.call[t].moves}
}

func (w *treeWorld) begin(s *treeState, t int, do treeDo) {
	c, m := &s.call[t], w.threads[t].mount
	for d := int8(1); d <= treeDirs; d++ {
		x := s.belief[m][d]
		if c.opens < w.threads[t].opens {
			do(fmt.Sprintf("OPEN of the file in directory %d, known as %c", d, 'd'+x), true, func(_ *treeState, c *treeCall) {
				c.op, c.dir, c.x, c.y, c.opens = opening, d, x, x, c.opens+1
			})
		}
		for y := range int8(treeNames) {
			if c.moves < w.threads[t].moves && s.names[x] == d && s.names[y] == 0 {
				do(fmt.Sprintf("RENAME %c to %c", 'd'+x, 'd'+y), true, func(_ *treeState, c *treeCall) {
					c.op, c.dir, c.x, c.y, c.moves = renaming, d, x, y, c.moves+1
				})
			}
		}
	}
}

func (w *treeWorld) txn(s *treeState, t int) {
	c := &s.call[t]
	e := treeEntry{tree: c.op == renaming, x: c.x, y: c.y}
	c.ahead, c.at = 0, 2
	for i, o := range s.entry {
		if o.rev != 0 && i != t && e.conflicts(o) && (!o.tree || w.mut != "noabove") {
			c.ahead |= 1 << i
		}
	}
	if c.placed = c.ahead == 0 || !e.tree; c.placed { // an open stands in line
		s.rev++
		e.rev = s.rev
		s.entry[t] = e
		if e.tree && w.mut != "nostamp" {
			s.stamps[c.x], s.stamps[c.y] = s.rev, s.rev
		}
	}
	if w.mut != "unread" {
		c.stamp = s.stamps[c.x]
	}
}

// answered notes the stamp, and says how to go on.
func (w *treeWorld) answered(s *treeState, t int) {
	c, seen := &s.call[t], &s.seen[w.threads[t].mount]
	seen[c.x] = max(seen[c.x], c.stamp)
	c.stamp = 0
	switch {
	case c.placed && c.ahead == 0:
		c.at = 4
	case c.placed:
		c.at = 3
	case c.tries == 1:
		s.end(t) // EBUSY
	default:
		c.at, c.tries = 3, c.tries+1
	}
	s.call[t].placed = false
}

// wait is for those ahead to go. Revisions are not used again, so a thread's
// next entry is behind ours.
func (w *treeWorld) wait(s *treeState, t int, do treeDo) {
	c := &s.call[t]
	for i, o := range s.entry {
		if c.ahead&(1<<i) != 0 && (o.rev == 0 || s.entry[t].rev != 0 && o.rev > s.entry[t].rev) {
			do("sees that an entry ahead is gone", false, func(n *treeState, c *treeCall) {
				c.ahead &^= 1 << i
				if c.ahead == 0 {
					c.at = 4
					if c.op == renaming {
						c.at = 0 // nothing was put: it tries again
					}
				}
			})
		}
	}
	if c.op == renaming {
		do("waits no longer: EBUSY", true, func(n *treeState, _ *treeCall) { n.end(t) })
	}
}

// undisturbed is etcdlock's Session.Undisturbed.
func (w *treeWorld) undisturbed(stamp, from, to int8) bool {
	return (stamp < from || w.mut == "found") && from <= to
}

// granted proves the path under the lock.
func (w *treeWorld) granted(s *treeState, t int, do treeDo) {
	c, m := &s.call[t], w.threads[t].mount
	if at := s.found[m]; c.op == opening && at.dir == c.dir && at.x == c.x && w.undisturbed(s.seen[m][c.x], at.token, s.entry[t].rev) {
		do("opens where it has found the directory before", true, func(n *treeState, c *treeCall) {
			n.open[t] = c.dir
			*c = treeCall{opens: c.opens, moves: c.moves}
		})
	}
	switch {
	case c.op == renaming && (s.names[c.x] == 0 || s.names[c.y] != 0):
		do("finds the names changed: releases", false, func(n *treeState, _ *treeCall) { n.end(t) })
	case c.op == renaming:
		do("looks again", false, func(_ *treeState, c *treeCall) { c.at = 5 })
	case s.names[c.x] == c.dir:
		do("proves the path, opens", false, func(n *treeState, c *treeCall) {
			n.open[t] = c.dir
			n.found[m] = treeFound{c.dir, c.x, n.entry[t].rev}
			*c = treeCall{opens: c.opens, moves: c.moves}
		})
	case w.mut == "noprove":
		do("opens", false, func(n *treeState, c *treeCall) {
			n.open[t] = c.dir
			*c = treeCall{opens: c.opens, moves: c.moves}
		})
	case c.tries == 1:
		do("finds another directory there: ESTALE", false, func(n *treeState, _ *treeCall) { n.end(t) })
	default:
		do("finds another directory there: releases, finds it, asks again", false, func(n *treeState, c *treeCall) {
			x := int8(slices.Index(n.names[:], c.dir))
			n.belief[m][c.dir] = x
			n.entry[t] = treeEntry{}
			c.x, c.y, c.at, c.tries = x, x, 0, 1
		})
	}
}
