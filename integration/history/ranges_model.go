package history

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
	"golang.org/x/sys/unix"
)

// rangeAct is a call as the model of RangesFile sees it.
type rangeAct struct {
	kind      kind
	owner     int
	units     Units
	exclusive bool
	number    int64
	perhaps   bool // it failed: it was done, or it was not
	from      *Op
}

// lost is the end of all locks of an owner, which nobody sees.
const lost kind = "lose"

// owners is how many may have locks at once. The number of an owner is given to another one when
// nothing of the former can happen any more.
const owners = 64

// lockedUnit is the state of a unit.
type lockedUnit struct {
	readers uint64 // a bit for each
	writer  int    // 0: none; else its number + 1
	number  int64
}

type lockedUnits [units]lockedUnit

// free reports whether the owner could lock units.
func (f *lockedUnits) free(u Units, owner int, exclusive bool) bool {
	for i := u.From; i <= u.To; i++ {
		if w := f[i].writer; w != 0 && w != owner+1 || exclusive && f[i].readers&^(1<<owner) != 0 {
			return false
		}
	}
	return true
}

func (f *lockedUnits) unlock(u Units, owner int) {
	for i := u.From; i <= u.To; i++ {
		f[i].readers &^= 1 << owner
		if f[i].writer == owner+1 {
			f[i].writer = 0
		}
	}
}

func (f *lockedUnits) lock(u Units, owner int, exclusive bool) {
	f.unlock(u, owner)
	for i := u.From; i <= u.To; i++ {
		if exclusive {
			f[i].writer = owner + 1
		} else {
			f[i].readers |= 1 << owner
		}
	}
}

// next returns the states after a call; none if it cannot have been.
func (s rangeAct) next(f lockedUnits) (after []lockedUnits) {
	if s.perhaps {
		after = append(after, f)
	}
	at := &f[s.units.From]
	switch s.kind {
	case locked:
		if !f.free(s.units, s.owner, s.exclusive) {
			return after
		}
		f.lock(s.units, s.owner, s.exclusive)
	case refused:
		if f.free(s.units, s.owner, s.exclusive) {
			return after
		}
	case asked: // and it was told that they are free
		if !f.free(s.units, s.owner, s.exclusive) {
			return after
		}
	case unlocked:
		f.unlock(s.units, s.owner)
	case lost:
		f.unlock(Units{0, units - 1}, s.owner)
	case readUnit:
		if at.number != s.number || at.writer != s.owner+1 && at.readers&(1<<s.owner) == 0 {
			return after
		}
	case WroteUnit:
		if at.writer != s.owner+1 {
			return after
		}
		at.number = s.number
	default:
		panic(s.kind)
	}
	return append(after, f)
}

// rangesModel is a file whose units are locked by fcntl(2).
var rangesModel = porcupine.NondeterministicModel{
	Init: func() []any { return []any{lockedUnits{}} },
	Step: func(state, input, _ any) (after []any) {
		for _, f := range input.(rangeAct).next(state.(lockedUnits)) {
			after = append(after, f)
		}
		return after
	},
}

// slow is how long a call takes that may have met a fault: a try without an answer is refused after
// ⅛ TTL, and an unlock is told by then.
const slow = int64(200 * time.Millisecond)

// closesLate is how long after a close the locks of an open file may stand. The kernel lets the program
// go on, and then tells the view.
const closesLate = int64(6 * time.Second)

