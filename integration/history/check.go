// Package history records what programs do to files under locks, and checks it: what they
// saw, what the files hold, and the entries that the lock service has had are one history, in
// which writers exclude each other.
//
//	writer   a program at work
//	trial    a volume with many of them, and what they report
//	model    what may be seen of a file
//	check    what is wrong with a history
package history

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/lockmgr"
)

// oneEntry is how far apart the tokens of two entries are.
var oneEntry = lockmgr.FencingToken(1, 0)

// history is what writers did to files, as seen by themselves, by the backing
// files, and by etcd.
type history struct {
	ops      []Op
	ranges   []Op                           // on RangesFile
	files    map[string]string              // bytes: those of its archives in order, and its own
	archives map[string]bool                // names of archives
	entries  map[string]map[int64]lab.Entry // by file and create revision; nil: not known, or not all
	ends     map[string]map[int64]int64     // revision at which an entry was deleted

	delegations map[int64]lab.Delegation // by create revision
	putLate     bool                     // see lab.Past
}

// hold is one successful open and what was done under it.
type hold struct {
	acquired, token, read, moved, closed *Op
	writes                               []*Op
	cut                                  *Op
	// proven is set if a later call under the lock succeeded: then what was read
	// before was read under it.
	proven bool
}

// known reports whether it is sure which token the hold has.
func (h *hold) known() bool { return h.proven && h.token != nil && h.token.ok() }

// check returns what is wrong with a history: nothing, if
//
//   - each record that was confirmed is in its file, once, and none that was not written;
//   - tokens never go back in a file, each is of one owner, and a hold's records are in order,
//     so that nobody's stand between another's;
//   - there is an order of all calls, each between its begin and its end, in which an
//     open is granted only when nobody has the file, with a larger token than the last,
//     sees the last record, and is refused only when somebody has it; and writes
//     succeed only while the lock is held (a lost one is held until a moment unknown);
//   - each token is of an entry of that program, or of one that its mount keeps, or of a time when
//     a directory above was delegated to its mount, and no entry was overtaken: those created
//     earlier were gone before a later one was let go, and none was put below a directory that
//     was delegated to another mount. With Leases one may be put there, and is not granted;
//   - no directory moved while a file below it was open;
//   - checkRanges finds nothing.
func (h *history) check() error {
	holds := h.holds()
	var errs []error
	for _, file := range sorted(h.files) {
		errs = append(errs, h.checkBytes(file, holds[file]), h.linearizable(file, holds[file]))
		if entries := h.entries[file]; entries != nil {
			errs = append(errs, h.checkEntries(file, holds[file], entries))
		}
		errs = append(errs, h.checkShifts(file, holds[file]))
	}
	errs = append(errs, h.checkRanges())
	return errors.Join(errs...)
}

func sorted[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// holds returns the holds by file and by name.
func (h *history) holds() map[string]map[string]*hold {
	all := make(map[string]map[string]*hold)
	for i := range h.ops {
		o := &h.ops[i]
		if o.Kind == shifted {
			continue
		}
		if all[o.File] == nil {
			all[o.File] = make(map[string]*hold)
		}
		if o.Kind == Acquired {
			if o.ok() {
				all[o.File][o.Hold] = &hold{acquired: o}
			}
			continue
		}
		held := all[o.File][o.Hold]
		switch o.Kind {
		case readTok:
			held.token = o
		case readLast:
			held.read = o
		case Wrote:
			held.writes = append(held.writes, o)
		case cut:
			held.cut = o
		case moved:
			held.moved = o
		case Closed:
			held.closed = o
		}
		// A rename takes the lock of its names by itself.
		held.proven = held.proven || o.ok() && (o.Kind == Wrote || o.Kind == cut || o.Kind == Closed)
	}
	return all
}

// checkBytes compares the records of a file with the writes.
func (h *history) checkBytes(file string, holds map[string]*hold) error {
	written := make(map[string]*Op)
	for _, held := range holds {
		for _, w := range held.writes {
			written[w.Record] = w
		}
	}
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(file+": "+format, args...))
	}
	present := h.present(file)
	var last struct {
		token int64
		hold  string
		seq   int
	}
	for i, r := range strings.Split(strings.TrimSuffix(h.files[file], "\n"), "\n") {
		if h.files[file] == "" {
			break
		}
		fields := strings.Fields(r)
		if len(fields) != 3 || written[r] == nil {
			wrong("line %d: nobody wrote %q", i+1, r)
			continue
		}
		if present[r] > 1 {
			wrong("line %d: %q stands there %d times", i+1, r, present[r])
		}
		token, _ := strconv.ParseInt(fields[0], 10, 64)
		seq, _ := strconv.Atoi(fields[2])
		switch {
		case token < last.token:
			wrong("line %d: token %d after %d", i+1, token, last.token)
		case token == last.token && fields[1] != last.hold && !joins(fields[1], last.hold):
			wrong("line %d: token %d of %s is %s's too", i+1, token, fields[1], last.hold)
		case fields[1] == last.hold && seq <= last.seq:
			wrong("line %d: record %d after %d", i+1, seq, last.seq)
		}
		last.token, last.hold, last.seq = token, fields[1], seq
	}
	for _, name := range sorted(holds) {
		held := holds[name]
		for _, w := range held.writes {
			taken := held.cut != nil && held.cut.Record == w.Record
			switch {
			case w.ok() && !taken && present[w.Record] == 0:
				wrong("%q was confirmed and is not there", w.Record)
			case taken && held.cut.ok() && present[w.Record] != 0:
				wrong("%q was taken back and is there", w.Record)
			}
		}
	}
	return errors.Join(errs...)
}

