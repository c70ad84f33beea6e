package history

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// rangeSample is a small history of RangesFile: a and b read, b is refused to write, a writes and
// loses its lock, b writes then.
func rangeSample() *history {
	h := &history{}
	do := func(hold string, kind kind, call, ret int64, from, to int, more ...func(*Op)) {
		writer, _, _ := strings.Cut(hold, ".")
		o := Op{Hold: hold, File: RangesFile, Kind: kind, Call: call, Return: ret, Units: Units{from, to}, Writer: writer}
		for _, f := range more {
			f(&o)
		}
		h.ranges = append(h.ranges, o)
	}
	exclusive := func(o *Op) { o.Exclusive = true }
	try := func(o *Op) { o.Try = true }
	number := func(n int64) func(*Op) { return func(o *Op) { o.Number = n } }
	fails := func(e unix.Errno) func(*Op) { return func(o *Op) { o.Errno = e } }

	do("a.1", opened, 1, 2, 0, 0)
	do("b.1", opened, 1, 2, 0, 0)
	do("a.1", locked, 10, 11, 0, 3)
	do("b.1", locked, 12, 13, 1, 2, try)
	do("a.1", readUnit, 14, 15, 1, 1, number(0))
	do("b.1", locked, 16, 17, 2, 2, exclusive, try, fails(unix.EAGAIN))
	do("b.1", asked, 18, 19, 2, 2, exclusive)
	do("b.1", unlocked, 20, 21, 1, 1)
	do("a.1", locked, 22, 23, 0, 1, exclusive, try) // b still reads 2
	do("a.1", WroteUnit, 24, 25, 1, 1, number(7))
	do("b.1", asked, 26, 27, 1, 1)
	do("a.1", unlocked, 28, 29, 1, 1)
	do("b.1", locked, 30, 31, 1, 1)
	do("b.1", readUnit, 32, 33, 1, 1, number(7))
	do("b.1", locked, 34, 50, 3, 3, exclusive) // it waits for a
	do("a.1", WroteUnit, 36, 37, 0, 0, number(8))
	do("a.1", WroteUnit, 40, 41, 0, 0, number(9), fails(unix.EIO))
	do("a.1", Closed, 42, 43, 0, 0, fails(unix.EIO))
	do("b.1", WroteUnit, 51, 52, 3, 3, number(10))
	do("b.1", locked, 53, 54, 0, 0)
	do("b.1", readUnit, 55, 56, 0, 0, number(9))
	do("b.1", Closed, 57, 58, 0, 0)
	do("c.1", opened, 59, 60, 0, 0)
	do("c.1", locked, 61, 62, 0, 3, exclusive, try)
	do("c.1", readUnit, 63, 64, 3, 3, number(10))
	do("c.1", Closed, 65, 66, 0, 0)
	return h
}

// The checker of ranges takes a history that is right, and sees each thing that can be wrong.
func TestRangesChecker(t *testing.T) {
	if err := rangeSample().check(); err != nil {
		t.Fatalf("a history that is right: %v", err)
	}
	for name, change := range map[string]func(find func(hold string, k kind, n int) *Op){
		"two write":                        func(find func(string, kind, int) *Op) { find("b.1", locked, 3).Return = 35 },
		"one writes while another reads":   func(find func(string, kind, int) *Op) { find("a.1", locked, 1).Units.To = 2 },
		"an upgrade takes what it had not": func(find func(string, kind, int) *Op) { find("b.1", asked, 0).Free = true },
		"refused for nothing":              func(find func(string, kind, int) *Op) { o := find("b.1", locked, 1); o.Exclusive = false },
		"a write is not seen":              func(find func(string, kind, int) *Op) { find("b.1", readUnit, 0).Number = 0 },
		"a number from nowhere":            func(find func(string, kind, int) *Op) { find("c.1", readUnit, 0).Number = 11 },
		"a failed write is undone":         func(find func(string, kind, int) *Op) { find("b.1", readUnit, 1).Number = 7 },
		"a write after the unlock": func(find func(string, kind, int) *Op) {
			o := find("a.1", unlocked, 0)
			o.Units = Units{0, 1}
		},
		"a write without a lock":     func(find func(string, kind, int) *Op) { find("b.1", WroteUnit, 0).Units = Units{1, 1} },
		"free though another has it": func(find func(string, kind, int) *Op) { find("b.1", asked, 1).Free = true },
		"locked after the other's close began only": func(find func(string, kind, int) *Op) {
			o := find("c.1", locked, 0)
			o.Call, o.Return = 3, 56
			find("c.1", opened, 0).Call = 2
			find("b.1", Closed, 0).Call = 57
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := rangeSample()
			change(func(hold string, k kind, n int) *Op {
				for i := range h.ranges {
					if o := &h.ranges[i]; o.Hold == hold && o.Kind == k {
						if n == 0 {
							return o
						}
						n--
					}
				}
				t.Fatal("no such call")
				return nil
			})
			if err := h.check(); err == nil || !strings.Contains(err.Error(), "not linearizable") {
				t.Errorf("got %v, want that it is not linearizable", err)
			}
		})
	}
}

// The locks of an open file end a moment after its close, those of a process with it.
func TestRangesCheckerOfOpenFiles(t *testing.T) {
	for _, ofd := range []bool{true, false} {
		h := &history{ranges: []Op{
			{Hold: "a.1", Kind: opened, OFD: ofd, Call: 1, Return: 2},
			{Hold: "a.1", Kind: locked, Call: 3, Return: 4},
			{Hold: "a.1", Kind: Closed, Call: 5, Return: 6},
			{Hold: "b.1", Kind: opened, Call: 1, Return: 2},
			{Hold: "b.1", Kind: locked, Exclusive: true, Try: true, Errno: unix.EAGAIN, Call: 7, Return: 8},
			{Hold: "b.1", Kind: locked, Exclusive: true, Try: true, Call: 9, Return: 10},
		}}
		if err := h.checkRanges(); (err == nil) != ofd {
			t.Errorf("refused just after the close, of an open file: %v: %v", ofd, err)
		}
	}
}