// checkRanges returns what is wrong with the calls on RangesFile: nothing, if there is an order of
// them, each between its begin and its end, in which
//
//   - units are locked only if no other owner has them, unless both read;
//   - a try is refused, if nobody waits or meets a fault, only if another owner has a unit;
//   - an owner of a unit reads the number that was written last, and nobody else writes one.
//
// Locks may be lost at any time after the last call that proves them: a write, a lock, or a close.
func (h *history) checkRanges() error {
	var acts []porcupine.Operation
	add := func(s rangeAct, call, ret int64) {
		acts = append(acts, porcupine.Operation{Input: s, Call: call, Return: ret})
	}
	var free [owners]int64 // the number is free from then on
	for _, life := range h.lives() {
		owner := slices.IndexFunc(free[:], func(since int64) bool { return since < life[0].Call })
		if owner < 0 {
			return errors.New("more programs have locked ranges at once than the check has numbers for")
		}
		last := life[len(life)-1]
		over := max(last.Call, last.Return) + slack // nothing of it happens any more
		proof := 0                                  // the last
		for i, o := range life {
			if o.ok() && (o.Kind == locked || o.Kind == WroteUnit || o.Kind == Closed) {
				proof = i
			}
		}
		for i, o := range life {
			s := rangeAct{kind: o.Kind, owner: owner, units: o.Units, exclusive: o.Exclusive, number: o.Number, from: o}
			switch {
			case o.Kind == opened || o.Kind == Closed:
			case o.Kind == readUnit && (!o.ok() || i > proof):
			case o.Kind == asked && (!o.ok() || i > proof || !o.Free):
			case o.Kind == locked && o.Errno == unix.EDEADLK:
			case o.Kind == locked && o.Errno == unix.EAGAIN:
				if !h.rangesExcuse(o) && i < proof {
					s.kind = refused
					add(s, o.Call, o.Return)
				}
			case !o.ok():
				s.perhaps = true
				add(s, o.Call, over)
			default:
				add(s, o.Call, o.Return)
			}
		}
		if last.Kind == Closed && last.ok() && last.Return-last.Call < slow {
			over = last.Return
			if life[0].OFD {
				over += closesLate
			}
		}
		add(rangeAct{kind: lost, owner: owner, from: life[proof]}, life[proof].Call, over)
		free[owner] = over
	}
	switch result, info := porcupine.CheckOperationsVerbose(rangesModel.ToModel(), acts, checkTimeout); result {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("%s: not decided in time whether %d calls are linearizable", RangesFile, len(acts))
	default:
		return fmt.Errorf("%s: not linearizable: %s", RangesFile, stuckRanges(acts, info))
	}
}

// lives are the calls of each open of the file, by when it was opened.
func (h *history) lives() (lives [][]*Op) {
	at := make(map[string]int)
	for i := range h.ranges {
		o := &h.ranges[i]
		n, ok := at[o.Hold]
		if !ok {
			if !o.ok() {
				continue // it was not opened
			}
			n = len(lives)
			at[o.Hold] = n
			lives = append(lives, nil)
		}
		lives[n] = append(lives[n], o)
	}
	slices.SortFunc(lives, func(a, b []*Op) int { return int(a[0].Call - b[0].Call) })
	return lives
}

// rangesExcuse reports whether a refusal can be due to a request that waits for the units, or to a
// fault: the answer came late, or another's call that began before has failed or come late.
func (h *history) rangesExcuse(o *Op) bool {
	if o.Return-o.Call >= slow {
		return true
	}
	for i := range h.ranges {
		other := &h.ranges[i]
		if other.Hold == o.Hold || other.Call >= o.Return || other.Kind == opened {
			continue
		}
		late := other.Return == 0 || other.Return+slack > o.Call
		waits := other.Kind == locked && !other.Try && other.Units.meets(o.Units) && (other.Return == 0 || other.Return > o.Call)
		faulty := !other.ok() && other.Errno != unix.EAGAIN && other.Errno != unix.EDEADLK ||
			other.Return-other.Call >= slow && (other.Kind != locked || other.Try)
		if waits || late && faulty {
			return true
		}
	}
	return false
}

// stuckRanges shows where the longest order that was found ends.
func stuckRanges(acts []porcupine.Operation, info porcupine.LinearizationInfo) string {
	longest := longestOrder(info)
	done := make(map[int]bool)
	for _, i := range longest {
		done[i] = true
	}
	text := fmt.Sprintf("%d of %d calls are in order; the last of them, and what cannot follow:", len(longest), len(acts))
	show := func(i int) {
		s := acts[i].Input.(rangeAct)
		text += fmt.Sprintf("\n\t%s %v of %s on %s, exclusive %v, number %d, from %d to %d",
			s.kind, s.units, s.from.Hold, s.from.Mount, s.exclusive, s.number, acts[i].Call, acts[i].Return)
	}
	for _, i := range longest[max(0, len(longest)-20):] {
		show(i)
	}
	text += "\n\t--"
	for _, i := range possible(acts, done) {
		show(i)
	}
	return text
}