// joins reports whether a hold can have the token of an earlier one: of the same
// program, which opened the file again before the end of the first was seen.
func joins(hold, earlier string) bool {
	writer, number, _ := strings.Cut(hold, ".")
	before, than, _ := strings.Cut(earlier, ".")
	n, _ := strconv.Atoi(number)
	m, _ := strconv.Atoi(than)
	return writer == before && n > m
}

// present counts the records of a file.
func (h *history) present(file string) map[string]int {
	n := make(map[string]int)
	for line := range strings.Lines(h.files[file]) {
		n[strings.TrimSuffix(line, "\n")]++
	}
	return n
}

// checkEntries compares the tokens with the entries that etcd has had.
func (h *history) checkEntries(file string, holds map[string]*hold, entries map[int64]lab.Entry) error {
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(file+": "+format, args...))
	}
	granted := make(map[int64]bool)
	for _, name := range sorted(holds) {
		held := holds[name]
		if !held.known() {
			continue
		}
		at, turn := held.token.Token/oneEntry, held.token.Token%oneEntry
		if h.delegated(file, held.acquired.Mount, at) {
			continue
		}
		entry, e := h.entryAt(file, held.acquired.Mount, at)
		if there, away := h.entryAt(shiftedTo(file), held.acquired.Mount, at); entry == 0 && there != 0 { // it was opened where it was
			entry, e = there, away
		}
		// A kept entry names its later holders, one after the other, and a token that was raised is of any.
		if entry == 0 || turn == 0 && (entry != at || e.PID != held.acquired.PID) {
			wrong("%s on %s, pid %d, has turn %d of revision %d, when etcd had %+v", name, held.acquired.Mount, held.acquired.PID, turn, at, e)
		}
		granted[entry] = true
	}
	var tokens []int64
	for token := range entries {
		tokens = append(tokens, token)
	}
	slices.Sort(tokens)
	late := make(map[int64]bool)
	for _, token := range tokens {
		for rev, d := range h.delegations {
			if !d.Over(file, token) || d.Node == entries[token].Node {
				continue
			}
			late[token] = h.putLate
			if !h.putLate || granted[token] {
				wrong("entry %d of %s was put while %s was delegated to %s (%d)", token, entries[token].Node, d.Path, d.Node, rev)
			}
		}
	}
	lastEnd, of := int64(0), int64(0)
	for _, token := range tokens {
		end, gone := h.ends[file][token]
		if !gone {
			end = 1 << 62
		}
		if granted[token] && end <= lastEnd {
			wrong("entry %d was granted and let go (revision %d) while %d, which came earlier, stood (until %d)", token, end, of, lastEnd)
		}
		if end > lastEnd && !late[token] {
			lastEnd, of = end, token
		}
	}
	return errors.Join(errs...)
}

