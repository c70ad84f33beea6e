package main

import "slices"

// The names model: does every wait for a file with several names end? There is one file
// with two names and its inode, and each has a line in the service. Owners also stand in
// lines on their mounts. Programs open the file by one name after another. The service
// always works.

const (
	namesOwners = 4
	namesMounts = 2
	theInode    = 2 // the keys are the names 0 and 1, and this
	namesKeys   = 3
)

type namesWorld struct {
	owners []namesProgram
	mut    string
}

// namesProgram is constant: which names a program asks for on which mount, one after
// another. It may skip each.
type namesProgram struct {
	mount  int8
	pod    int8 // programs of one pod are one owner; 0: no pod
	reads  bool
	opens  []int8
	unsure bool // it may believe that the file has one name, and learn better under that name's lock
}

// What an owner does, apart from idle.
const (
	lookingHere int8 = iota + 40 // checks what its mount knows
	asksAll                      // may ask the service for all missing keys
	inLine                       // it stands in lines of the service
	learnt                       // has the name, and needs more
)

type namesOwner struct {
	phase  int8
	next   int8  // in opens
	open   uint8 // names by which it has the file open
	got    uint8 // keys of the present request that it has
	lines  uint8 // keys in whose lines of the service it stands
	inTurn bool  // the keys were not all free
	bare   bool  // asks for the name only
}

type namesState struct {
	line  [namesKeys][namesOwners]int8   // owner+1 of what stands in the service, in order
	order [namesMounts][namesOwners]int8 // owner+1 of the requests of a mount, in order
	o     [namesOwners]namesOwner
}

func (w *namesWorld) start() namesState {
	var s namesState
	for i := range s.o {
		s.o[i].phase = done
		if i < len(w.owners) {
			s.o[i].phase = idle
		}
	}
	return s
}

func bit(k int8) uint8 { return 1 << k }

// has returns the keys that a program has locked, or shares.
func (s *namesState) has(i int8) uint8 {
	o := &s.o[i]
	if o.open != 0 {
		return o.open | o.got | bit(theInode)
	}
	return o.got
}

// wants returns the keys of the present request.
func (w *namesWorld) wants(s *namesState, i int8) uint8 {
	o := &s.o[i]
	name := bit(w.owners[i].opens[o.next])
	if o.bare {
		return name
	}
	return name | bit(theInode)
}

func (w *namesWorld) conflict(i, j int8) bool {
	return i != j && !w.same(i, j) && !(w.owners[i].reads && w.owners[j].reads)
}

// same reports whether two programs are one owner, and share their locks.
func (w *namesWorld) same(i, j int8) bool {
	return w.owners[i].pod != 0 && w.owners[i].pod == w.owners[j].pod
}

// shared returns the keys that others of i's owner have locked.
func (w *namesWorld) shared(s *namesState, i int8) (keys uint8) {
	for j := range int8(len(w.owners)) {
		if j != i && w.same(i, j) {
			keys |= s.has(j)
		}
	}
	return keys
}

func appended(list [namesOwners]int8, i int8) [namesOwners]int8 {
	for at, o := range list {
		if o == 0 {
			list[at] = i + 1
			break
		}
	}
	return list
}

func without(list [namesOwners]int8, i int8) (left [namesOwners]int8) {
	at := 0
	for _, o := range list {
		if o != 0 && o != i+1 {
			left[at] = o
			at++
		}
	}
	return left
}

// ahead reports whether a conflicting entry is before i's in the line of k, or anywhere in
// it if i has none.
func (w *namesWorld) ahead(s *namesState, k, i int8) bool {
	for _, o := range s.line[k] {
		switch {
		case o == 0 || o == i+1:
			return false
		case w.conflict(o-1, i):
			return true
		}
	}
	return false
}

