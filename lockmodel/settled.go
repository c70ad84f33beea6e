package main

import "fmt"

// The settled model: do tokens grow for a file that has a name in a delegated directory and another
// one elsewhere? The files d/f and d/h are in the directory, e/g is not. Mount A may have d
// delegated. Owners of A and of another mount open the files, and link, unlink and rename them, step
// by step. The lock service always works.

const (
	nameF int8 = iota // d/f
	nameG             // e/g
	nameH             // d/h: only A uses it
	settledNames
)

const (
	settledInodes = 2
	settledOwners = 3 // the last one is on another mount than the others
	settledLocks  = settledNames + settledInodes
)

// settledKey is the bit of a name; settledInode that of an inode.
func settledKey(x int8) keys   { return 1 << x }
func settledInode(n int8) keys { return 1 << (settledNames + n - 1) }

type settledWorld struct {
	threads     []linksThread
	first       [settledNames]int8
	delegations int8
	mut         string
}

// settledLock is what an owner has; without a revision the mount has granted it below its delegation.
type settledLock struct {
	owner     int8 // from 1; 0: nobody
	rev       int8
	token     int8 // the revision that the token is made of
	unsettled bool
	changed   bool // its owner has had it to change the name
}

type settledHold struct {
	keys  keys
	inode int8
	name  int8
	least int8 // its token is to be no smaller
	open  bool
}

type settledCall struct {
	op, at int8
	n      int8 // the inode, as it was looked up
	want   keys
	next   int8 // in ops
}

type settledState struct {
	names [settledNames]int8
	locks [settledLocks]settledLock
	hold  [maxThreads]settledHold
	call  [maxThreads]settledCall
	rev   int8 // of the service

	delegation  int8 // its revision; 0: none
	recalled    bool
	known       int8 // the largest revision that A has read while it stood
	only        bool // A knows that d/f is the file's only name
	delegations int8 // so many there were

	told [settledInodes + 1]int8 // the largest token of each file
}

func (w *settledWorld) start() settledState {
	return settledState{names: w.first, rev: 1}
}

func (w *settledWorld) broken(s settledState) string {
	for i, t := range w.threads {
		h := &s.hold[i]
		if !h.open {
			continue
		}
		if s.token(h) < h.least {
			return "the token of an owner is smaller than one before"
		}
		for j, o := range w.threads[:i] {
			if s.hold[j].open && s.hold[j].inode == h.inode && t.owner != o.owner {
				return "two owners have one file open for write"
			}
		}
	}
	return ""
}

func (w *settledWorld) waits(settledState) bool { return false } // an open that waits is interrupted

func (s *settledState) nlink(n int8) (count int) {
	for _, m := range s.names {
		if m == n {
			count++
		}
	}
	return count
}

// token is that of the inode, or of the only name.
func (s *settledState) token(h *settledHold) int8 {
	if s.nlink(h.inode) > 1 && h.keys&settledInode(h.inode) != 0 {
		return s.locks[settledNames+h.inode-1].token
	}
	return s.locks[h.name].token
}

// needs returns the keys that lock the file with a name.
func (w *settledWorld) needs(s *settledState, x int8) keys {
	n := s.names[x]
	if n == 0 || s.nlink(n) < 2 || w.mut == "noinode" {
		return settledKey(x)
	}
	return settledKey(x) | settledInode(n)
}

// missing returns what thread t's owner lacks of keys; free is false if another owner has one of them.
func (w *settledWorld) missing(s *settledState, t int, want keys) (missing keys, free bool) {
	for k, l := range s.locks {
		switch {
		case want&(1<<k) == 0:
		case l.owner == 0:
			missing |= 1 << k
		case l.owner != w.threads[t].owner+1:
			return 0, false
		}
	}
	return missing, true
}

func (w *settledWorld) onA(t int) bool { return w.threads[t].owner != settledOwners-1 }

const belowD = keys(1<<nameF | 1<<nameH)

// grant gives thread t's owner what it lacks, if it can have all of it; found is an OPEN's.
func (w *settledWorld) grant(n *settledState, t int, want keys, found bool) (granted bool) {
	missing, free := w.missing(n, t, want)
	switch {
	case !free:
		return false
	case missing&belowD != 0 && n.delegation != 0 && (n.recalled || !w.onA(t)):
		n.recalled = true
		return false
	}
	l := settledLock{owner: w.threads[t].owner + 1}
	if missing != 0 && missing&^belowD == 0 && n.delegation != 0 {
		l.token = n.known
	} else if missing != 0 {
		n.rev++
		l.rev, l.token = n.rev, n.rev
		if n.delegation != 0 && missing&belowD != 0 && w.mut != "unseen" { // it is A's
			n.known = n.rev
		}
	}
	for k := range n.locks {
		if missing&(1<<k) != 0 {
			n.locks[k] = l
			n.locks[k].unsettled = l.rev == 0 && !n.only && (found || w.mut != "anylock")
		}
	}
	if want&settledKey(nameF) != 0 && !found && w.mut != "remembers" {
		n.only = false
		n.locks[nameF].changed = w.mut != "meanwhile"
		n.locks[nameF].unsettled = n.locks[nameF].rev == 0 && w.mut != "anylock"
	}
	n.call[t].want = want
	return true
}