// entryAt returns the entry by which a mount had a file at a revision: the one put then, or else its
// oldest that stood. 0: there is none.
func (h *history) entryAt(file, mount string, at int64) (entry int64, e lab.Entry) {
	if e, ok := h.entries[file][at]; ok && e.Node == mount {
		return at, e
	}
	for token, other := range h.entries[file] {
		end, gone := h.ends[file][token]
		if token < at && (!gone || end > at) && other.Node == mount && (entry == 0 || token < entry) {
			entry, e = token, other
		}
	}
	return entry, e
}

// checkShifts looks for a directory that moved while a file below it was open, and later proved
// to be locked still.
func (h *history) checkShifts(file string, holds map[string]*hold) error {
	for i := range h.ops {
		o := &h.ops[i]
		if o.Kind != shifted || !o.ok() || !strings.HasPrefix(file, o.File+"/") {
			continue
		}
		for _, name := range sorted(holds) {
			if held := holds[name]; held.acquired.Return < o.Call && o.Return < held.lastProof() {
				return fmt.Errorf("%s: %s had it open while %s moved the directory", file, name, o.Hold)
			}
		}
	}
	return nil
}

// lastProof is when the last call began that succeeded under the lock.
func (h *hold) lastProof() (at int64) {
	for _, o := range append([]*Op{h.cut, h.closed}, h.writes...) {
		if o != nil && o.ok() {
			at = max(at, o.Call)
		}
	}
	return at
}

// delegated reports whether a directory above a file was delegated to a mount at a revision.
func (h *history) delegated(file, mount string, at int64) bool {
	for _, d := range h.delegations {
		if d.Node == mount && d.Over(file, at) {
			return true
		}
	}
	return false
}

// sight sums up what programs saw.
func (h *history) sight() string {
	type result struct {
		kind  kind
		errno syscall.Errno
	}
	count := make(map[result]int)
	longest := make(map[kind]int64)
	for _, o := range slices.Concat(h.ops, h.ranges) {
		if o.Return == 0 {
			continue
		}
		count[result{o.Kind, o.Errno}]++
		longest[o.Kind] = max(longest[o.Kind], o.Return-o.Call)
	}
	var s []string
	kinds := []kind{Acquired, Wrote, cut, moved, Closed, shifted}
	if len(h.ranges) > 0 {
		kinds = append(kinds, locked, unlocked, asked, readUnit, WroteUnit)
	}
	for _, k := range kinds {
		part := fmt.Sprintf("%s: %d ok", k, count[result{k, 0}])
		var errnos []syscall.Errno
		for r := range count {
			if r.kind == k && r.errno != 0 {
				errnos = append(errnos, r.errno)
			}
		}
		slices.SortFunc(errnos, func(a, b syscall.Errno) int { return cmp.Compare(a, b) })
		for _, e := range errnos {
			part += fmt.Sprintf(", %d %s", count[result{k, e}], unix.ErrnoName(e))
		}
		s = append(s, part+fmt.Sprintf(", longest %.2f s", float64(longest[k])/1e9))
	}
	if n := len(h.delegations); n > 0 {
		s = append(s, fmt.Sprintf("%d delegations", n))
	}
	return strings.Join(s, "; ")
}

// String is all of it, for people.
func (h *history) String() string {
	var s strings.Builder
	ops := slices.Concat(h.ops, h.ranges)
	slices.SortFunc(ops, func(a, b Op) int { return cmp.Compare(a.Call, b.Call) })
	for _, o := range ops {
		fmt.Fprintf(&s, "%d %d %s %s.%s %v token %d %q %v", o.Call, o.Return, o.Mount, o.Hold, o.Kind, o.File, o.Token, o.Record, o.Errno)
		if o.File == RangesFile {
			fmt.Fprintf(&s, " %v exclusive %v try %v number %d free %v", o.Units, o.Exclusive, o.Try, o.Number, o.Free)
		}
		fmt.Fprintln(&s)
	}
	for _, file := range sorted(h.files) {
		fmt.Fprintf(&s, "\n%s:\n%s", file, h.files[file])
		for token, e := range h.entries[file] {
			fmt.Fprintf(&s, "entry %d: %+v, until %d\n", token, e, h.ends[file][token])
		}
	}
	return s.String()
}
