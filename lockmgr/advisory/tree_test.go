package advisory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lockfs/lockfs/internal/longtest"
)

// plainLocks has for each owner and each byte whether it has a lock there, and which. The last byte
// is the rest of the file.
type plainLocks map[Owner][bytesTried]byte

const (
	none byte = iota
	shared
	exclusive
)

func (p plainLocks) set(l Lock, as byte) plainLocks {
	changed := make(plainLocks)
	for o, bytes := range p {
		if o == l.Owner {
			continue
		}
		changed[o] = bytes
	}
	bytes := p[l.Owner]
	for at := range bytes {
		if l.Start <= byteAt(at).Start && byteAt(at).End <= l.End {
			bytes[at] = as
		}
	}
	changed[l.Owner] = bytes
	return changed
}

// byteAt is the lock of a byte.
func byteAt(at int) Lock {
	if at == bytesTried-1 {
		return Lock{Start: uint64(at), End: EOF}
	}
	return Lock{Start: uint64(at), End: uint64(at)}
}

// list is what Locks have: of each owner, its bytes that follow each other and are alike are one lock.
func (p plainLocks) list() (all []Lock) {
	for o, bytes := range p {
		for at, b := range bytes {
			l := byteAt(at)
			l.Owner, l.Exclusive = o, b == exclusive
			switch {
			case b == none:
			case at > 0 && bytes[at-1] == b:
				all[len(all)-1].End = l.End
			default:
				all = append(all, l)
			}
		}
	}
	return all
}

func (p plainLocks) conflict(l Lock) bool { return slices.ContainsFunc(p.list(), l.Conflicts) }

func (p plainLocks) any(l Lock, good func(byte) bool) (any, all bool) {
	all = true
	for at, b := range p[l.Owner] {
		if l.Start <= byteAt(at).End && byteAt(at).Start <= l.End {
			any, all = any || good(b), all && good(b)
		}
	}
	return any, all
}

// Locks and all copies of them that were ever made have what was done to each, and nothing of what was
// done to others.
func TestCopiesOfLocks(t *testing.T) {
	for seed := range longtest.Seeds(t, 200, 5000) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { compareCopies(t, rand.New(rand.NewPCG(seed, 2)), 60) })
	}
}

func FuzzCopiesOfLocks(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, a, b uint64) { compareCopies(t, rand.New(rand.NewPCG(a, b)), 60) })
}

func compareCopies(t *testing.T, random *rand.Rand, steps int) {
	type pair struct {
		locks Locks
		plain plainLocks
	}
	copies := []pair{{}}
	draw := func() Lock {
		l := Lock{Owner: Owner{Mount: string('a' + rune(random.IntN(2))), ID: random.Uint64N(3)}, Exclusive: random.IntN(2) == 0}
		l.Start = random.Uint64N(bytesTried)
		l.End = l.Start + random.Uint64N(bytesTried-l.Start)
		if random.IntN(4) == 0 {
			l.Owner.Kind, l.Start, l.End = Flock, 0, EOF
		}
		if l.End == bytesTried-1 {
			l.End = EOF
		}
		return l
	}
	for step := range steps {
		i := random.IntN(len(copies))
		if len(copies) < 8 && random.IntN(4) == 0 {
			copies = append(copies, copies[i])
			i = len(copies) - 1
		}
		c, l := &copies[i], draw()
		switch as := shared; {
		case random.IntN(3) == 0:
			c.locks.Clear(l.Owner, l.Start, l.End)
			c.plain = c.plain.set(l, none)
		default:
			if l.Exclusive {
				as = exclusive
			}
			c.locks.Set(l)
			c.plain = c.plain.set(l, as)
		}
		for i, c := range copies {
			what := fmt.Sprintf("copy %d after step %d", i, step)
			for _, tr := range c.locks.of {
				checkTree(t, what, tr)
			}
			want := make(map[Lock]bool)
			for _, l := range c.plain.list() {
				want[l] = true
			}
			got := c.locks.All()
			if len(got) != len(want) || c.locks.Len() != len(want) || c.locks.Empty() != (len(want) == 0) {
				t.Fatalf("%s: %v, want %v", what, got, want)
			}
			for _, l := range got {
				if !want[l] {
					t.Fatalf("%s: %v, want %v", what, got, want)
				}
			}
			l := draw()
			by, blocked := c.locks.Conflict(l)
			if blocked != c.plain.conflict(l) || blocked && (!want[by] || !by.Conflicts(l)) {
				t.Fatalf("%s: %v conflicts with %v: %v, have %v", what, l, by, blocked, got)
			}
			o := draw().Owner
			by, blocked = c.locks.conflictOf(o, l)
			if blocked != slices.ContainsFunc(got, func(h Lock) bool { return h.Owner == o && h.Conflicts(l) }) || blocked && (!want[by] || by.Owner != o || !by.Conflicts(l)) {
				t.Fatalf("%s: %v conflicts with %v of %v: %v, have %v", what, l, by, o, blocked, got)
			}
			if any, _ := c.plain.any(l, func(b byte) bool { return b != none }); c.locks.Any(l.Owner, l.Start, l.End) != any {
				t.Fatalf("%s: any of %v: %v, have %v", what, l, !any, got)
			}
			if _, all := c.plain.any(l, func(b byte) bool { return b != none && l.Exclusive == (b == exclusive) }); c.locks.Has(l) != all {
				t.Fatalf("%s: has %v: %v, have %v", what, l, !all, got)
			}
		}
	}
}

// checkTree makes sure that a tree knows what is below it, and has it in order.
func checkTree(t *testing.T, what string, tr *tree) {
	t.Helper()
	if tr == nil {
		return
	}
	all := tr.all(nil)
	for i := range len(all) - 1 {
		if all[i].compare(all[i+1].Owner, all[i+1].Start) <= 0 {
			t.Fatalf("%s: %v before %v", what, all[i], all[i+1])
		}
	}
	var exclusive int
	start, end := all[0].Start, all[0].End
	for _, l := range all {
		start, end = min(start, l.Start), max(end, l.End)
		if l.Exclusive {
			exclusive++
		}
	}
	if tr.n != len(all) || tr.exclusive != exclusive || tr.start != start || tr.end != end {
		t.Fatalf("%s: %+v has %v", what, *tr, all)
	}
	for _, below := range [...]*tree{tr.left, tr.right} {
		if below != nil && below.weight > tr.weight {
			t.Fatalf("%s: the lighter one is above", what)
		}
		checkTree(t, what, below)
	}
}
