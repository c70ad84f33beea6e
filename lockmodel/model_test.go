package main

import (
	"strings"
	"testing"

	"github.com/lockfs/lockfs/internal/longtest"
)

// The algorithm with all its rules goes wrong nowhere, in no fewer states than
// there were when this was written, give or take; without any one it does.
func TestModels(t *testing.T) {
	atLeast := map[string]int{
		"lease": 15_000, "break": 60_000, "successor": 15_000, "queue": 50_000, "tree": 35_000, "leases": 200_000, "dirleases": 700_000, "pulses": 50_000, "links": 100_000, "names": 15_000, "kept": 120_000, "delegated": 30_000, "settled": 100_000, "private": 100_000,
	}
	for _, m := range models {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			r := m.run(false, "")
			if r.violated != "" || r.cut {
				t.Errorf("%s:\n%s", r.verdict(), strings.Join(r.trace, "\n"))
			}
			if r.states < atLeast[m.name] || atLeast[m.name] == 0 {
				t.Errorf("%d states, want %d or more", r.states, atLeast[m.name])
			}
			if r.states > 500_000 && longtest.For(t) == 0 {
				return // many times as many would take most of the time
			}
			for _, mu := range m.mutations {
				if r := m.run(false, mu.name); r.violated == "" {
					t.Errorf("without the rule that %s: %s", mu.rule, r.verdict())
				}
			}
			for _, mu := range m.redundant {
				if r := m.run(false, mu.name); r.violated != "" {
					t.Errorf("the rule that %s is needed now: %s:\n%s", mu.rule, r.verdict(), strings.Join(r.trace, "\n"))
				}
			}
		})
	}
}

// ring is a world of n states in a circle, with a way out of the last.
type ring struct {
	n     int
	out   bool // and the way out can be counted on
	wrong int
}

func (ring) start() int { return 1 }

func (r ring) steps(s int, to func(int, step)) {
	if s == 0 {
		return
	}
	to(s%r.n+1, step{who: "it", what: "goes on"})
	if s == r.n {
		to(0, step{who: "it", what: "leaves", maybe: !r.out})
	}
}

func (r ring) broken(s int) string {
	if s == r.wrong {
		return "wrong"
	}
	return ""
}

func (ring) waits(s int) bool { return s != 0 }

func TestExplore(t *testing.T) {
	tests := []struct {
		name     string
		w        ring
		limit    int
		violated string
		states   int
		trace    int
		cut      bool
	}{
		{"all is well", ring{n: 5, out: true, wrong: -1}, 100, "", 6, 0, false},
		{"a broken state", ring{n: 5, out: true, wrong: 3}, 100, "wrong", 3, 1, false},
		{"no way out", ring{n: 5, wrong: -1}, 100, stuck, 6, 0, false},
		{"too many states", ring{n: 50, out: true, wrong: -1}, 10, "", 11, 0, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := explore(test.w, test.limit)
			if r.violated != test.violated || r.states != test.states || len(r.trace) != test.trace || r.cut != test.cut {
				t.Errorf("explore() = %+v, want %+v", r, test)
			}
		})
	}
}