// release gives back what no thread of the owner needs any more.
func (w *settledWorld) release(n *settledState, owner int8) {
	var needed keys
	for i, t := range w.threads {
		if t.owner == owner {
			needed |= n.hold[i].keys
			if c := &n.call[i]; c.at >= 2 {
				needed |= c.want
			}
		}
	}
	for k, l := range n.locks {
		if l.owner == owner+1 && needed&(1<<k) == 0 {
			n.locks[k] = settledLock{}
		}
	}
}

func (w *settledWorld) end(n *settledState, t int) {
	n.call[t] = settledCall{next: n.call[t].next}
	w.release(n, w.threads[t].owner)
}

func (w *settledWorld) renumbered(s settledState) settledState {
	var rs revisions
	rs.add(&s.rev, &s.delegation, &s.known)
	for n := range s.told {
		rs.add(&s.told[n])
	}
	for k := range s.locks {
		rs.add(&s.locks[k].rev, &s.locks[k].token)
	}
	for t := range s.hold {
		rs.add(&s.hold[t].least)
	}
	rs.renumber()
	return s
}

func (w *settledWorld) steps(s settledState, to func(settledState, step)) {
	did := func(who, what string, f func(n *settledState)) {
		n := s
		f(&n)
		to(w.renumbered(n), step{who, what, true})
	}
	f := &s.locks[nameF]
	switch {
	case s.delegation == 0 && s.delegations < w.delegations && (f.owner == 0 || f.owner < settledOwners):
		did("A", "is delegated d", func(n *settledState) {
			n.rev++
			n.delegation, n.known, n.only, n.recalled = n.rev, n.rev, false, false
			n.delegations++
		})
	case s.delegation != 0:
		did("A", "puts entries for what is open below d, deletes the delegation", func(n *settledState) { w.downgrade(n) })
	}
	for t := range w.threads {
		who := fmt.Sprintf("thread %d (owner %c)", t, 'X'+rune(w.threads[t].owner))
		do := func(what string, f func(n *settledState)) { did(who, what, f) }
		c := &s.call[t]
		switch c.op {
		case nothing:
			if s.hold[t].open {
				do("closes, releases", func(n *settledState) {
					n.hold[t] = settledHold{}
					w.release(n, w.threads[t].owner)
				})
			}
			w.begin(&s, t, do)
		case opening:
			w.opening(&s, t, do)
		default:
			w.naming(&s, t, do)
		}
	}
}

type settledDo func(what string, f func(n *settledState))

func (w *settledWorld) downgrade(n *settledState) {
	n.rev++
	for k := range n.locks {
		l := &n.locks[k]
		if l.owner == 0 || l.rev != 0 {
			continue
		}
		if l.rev = n.rev; l.unsettled && w.mut != "unraised" {
			l.token = n.rev
		}
		l.unsettled = false
	}
	n.delegation, n.known, n.only, n.recalled = 0, 0, false, false
}

// begin starts one of the thread's next requests, or skips it.
func (w *settledWorld) begin(s *settledState, t int, do settledDo) {
	for i := int(s.call[t].next); i < len(w.threads[t].ops); i++ {
		op := w.threads[t].ops[i]
		start := func(what string, x int8) {
			if s.names[x] == 0 {
				return
			}
			do(what+": looks the file up", func(n *settledState) {
				n.call[t] = settledCall{op: op, at: 1, n: s.names[x], want: w.needs(n, x), next: int8(i + 1)}
				w.plan(n, t)
			})
		}
		switch op {
		case opening:
			if s.hold[t].open {
				continue
			}
			for x, name := range []string{"d/f", "e/g"} {
				if s.names[x] == 0 {
					continue
				}
				do("OPEN "+name+": looks the file up", func(n *settledState) {
					n.hold[t] = settledHold{inode: s.names[x], name: int8(x)}
					n.call[t] = settledCall{op: op, at: 1, want: w.needs(n, int8(x)), next: int8(i + 1)}
				})
			}
		case linking:
			start("LINK d/f as e/g", nameF)
		case unlinking:
			start("UNLINK e/g", nameG)
		case renaming:
			start("RENAME d/h to d/f", nameH)
		}
	}
}

// plan adds what a change of names locks beside the file's own keys.
func (w *settledWorld) plan(n *settledState, t int) {
	c := &n.call[t]
	switch c.op {
	case linking:
		c.want |= settledKey(nameG) | settledInode(c.n)
		if w.mut == "onename" {
			c.want &^= settledKey(nameF)
		}
	case renaming:
		c.want |= w.needs(n, nameF)
	}
}

