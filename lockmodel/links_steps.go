package main

import "fmt"

const letters = "abc"

func (w *linksWorld) steps(s linksState, to func(linksState, step)) {
	if l := s.late; l.op != nothing {
		n := s
		n.change(l.op, l.x, l.y, l.n)
		n.late = linksLate{}
		to(n, step{"volume", "makes the change that it has failed", true})
	}
	for t := range w.threads {
		who := fmt.Sprintf("thread %d (owner %c)", t, 'X'+rune(w.threads[t].owner))
		do := func(what string, maybe bool, f func(n *linksState, c *linksCall, h *linksHold)) {
			n := s
			f(&n, &n.call[t], &n.hold[t])
			to(n, step{who, what, maybe})
		}
		c, h := &s.call[t], &s.hold[t]
		switch c.op {
		case nothing:
			if h.open {
				do("close, release", false, func(_ *linksState, _ *linksCall, h *linksHold) { *h = linksHold{} })
			}
			w.begin(&s, t, do)
		case opening:
			w.opening(&s, t, do)
		default:
			w.naming(&s, t, do)
		}
	}
}

type linksDo func(what string, maybe bool, f func(n *linksState, c *linksCall, h *linksHold))

// begin starts the next request, with any names, or skips it.
func (w *linksWorld) begin(s *linksState, t int, do linksDo) {
	for i := int(s.call[t].next); i < len(w.threads[t].ops); i++ {
		op := w.threads[t].ops[i]
		for x := range int8(maxNames) {
			if s.names[x] == 0 {
				continue
			}
			for y := range int8(maxNames) {
				one := op == opening || op == unlinking
				if one && x != y || !one && x == y || op == linking && s.names[y] != 0 || op == opening && s.hold[t].keys != 0 {
					continue
				}
				call := linksCall{op: op, x: x, y: y, n: s.names[x], m: s.names[y], next: int8(i + 1)}
				if op != opening && w.excluded(s, t, call) {
					continue
				}
				var what string
				switch op {
				case opening:
					what = fmt.Sprintf("OPEN %c", letters[x])
				case unlinking:
					what = fmt.Sprintf("UNLINK %c", letters[x])
				case linking:
					what = fmt.Sprintf("LINK %c as %c", letters[x], letters[y])
				case renaming:
					what = fmt.Sprintf("RENAME %c to %c", letters[x], letters[y])
				}
				do(what+": looks the file up", true, func(n *linksState, c *linksCall, h *linksHold) {
					*c = call
					n.known[w.threads[t].owner][c.n] |= nameKey(x)
					if op == opening {
						h.inode = c.n
						c.want = w.locks(n, x)
						return
					}
					w.plan(n, t)
				})
			}
		}
	}
}

// plan returns what a change of names locks (fs: the start of Link, Unlink, Rename).
func (w *linksWorld) plan(n *linksState, t int) {
	c := &n.call[t]
	c.want = w.locks(n, c.x)
	ok := true
	switch c.op {
	case linking:
		c.want |= nameKey(c.y)
		if w.mut != "noinode" {
			c.want |= inodeKey(c.n)
		}
	case unlinking:
		c.heirs, ok = w.heir(n, t, c.x)
	case renaming:
		if n.names[c.x] == n.names[c.y] {
			ok = false // changes nothing
			break
		}
		c.want |= w.locks(n, c.y)
		c.heirs, ok = w.heir(n, t, c.y)
		c.heirs &^= nameKey(c.x)
	}
	c.want |= c.heirs
	if !ok {
		n.end(t)
	}
}

func (w *linksWorld) opening(s *linksState, t int, do linksDo) {
	c := &s.call[t]
	switch c.at {
	case 0:
		if w.free(s, t, c.want) {
			do("is granted what it asked for", false, func(n *linksState, c *linksCall, h *linksHold) {
				h.keys, c.at = c.want, 1
				n.lapse(c.want)
			})
		}
	case 1:
		if w.mut == "lateknown" {
			w.prove(s, t, do)
			return
		}
		if w.mut == "nogate" || !w.changing(s, t, s.hold[t].inode) {
			do("registers its hold", false, func(_ *linksState, c *linksCall, h *linksHold) { h.known, c.at = true, 2 })
		}
	case 2:
		if w.mut == "lateknown" {
			do("registers its hold, opens", false, func(n *linksState, _ *linksCall, h *linksHold) {
				h.known, h.open = true, true
				n.lapse(inodeKey(h.inode))
				n.end(t)
			})
			return
		}
		w.prove(s, t, do)
	}
}

// prove resolves the path again under the lock (fs: prove, lockFile).
func (w *linksWorld) prove(s *linksState, t int, do linksDo) {
	c, h := &s.call[t], &s.hold[t]
	needs := w.locks(s, c.x)
	switch {
	case s.names[c.x] != h.inode && w.mut != "noprove":
		do("finds another file there: ESTALE, release", false, func(n *linksState, _ *linksCall, h *linksHold) {
			*h = linksHold{}
			n.end(t)
		})
	case needs&^h.keys != 0 && s.names[c.x] == h.inode && w.mut != "norecount":
		do("finds more names: releases, asks for both", false, func(_ *linksState, c *linksCall, h *linksHold) {
			c.want, c.at = needs, 0
			*h = linksHold{inode: h.inode}
		})
	case w.mut == "lateknown":
		do("proves the path", false, func(_ *linksState, c *linksCall, _ *linksHold) { c.at = 2 })
	default:
		do("proves the path, opens", false, func(n *linksState, _ *linksCall, h *linksHold) {
			h.open = true
			n.lapse(inodeKey(h.inode))
			n.end(t)
		})
	}
}