// obstructed reports whether a lock or an earlier request of another owner on its mount
// blocks a key that i lacks.
func (w *namesWorld) obstructed(s *namesState, i int8) bool {
	lacks := w.wants(s, i) &^ s.has(i)
	for j := range int8(len(w.owners)) {
		if w.owners[j].mount == w.owners[i].mount && w.conflict(i, j) && s.has(j)&lacks != 0 {
			return true
		}
	}
	for _, o := range s.order[w.owners[i].mount] {
		if o == 0 || o == i+1 {
			break
		}
		if j := o - 1; w.conflict(i, j) || w.same(i, j) {
			common := w.wants(s, j) & lacks
			for k := range int8(namesKeys) {
				if common&bit(k) != 0 && !w.passes(s, i, j, k) {
					return true
				}
			}
		}
	}
	return false
}

// passes reports whether i goes ahead of j in the line of k, because j waits for another
// key that i has.
func (w *namesWorld) passes(s *namesState, i, j, k int8) bool {
	return !w.same(i, j) && w.wants(s, j)&s.has(i)&^bit(k) != 0 && w.mut != "nopass"
}

func (w *namesWorld) broken(s namesState) string {
	for i := range int8(len(w.owners)) {
		for j := range i {
			if s.o[i].open != 0 && s.o[j].open != 0 && w.conflict(i, j) {
				return "two owners have one file open"
			}
		}
	}
	return ""
}

func (w *namesWorld) waits(s namesState) bool {
	for i := range w.owners {
		if p := s.o[i].phase; p != idle && p != done {
			return true
		}
	}
	return false
}

// settle releases what i no longer needs, and leaves to others of its owner what they
// share.
func (w *namesWorld) settle(s *namesState, i int8) {
	keeps := s.has(i) | s.o[i].lines
	for k := range int8(namesKeys) {
		if keeps&bit(k) != 0 {
			continue
		}
		if at := slices.Index(s.line[k][:], i+1); at >= 0 {
			if heir := w.heir(s, k, i); heir >= 0 {
				s.line[k][at] = heir + 1
				continue
			}
		}
		s.line[k] = without(s.line[k], i)
	}
}

// heir is another program of i's owner that has k by i's entry, or -1.
func (w *namesWorld) heir(s *namesState, k, i int8) int8 {
	for j := range int8(len(w.owners)) {
		if j != i && w.same(i, j) && s.has(j)&bit(k) != 0 && !slices.Contains(s.line[k][:], j+1) {
			return j
		}
	}
	return -1
}

// over ends the present request, granted or not.
func (w *namesWorld) over(s *namesState, i int8) {
	o := &s.o[i]
	*o = namesOwner{phase: idle, next: o.next + 1, open: o.open}
	if int(o.next) == len(w.owners[i].opens) && o.open == 0 {
		o.phase = done
	}
	m := w.owners[i].mount
	s.order[m] = without(s.order[m], i)
	w.settle(s, i)
}

func (w *namesWorld) steps(s namesState, to func(namesState, step)) {
	for i := range int8(len(w.owners)) {
		do := func(what string, maybe bool, f func(n *namesState, o *namesOwner)) {
			n := s
			f(&n, &n.o[i])
			to(n, step{"program " + string(rune('P'+i)), what, maybe})
		}
		switch o := &s.o[i]; o.phase {
		case done:
			continue
		case idle:
			w.idle(&s, i, do)
			continue
		case lookingHere:
			w.look(&s, i, do)
		case asksAll:
			do("asks the service for what it lacks", false, func(n *namesState, o *namesOwner) { w.ask(n, i) })
		case inLine:
			w.inLine(&s, i, do)
		case learnt:
			do("learns that the file has more names", false, func(n *namesState, o *namesOwner) { w.learn(n, i) })
		}
		do("gives up", true, func(n *namesState, o *namesOwner) { w.over(n, i) })
	}
}

type namesDo func(what string, maybe bool, f func(n *namesState, o *namesOwner))

