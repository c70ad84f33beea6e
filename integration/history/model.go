package history

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
	"golang.org/x/sys/unix"
)

// act is a call as the model of a file sees it.
type act struct {
	kind   kind
	hold   string
	token  int64  // acquired: 0 if not known for sure
	after  int64  // acquired: the largest token that is smaller, and known
	record string // readLast: the last one; wrote: the new one; cut: the one that is last again
	from   *Op
}

// checkTimeout is when a history counts as too long to be decided, on an overloaded machine too.
const checkTimeout = 10 * time.Minute

// released is the end of a hold, which nobody sees: some time after the call
// that brings it about has begun.
const released kind = "release"

// refused is an open that did not get the lock.
const refused kind = "refuse"

// lockedFile is the state of a file and its lock.
type lockedFile struct {
	holder string // "" if it is free
	token  int64  // the largest that was granted
	to     string // the hold it was granted to
	last   string // its last record
}

// fileModel is a file whose writers exclude each other.
var fileModel = porcupine.Model{
	Init: func() any { return lockedFile{} },
	Step: func(state, input, _ any) (bool, any) {
		f, s := state.(lockedFile), input.(act)
		mine := f.holder == s.hold
		switch s.kind {
		case Acquired:
			// As all are granted in order, none is left out; to say so here saves the
			// search many ways that lead nowhere.
			next := s.token == 0 || s.after == f.token || s.token == f.token && joins(s.hold, f.to)
			return f.holder == "" && next, lockedFile{s.hold, max(f.token, s.token), s.hold, f.last}
		case refused:
			return f.holder != "", f
		case readLast:
			return mine && s.record == f.last, f
		case Wrote, cut:
			f.last = s.record
			return mine, f
		case moved: // by its holder, or by an owner that has lost it and locks its names anew
			f.last = ""
			return mine || f.holder == "", f
		case released:
			if mine {
				f.holder = ""
			}
			return true, f
		}
		panic(s.kind)
	},
}

// slack is how much later than an open that failed its entry may stand yet.
const slack = int64(20 * time.Second)

// linearizable looks for an order of the calls that the model allows.
func (h *history) linearizable(file string, holds map[string]*hold) error {
	present := h.present(file)
	var ops []porcupine.Operation
	clients := make(map[string]int)
	add := func(s act, from, to int64) {
		if _, ok := clients[s.from.Writer]; !ok {
			clients[s.from.Writer] = len(clients)
		}
		if to == 0 {
			to = math.MaxInt64
		}
		ops = append(ops, porcupine.Operation{ClientId: clients[s.from.Writer], Input: s, Call: from, Return: to})
	}
	at := func(s act, o *Op) { s.hold, s.from = o.Hold, o; add(s, o.Call, o.Return) }

	var tokens []int64
	for _, held := range holds {
		if held.known() {
			tokens = append(tokens, held.token.Token)
		}
	}
	slices.Sort(tokens)
	for _, name := range sorted(holds) {
		held := holds[name]
		known := held.known()
		grant := act{kind: Acquired}
		if known {
			grant.token = held.token.Token
			if i, _ := slices.BinarySearch(tokens, grant.token); i > 0 {
				grant.after = tokens[i-1]
			}
		}
		at(grant, held.acquired)
		last := ""
		if known && held.read != nil && held.read.ok() {
			last = held.read.Record
			at(act{kind: readLast, record: last}, held.read)
		}
		for _, w := range held.writes {
			if w.ok() || present[w.Record] > 0 { // of a failed one, the file knows
				before := last
				last = w.Record
				taken := held.cut != nil && held.cut.Record == w.Record
				at(act{kind: Wrote, record: last}, w)
				if taken && (held.cut.ok() || present[w.Record] == 0) {
					last = before
					at(act{kind: cut, record: before}, held.cut)
				}
			}
		}
		if held.moved != nil && (held.moved.ok() || h.archives[file+"."+name]) {
			at(act{kind: moved}, held.moved)
		}
		// The lock follows a file that is moved; and may be lost at any time, if
		// close does not deny it. Calls that succeed come before that. A daemon that is stopped right
		// before it answers an open gives the answer late, and all that follows fails.
		free := held.acquired.Return
		if !held.proven {
			free = held.acquired.Call
		}
		if held.closed != nil && held.closed.ok() {
			if free = held.closed.Call; held.moved != nil {
				free = held.moved.Call
			}
		}
		add(act{kind: released, hold: name, from: held.acquired}, free, 0)
	}
	for i := range h.ops {
		o := &h.ops[i]
		if o.Kind == Acquired && o.File == file && (o.Errno == unix.EAGAIN || o.Errno == unix.EBUSY) && !h.excused(o) {
			at(act{kind: refused}, o)
		}
	}
	switch result, info := porcupine.CheckOperationsVerbose(fileModel, ops, checkTimeout); result {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("%s: not decided in time whether %d calls are linearizable", file, len(ops))
	default:
		return fmt.Errorf("%s: not linearizable: %s", file, stuck(ops, info))
	}
}

// excused reports whether a refusal can be due to the entry of an open that
// failed, which nobody sees.
func (h *history) excused(o *Op) bool {
	for i := range h.ops {
		other := &h.ops[i]
		if other.Kind == Acquired && other.File == o.File && other.Hold != o.Hold && !other.ok() &&
			!(other.Try && other.Errno == unix.EAGAIN) &&
			other.Call < o.Return && (other.Return == 0 || other.Return+slack > o.Call) {
			return true
		}
		// A rename by an owner that has lost the file locks its name for a moment, and one of a directory
		// locks the files below.
		renamed := other.Kind == moved && other.File == o.File || other.Kind == shifted && strings.HasPrefix(o.File, other.File+"/")
		if renamed && other.Call < o.Return && (other.Return == 0 || other.Return+slack > o.Call) {
			return true
		}
	}
	return false
}

// longestOrder is the longest order of calls that was found.
func longestOrder(info porcupine.LinearizationInfo) (longest []int) {
	for _, partition := range info.PartialLinearizations() {
		for _, l := range partition {
			if len(l) > len(longest) {
				longest = l
			}
		}
	}
	return longest
}

// possible reports which calls might come next, after those that are done.
func possible(ops []porcupine.Operation, done map[int]bool) (next []int) {
	limit := int64(math.MaxInt64)
	for i, o := range ops {
		if !done[i] {
			limit = min(limit, o.Return)
		}
	}
	for i, o := range ops {
		if !done[i] && o.Call <= limit {
			next = append(next, i)
		}
	}
	return next
}

// stuck shows where the longest order that was found ends.
func stuck(ops []porcupine.Operation, info porcupine.LinearizationInfo) string {
	longest := longestOrder(info)
	done := make(map[int]bool)
	state := fileModel.Init()
	for _, i := range longest {
		done[i] = true
		_, state = fileModel.Step(state, ops[i].Input, nil)
	}
	var s strings.Builder
	fmt.Fprintf(&s, "%d of %d calls are in order, then the file is %+v; next:", len(longest), len(ops), state)
	for _, i := range possible(ops, done) {
		o, in := ops[i], ops[i].Input.(act)
		fmt.Fprintf(&s, "\n\t%s of %s on %s, token %d, %q, from %d to %d", in.kind, in.hold, in.from.Mount, in.token, in.record, o.Call, o.Return)
	}
	return s.String()
}