// naming is LINK, UNLINK and RENAME.
func (w *linksWorld) naming(s *linksState, t int, do linksDo) {
	c := &s.call[t]
	quit := func(what string) {
		do(what, false, func(n *linksState, _ *linksCall, _ *linksHold) { n.end(t) })
	}
	switch c.at {
	case 0:
		if !w.free(s, t, c.want) {
			quit("EBUSY")
			return
		}
		do("takes the locks", false, func(n *linksState, c *linksCall, _ *linksHold) {
			c.hold, c.at = c.want, 1
			n.lapse(c.want)
		})
	case 1: // looks again, and gives locks to the existing holds
		n := *s
		if w.mut == "norelook" {
			n.share(w, t)
		} else if why := w.relook(&n, t); why != "" {
			quit(why)
			return
		}
		if w.excluded(&n, t, n.call[t]) {
			return
		}
		n.call[t].at = 2
		do("looks again, shares its locks with open handles", false, func(s *linksState, _ *linksCall, _ *linksHold) { *s = n })
	case 2:
		made := func(n *linksState, c *linksCall) { n.change(c.op, c.x, c.y, c.n) }
		do("changes the directory", false, func(n *linksState, c *linksCall, _ *linksHold) { made(n, c); c.at = 3 })
		if !w.faults {
			return
		}
		do("fails", true, func(_ *linksState, c *linksCall, _ *linksHold) { c.at = 3 })
		if w.mut == "trusting" { // otherwise the answer does not matter
			do("changes the directory, and fails", true, func(n *linksState, c *linksCall, _ *linksHold) {
				w.undo(n, t)
				made(n, c)
				n.end(t)
			})
		}
		if s.late.op == nothing {
			do("fails, and nobody knows how", true, func(n *linksState, c *linksCall, _ *linksHold) {
				n.late = linksLate{c.op, c.x, c.y, c.n, c.m}
				if c.at = 4; w.mut == "narrowing" {
					c.at = 3
				}
			})
		}
	case 3, 4:
		do("looks what it has changed, moves the handles along, releases", false, func(n *linksState, c *linksCall, _ *linksHold) {
			w.follow(n, t, c.at == 3)
			n.end(t)
		})
	}
}

// relook checks under the locks what was seen before them, and shares the locks.
func (w *linksWorld) relook(n *linksState, t int) string {
	c := &n.call[t]
	if c.op == linking && (n.names[c.x] != c.n || n.names[c.y] != 0) || n.names[c.x] == 0 {
		return "ESTALE"
	}
	needs := w.locks(n, c.x)
	if c.op == renaming {
		needs |= w.locks(n, c.y)
	}
	if needs&^c.hold != 0 {
		return "ESTALE"
	}
	if heirs, ok := w.heirsOf(n, t); !ok || heirs&^c.heirs != 0 {
		return "ESTALE"
	}
	if c.op == renaming && n.names[c.x] == n.names[c.y] {
		return "changes nothing"
	}
	n.share(w, t)
	return ""
}

func (w *linksWorld) heirsOf(n *linksState, t int) (keys, bool) {
	c := &n.call[t]
	switch c.op {
	case unlinking:
		return w.heir(n, t, c.x)
	case renaming:
		h, ok := w.heir(n, t, c.y)
		return h &^ nameKey(c.x), ok
	}
	return 0, true
}

// share gives the file's holds the locks that it will need.
func (n *linksState) share(w *linksWorld, t int) {
	c := &n.call[t]
	c.n, c.m = n.names[c.x], 0
	give := c.heirs
	of := c.n
	switch c.op {
	case linking:
		give = c.hold
		if w.mut == "noshare" {
			give = 0
		}
	case renaming:
		of, c.m = n.names[c.y], n.names[c.y]
		for _, h := range w.holds(n, t, c.n) {
			if w.mut != "norekey" {
				h.keys |= nameKey(c.y)
			}
		}
	}
	for _, h := range w.holds(n, t, of) {
		h.keys |= give
	}
}

// follow updates the holds by the names that exist (fs: follow). over: what is not done by
// now will never be.
func (w *linksWorld) follow(n *linksState, t int, over bool) {
	c := &n.call[t]
	if c.op != unlinking {
		w.has(n, t, c.n, c.y, over)
	}
	if c.op != linking && w.mut != "norekey" {
		w.has(n, t, c.n, c.x, true)
	}
	if c.m != 0 {
		w.has(n, t, c.m, c.y, true)
	}
}

// has makes a file's holds give up the lock of a name that the file does not have, and will
// not get.
func (w *linksWorld) has(n *linksState, t int, file, x int8, over bool) {
	known := &n.known[w.threads[t].owner][file]
	switch {
	case n.names[x] == file:
		*known |= nameKey(x)
	case over:
		*known &^= nameKey(x)
		for _, h := range w.holds(n, t, file) {
			h.keys &^= nameKey(x)
		}
	}
}

// undo takes back from the holds the lock of the name that a file was to get.
func (w *linksWorld) undo(n *linksState, t int) {
	if c := &n.call[t]; c.op != unlinking {
		w.has(n, t, c.n, c.y, true)
	}
}