func (w *namesWorld) idle(s *namesState, i int8, do namesDo) {
	o, m := &s.o[i], w.owners[i].mount
	if int(o.next) < len(w.owners[i].opens) {
		ask := func(bare bool) func(n *namesState, o *namesOwner) {
			return func(n *namesState, o *namesOwner) {
				o.phase, o.bare = lookingHere, bare
				n.order[m] = appended(n.order[m], i)
			}
		}
		name := string(rune('a' + w.owners[i].opens[o.next]))
		do("opens "+name, true, ask(false))
		if w.owners[i].unsure && o.open == 0 {
			do("opens "+name+", its only name for all it knows", true, ask(true))
		}
	}
	for k := range int8(theInode) {
		if o.open&bit(k) != 0 {
			do("closes "+string(rune('a'+k)), false, func(n *namesState, o *namesOwner) {
				o.open &^= bit(k)
				w.settle(n, i)
				if o.open == 0 && int(o.next) == len(w.owners[i].opens) {
					o.phase = done
				}
			})
		}
	}
}

// look checks what the mount itself knows. While that blocks the request, the request has
// no key.
func (w *namesWorld) look(s *namesState, i int8, do namesDo) {
	wants, shared := w.wants(s, i), w.shared(s, i)
	switch {
	case w.obstructed(s, i):
		if s.o[i].got != 0 {
			do("gives back what it has, to wait", false, func(n *namesState, o *namesOwner) {
				o.got = 0
				w.settle(n, i)
			})
		}
	case wants&^(s.has(i)|shared) == 0:
		do("has it", false, func(n *namesState, o *namesOwner) {
			o.got |= wants & shared
			w.granted(n, i)
		})
	default:
		do("finds nothing in its way on its mount", false, func(_ *namesState, o *namesOwner) {
			o.got |= wants & shared
			o.phase = asksAll
		})
	}
}

func (w *namesWorld) granted(s *namesState, i int8) {
	o := &s.o[i]
	if o.bare {
		o.phase = learnt
		s.order[w.owners[i].mount] = without(s.order[w.owners[i].mount], i)
		return
	}
	o.open |= bit(w.owners[i].opens[o.next])
	w.over(s, i)
}

// ask is a Txn: it takes all missing keys if they are free, else a place in line; in the
// inode's line if the inode is missing.
func (w *namesWorld) ask(s *namesState, i int8) {
	o := &s.o[i]
	lacks := w.wants(s, i) &^ s.has(i)
	free := true
	for k := range int8(namesKeys) {
		free = free && (lacks&bit(k) == 0 || !w.ahead(s, k, i))
	}
	switch {
	case free || w.mut == "atonce":
	case lacks&bit(theInode) == 0:
	case !o.inTurn:
		o.inTurn, o.phase = true, lookingHere
		return
	case w.mut == "namefirst":
		lacks &^= bit(theInode)
		if lacks == 0 {
			lacks = bit(theInode)
		}
	default:
		lacks = bit(theInode)
	}
	if lacks == bit(theInode) { // meanwhile it has no name
		switch w.mut {
		case "namefirst", "keeps":
		case "shares":
			o.got &= w.shared(s, i)
		default:
			o.got = 0
		}
		w.settle(s, i)
	}
	for k := range int8(namesKeys) {
		if lacks&bit(k) != 0 {
			s.line[k] = appended(s.line[k], i)
		}
	}
	o.lines, o.phase = lacks, inLine
}

func (w *namesWorld) inLine(s *namesState, i int8, do namesDo) {
	for k := range int8(namesKeys) {
		if s.o[i].lines&bit(k) != 0 && w.ahead(s, k, i) {
			return
		}
	}
	do("is granted what it stands in line for", false, func(_ *namesState, o *namesOwner) {
		o.got |= o.lines
		o.lines, o.phase = 0, lookingHere
	})
}

// learn asks for all keys, and first releases the name.
func (w *namesWorld) learn(s *namesState, i int8) {
	o, m := &s.o[i], w.owners[i].mount
	o.bare, o.phase = false, lookingHere
	s.order[m] = appended(s.order[m], i)
	if w.mut == "keeps" {
		o.inTurn = true
		return
	}
	o.got = 0
	w.settle(s, i)
}