func (w *settledWorld) opening(s *settledState, t int, do settledDo) {
	c, h := &s.call[t], &s.hold[t]
	switch c.at {
	case 1:
		n := *s
		if granted := w.grant(&n, t, c.want, true); granted || n.recalled != s.recalled {
			what := "recalls d"
			if granted {
				what = "is granted the lock"
				h := &n.hold[t]
				h.keys, h.least = c.want, n.told[h.inode]
				n.call[t].at = 2
				if w.mut == "early" {
					w.settle(&n, t)
				}
			}
			do(what, func(s *settledState) { *s = n })
		}
	case 2: // looks again, under the lock
		if w.changing(s, t) {
			return
		}
		needs := w.needs(s, h.name)
		switch {
		case s.names[h.name] != h.inode:
			do("finds another file there: ESTALE", func(n *settledState) {
				n.hold[t] = settledHold{}
				w.end(n, t)
			})
		case needs&^h.keys != 0:
			do("finds more names: releases, asks for both", func(n *settledState) {
				n.hold[t].keys = 0
				n.call[t].at, n.call[t].want = 1, needs
				w.release(n, w.threads[t].owner)
			})
		default:
			do("finds it there", func(n *settledState) { n.call[t].at = 3 })
		}
	case 3:
		if w.mut == "unsettled" || !s.unsettled(h) {
			w.open(t, do)
			return
		}
		do("reads the delegation: settled", func(n *settledState) {
			w.settle(n, t)
			n.call[t].at = 4
		})
	case 4:
		w.open(t, do)
	}
}

// changing reports whether names of the file that thread t opens are being changed through its mount.
func (w *settledWorld) changing(s *settledState, t int) bool {
	h := &s.hold[t]
	for i, o := range w.threads {
		c := &s.call[i]
		if o.owner == w.threads[t].owner && c.op > opening && c.at >= 2 && (c.n == h.inode || c.want&settledKey(h.name) != 0) && c.op != renaming {
			return true
		}
	}
	return false
}

func (w *settledWorld) open(t int, do settledDo) {
	do("opens", func(n *settledState) {
		h := &n.hold[t]
		if n.locks[h.name].rev == 0 {
			h.least = n.told[h.inode]
		}
		h.open = true
		n.told[h.inode] = max(n.told[h.inode], n.token(h))
		w.end(n, t)
	})
}

func (s *settledState) unsettled(h *settledHold) bool {
	return h.keys&settledKey(nameF) != 0 && s.locks[nameF].unsettled
}

func (w *settledWorld) settle(n *settledState, t int) {
	h := &n.hold[t]
	if !n.unsettled(h) {
		return
	}
	n.known = n.rev
	n.locks[nameF].token = n.rev
	if n.locks[nameF].changed {
		return // it may be another file's name by now, or in a moment
	}
	n.locks[nameF].unsettled = false
	if inodes := keys(1<<settledNames | 1<<(settledNames+1)); h.keys&inodes == 0 || w.mut == "both" {
		n.only = true
	}
}

// naming is LINK, UNLINK and RENAME. What its owner has open has to have the locks that it needs
// before and after: the links model has that. Here it is refused.
func (w *settledWorld) naming(s *settledState, t int, do settledDo) {
	c := &s.call[t]
	quit := func(what string) {
		do(what, func(n *settledState) { w.end(n, t) })
	}
	switch c.at {
	case 1:
		n := *s
		if granted := w.grant(&n, t, c.want, false); granted {
			n.call[t].at = 2
			do("takes the locks", func(s *settledState) { *s = n })
		} else {
			if n.recalled != s.recalled {
				do("recalls d", func(s *settledState) { *s = n })
			}
			quit("EBUSY")
		}
	case 2:
		x := map[int8]int8{linking: nameF, unlinking: nameG, renaming: nameH}[c.op]
		again := settledState{names: s.names}
		again.call[t] = settledCall{op: c.op, n: c.n, want: w.needs(s, x)}
		w.plan(&again, t)
		switch {
		case s.names[x] != c.n || c.op == linking && s.names[nameG] != 0 || again.call[t].want&^c.want != 0:
			quit("ESTALE")
		case w.opensHere(s, t):
			quit("is refused: its owner has the file open")
		default:
			do("changes the names, releases", func(n *settledState) {
				switch c.op {
				case linking:
					n.names[nameG] = c.n
				case unlinking:
					n.names[nameG] = 0
				case renaming:
					n.names[nameF], n.names[nameH] = c.n, 0
					for i, o := range w.threads {
						if h := &n.hold[i]; o.owner == w.threads[t].owner && h.open {
							*h = settledHold{} // of a file that has no name now
						}
					}
				}
				w.end(n, t)
			})
		}
	}
}

// opensHere reports whether thread t's owner has a file open, so that its locks would have to follow
// its names: it has not if d/f is open and e/g is unlinked, or if d/f is replaced that had one name.
// What it is about to open is looked at again, but beside a LINK.
func (w *settledWorld) opensHere(s *settledState, t int) bool {
	for i, o := range w.threads {
		h := &s.hold[i]
		if o.owner != w.threads[t].owner || h.keys == 0 {
			continue
		}
		switch s.call[t].op {
		case linking:
			return true
		case unlinking:
			if opens := h.open || s.call[i].at >= 3; opens && h.name == nameG {
				return true
			}
		case renaming:
			if h.open && (h.name != nameF || s.nlink(h.inode) > 1) {
				return true
			}
		}
	}
	return false
}
