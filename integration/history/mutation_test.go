package history

import (
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// sample is a small history with a bit of everything: a waits for nobody, b for
// a, c is refused; a loses its lock, b moves the file away, c makes it anew.
func sample() *history {
	h := &history{archives: map[string]bool{"f.b.2": true}}
	do := func(hold string, kind kind, call, ret int64, more ...func(*Op)) {
		writer, _, _ := strings.Cut(hold, ".")
		o := Op{Hold: hold, File: "f", Kind: kind, Call: call, Return: ret, Writer: writer, Mount: "on-" + writer, PID: int(writer[0])}
		for _, f := range more {
			f(&o)
		}
		h.ops = append(h.ops, o)
	}
	token := func(n int64) func(*Op) { return func(o *Op) { o.Token = n * oneEntry } }
	rec := func(r string) func(*Op) { return func(o *Op) { o.Record = r } }
	eio := func(o *Op) { o.Errno = unix.EIO }

	do("a.1", Acquired, 10, 20)
	do("a.1", readTok, 21, 22, token(5))
	do("a.1", readLast, 23, 24, rec(""))
	do("a.1", Wrote, 25, 26, rec("5 a.1 0"))
	do("a.1", Wrote, 27, 28, rec("5 a.1 1"))
	do("c.1", Acquired, 28, 29, func(o *Op) { o.Try, o.Errno = true, unix.EAGAIN })
	do("a.1", Closed, 30, 31)

	do("b.1", Acquired, 15, 32)
	do("b.1", readTok, 33, 34, token(6))
	do("b.1", readLast, 35, 36, rec("5 a.1 1"))
	do("b.1", Wrote, 37, 38, rec("6 b.1 0"))
	do("b.1", Wrote, 39, 40, rec("6 b.1 1"))
	do("b.1", cut, 41, 42, rec("6 b.1 1"))
	do("b.1", Closed, 43, 44)

	do("b.3", Acquired, 45, 46) // again, before the end of b.1 was seen
	do("b.3", readTok, 46, 47, token(6))
	do("b.3", readLast, 46, 47, rec("6 b.1 0"))
	do("b.3", Wrote, 47, 48, rec("6 b.3 0"))
	do("b.3", Closed, 48, 49)

	do("a.2", Acquired, 50, 51)
	do("a.2", readTok, 52, 53, token(9))
	do("a.2", readLast, 54, 55, rec("6 b.3 0"))
	do("a.2", Wrote, 56, 57, rec("9 a.2 0"))
	do("a.2", Wrote, 58, 59, rec("9 a.2 1"), eio)
	do("a.2", Closed, 60, 61, eio)

	do("a.3", Acquired, 62, 76) // lost before it is answered
	do("a.3", Wrote, 77, 78, rec("0 a.3 0"), eio)
	do("a.3", Closed, 79, 80, eio)

	do("b.2", Acquired, 62, 70)
	do("b.2", readTok, 71, 72, token(12))
	do("b.2", readLast, 73, 74, rec("9 a.2 1"))
	do("b.2", Wrote, 75, 76, rec("12 b.2 0"))
	do("b.2", moved, 77, 78)
	do("b.2", Closed, 79, 80)

	do("c.2", Acquired, 81, 90)
	do("c.2", readTok, 91, 92, token(15))
	do("c.2", readLast, 93, 94, rec(""))
	do("c.2", Wrote, 95, 0, rec("15 c.2 0")) // killed meanwhile

	h.files = map[string]string{"f": "5 a.1 0\n5 a.1 1\n6 b.1 0\n6 b.3 0\n9 a.2 0\n9 a.2 1\n12 b.2 0\n15 c.2 0\n"}
	h.entries = map[string]map[int64]lab.Entry{"f": {
		5: {Node: "on-a", PID: 'a'}, 6: {Node: "on-b", PID: 'b'}, 7: {Node: "on-c", PID: 'c'}, // 7 gave up
		9: {Node: "on-a", PID: 'a'}, 12: {Node: "on-b", PID: 'b'}, 15: {Node: "on-c", PID: 'c'},
	}}
	h.ends = map[string]map[int64]int64{"f": {5: 8, 7: 10, 6: 11, 9: 13, 12: 14}}
	return h
}

// find returns the nth call of a kind of a hold.
func (h *history) find(hold string, k kind, n int) *Op {
	i := slices.IndexFunc(h.ops, func(o Op) bool { n -= btoi(o.Hold == hold && o.Kind == k); return n < 0 })
	return &h.ops[i]
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// The checker of histories takes one that is right, and sees each thing that can
// be wrong with it.
func TestHistoryChecker(t *testing.T) {
	if err := sample().check(); err != nil {
		t.Fatalf("a history that is right: %v", err)
	}
	bytes := func(old, new string) func(*history) {
		return func(h *history) { h.files["f"] = strings.Replace(h.files["f"], old, new, 1) }
	}
	at := func(hold string, k kind, n int, call, ret int64) func(*history) {
		return func(h *history) { o := h.find(hold, k, n); o.Call, o.Return = call, ret }
	}
	for name, c := range map[string]struct {
		change func(*history)
		says   string
	}{
		"a confirmed record is missing":               {bytes("6 b.1 0\n", ""), `"6 b.1 0" was confirmed and is not there`},
		"the last owner's record was overwritten":     {bytes("9 a.2 0\n9 a.2 1\n12", "12"), "is not there"},
		"a record stands there twice":                 {bytes("6 b.1 0\n", "6 b.1 0\n6 b.1 0\n"), "2 times"},
		"a record of nobody's":                        {bytes("6 b.1 0\n", "6 b.1 7\n"), "nobody wrote"},
		"a torn record":                               {bytes("6 b.1 0\n", "6 b.1 0"), "nobody wrote"},
		"zeros":                                       {bytes("6 b.1 0\n", "6 b.1 0\n\x00\x00\x00"), "nobody wrote"},
		"a truncated record is there":                 {bytes("6 b.1 0\n", "6 b.1 0\n6 b.1 1\n"), "was taken back and is there"},
		"a token goes back":                           {bytes("5 a.1 1\n6 b.1 0\n", "6 b.1 0\n5 a.1 1\n"), "token 5 after 6"},
		"a fenced write lands behind the new owner's": {bytes("9 a.2 1\n12 b.2 0\n", "12 b.2 0\n9 a.2 1\n"), "token 9 after 12"},
		"a hold's records in another order":           {bytes("5 a.1 0\n5 a.1 1\n", "5 a.1 1\n5 a.1 0\n"), "record 0 after 1"},

		"two have the lock":                  {at("a.1", Closed, 0, 45, 46), "not linearizable"},
		"a write after another's grant":      {at("a.1", Wrote, 1, 37, 38), "not linearizable"},
		"a write after the loss":             {at("a.2", Wrote, 0, 73, 74), "not linearizable"},
		"a write after the close":            {at("b.1", Wrote, 1, 52, 53), "not linearizable"},
		"the last owner's write is not seen": {func(h *history) { h.find("b.1", readLast, 0).Record = "5 a.1 0" }, "not linearizable"},
		"a truncation is not seen":           {func(h *history) { h.find("a.2", readLast, 0).Record = "6 b.1 1" }, "not linearizable"},
		"a move is not seen": {func(h *history) {
			h.find("c.2", Wrote, 0).Return = 96
			h.find("c.2", readLast, 0).Record = "12 b.2 0"
		}, "not linearizable"},
		"a move of another's file":            {at("b.2", moved, 0, 46, 47), "not linearizable"},
		"refused though nobody has opened it": {at("c.1", Acquired, 0, 1, 2), "not linearizable"},
		"one token for two":                   {func(h *history) { h.find("a.2", readTok, 0).Token = 6 * oneEntry }, "not linearizable"},
		"an old token again":                  {func(h *history) { h.find("b.2", readTok, 0).Token = 6 * oneEntry }, "not linearizable"},
		"an earlier hold's record is later":   {bytes("6 b.1 0\n6 b.3 0\n", "6 b.3 0\n6 b.1 0\n"), "token 6 of b.1"},
		"a later grant has a smaller token":   {func(h *history) { h.find("a.2", readTok, 0).Token = 4 * oneEntry }, "not linearizable"},

		"a token that etcd has not given": {func(h *history) { delete(h.entries["f"], 9) }, "of revision 9"},
		"the token of another program":    {func(h *history) { h.entries["f"][9] = lab.Entry{Node: "on-a", PID: 1} }, "of revision 9"},
		"the token of another mount":      {func(h *history) { h.entries["f"][9] = lab.Entry{Node: "on-b", PID: 'a'} }, "of revision 9"},
		"a raised token without an entry": {func(h *history) {
			delete(h.entries["f"], 9)
			h.find("a.2", readTok, 0).Token++
		}, "turn 1 of revision 9"},
		"granted ahead of who came earlier":   {func(h *history) { h.ends["f"][5] = 12 }, "while 5, which came earlier"},
		"granted ahead of who waits for ever": {func(h *history) { delete(h.ends["f"], 7) }, "while 7, which came earlier"},
	} {
		t.Run(name, func(t *testing.T) {
			h := sample()
			c.change(h)
			if err := h.check(); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
		})
	}
}

// The checker sees a directory that moves over a file that is open.
func TestCheckerOfDirectories(t *testing.T) {
	for name, c := range map[string]struct {
		call, ret int64
		wrong     bool
	}{
		"before an open":               {1, 9, false},
		"while it waits":               {16, 19, false},
		"until it is granted":          {31, 33, false},
		"while a file is open":         {25, 29, true},
		"after a write in it":          {38, 40, true},
		"after a close":                {32, 33, false},
		"after the lock may be lost":   {58, 59, false},
		"before the lock may be lost":  {54, 55, true},
		"it did not come back to tell": {25, 0, false},
	} {
		h := sample()
		for i := range h.ops {
			h.ops[i].File = "d/f"
		}
		h.files = map[string]string{"d/f": h.files["f"]}
		h.archives, h.entries = map[string]bool{"d/f.b.2": true}, nil
		h.ops = append(h.ops, Op{Kind: shifted, File: "d", Hold: "m.1", Writer: "m", Call: c.call, Return: c.ret},
			Op{Kind: shifted, File: "d", Hold: "m.2", Writer: "m", Call: 25, Return: 26, Errno: unix.EBUSY})
		// A try meets the directory's lock.
		h.ops = append(h.ops, Op{Kind: Acquired, File: "d/f", Hold: "m.3", Writer: "m", Try: true, Call: c.call, Return: c.call + 1, Errno: unix.EAGAIN})
		if err := h.check(); (err != nil) != c.wrong || err != nil && !strings.Contains(err.Error(), "moved the directory") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A call that is told too early that the service does not answer is wrong.
func TestUnanswered(t *testing.T) {
	seconds := func(n float64) int64 { return int64(n * float64(time.Second)) }
	tr := &Trial{Writers: []*Recorded{{Mount: "a", ops: []Op{
		{Kind: Acquired, Call: seconds(100), Return: seconds(101)}, {Kind: readTok, Token: oneEntry, Call: seconds(101), Return: seconds(102)},
	}}}}
	for name, c := range map[string]struct {
		op          Op
		from, until float64
		want        bool
	}{
		"a try after a while":             {Op{Kind: Acquired, Try: true}, 102, 103.9, true},
		"a try at once":                   {Op{Kind: Acquired, Try: true}, 102, 103.8, false},
		"a try in an old outage":          {Op{Kind: Acquired, Try: true}, 105, 105.2, true},
		"a creation in a new outage":      {Op{Kind: Acquired}, 102, 104.9, false},
		"a creation in an old outage":     {Op{Kind: Acquired}, 102, 105, true},
		"a rename in an old outage":       {Op{Kind: moved}, 105, 105.2, true},
		"a write in an old outage":        {Op{Kind: Wrote}, 102, 110, false},
		"a try of a range after a while":  {Op{Kind: locked, Try: true}, 102, 103.9, true},
		"a question of one after a while": {Op{Kind: asked}, 102, 103.9, true},
		"a question of one at once":       {Op{Kind: asked}, 102, 103.8, false},
		"a range that is waited for":      {Op{Kind: locked}, 102, 110, false},
		"a range that is given back":      {Op{Kind: unlocked}, 102, 110, false},
	} {
		o := c.op
		o.Mount, o.Call, o.Return, o.Errno = "a", seconds(c.from), seconds(c.until), unix.ENOLCK
		if got := tr.Unanswered(o); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if tr.Unanswered(Op{Kind: Acquired, Try: true, Return: seconds(200), Errno: unix.EIO}) {
		t.Error("another errno")
	}
}
