package main

import (
	"fmt"
	"slices"
)

// world is a system to explore. S should be small and without padding: there are millions
// of states.
type world[S comparable] interface {
	start() S
	// steps calls to with each state that is one step away.
	steps(s S, to func(next S, by step))
	// broken names the property that a state violates, or is empty.
	broken(s S) string
	// waits reports whether somebody waits for something.
	waits(s S) bool
}

// step is the way from one state to the next.
type step struct {
	who  string
	what string
	// maybe: the step need not happen. It is a fault, an interrupt, or a message that was
	// given up. Waiting must end without such steps.
	maybe bool
}

func (s step) String() string { return s.who + ": " + s.what }

// stuck is the property that waiting can go on for ever: some state has no way, without
// 'maybe' steps, to a state in which nobody waits.
const stuck = "somebody waits for ever"

// result is the result of an exploration.
type result struct {
	states, steps, depth int
	cut                  bool     // the limit was reached, so nothing is proved
	violated             string   // empty: no violation
	trace                []string // the shortest way there
}

// explore visits the states breadth first, until one is broken, all are visited, or limit
// is reached.
func explore[S comparable](w world[S], limit int) result {
	first := w.start()
	var (
		seen   = map[S]int32{first: 0}
		states = []S{first}
		parent = []int32{-1}
		sure   [][2]int32 // the steps that are not maybe
		res    result
		level  = 1 // the first state of the next depth
	)
	fail := func(i int32, property string) result {
		res.states, res.violated, res.trace = len(states), property, retrace(w, states, parent, i)
		return res
	}
	for i := 0; i < len(states); i++ {
		if i == level {
			res.depth++
			level = len(states)
		}
		if p := w.broken(states[i]); p != "" {
			return fail(int32(i), p)
		}
		if len(states) > limit {
			res.states, res.cut = len(states), true
			return res
		}
		w.steps(states[i], func(next S, by step) {
			j, ok := seen[next]
			if !ok {
				j = int32(len(states))
				seen[next] = j
				states = append(states, next)
				parent = append(parent, int32(i))
			}
			res.steps++
			if !by.maybe && j != int32(i) {
				sure = append(sure, [2]int32{int32(i), j})
			}
		})
	}
	res.states = len(states)
	quiet := make([]bool, len(states))
	for i, s := range states {
		quiet[i] = !w.waits(s)
	}
	if i := slices.Index(reaching(quiet, sure), false); i >= 0 {
		return fail(int32(i), stuck)
	}
	return res
}

// reaching returns the states from which a state of goal can be reached.
func reaching(goal []bool, steps [][2]int32) []bool {
	from := make([]int32, len(goal)+1) // where the steps to a state begin in back
	for _, st := range steps {
		from[st[1]+1]++
	}
	for i := range goal {
		from[i+1] += from[i]
	}
	back, next := make([]int32, len(steps)), slices.Clone(from)
	for _, st := range steps {
		back[next[st[1]]] = st[0]
		next[st[1]]++
	}
	reached := slices.Clone(goal)
	var todo []int32
	for i, g := range goal {
		if g {
			todo = append(todo, int32(i))
		}
	}
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, j := range back[from[i]:from[i+1]] {
			if !reached[j] {
				reached[j] = true
				todo = append(todo, j)
			}
		}
	}
	return reached
}

// retrace returns the way to state i. The steps were not stored, so it takes them again.
func retrace[S comparable](w world[S], states []S, parent []int32, i int32) []string {
	var trace []string
	for ; parent[i] >= 0; i = parent[i] {
		taken := ""
		w.steps(states[parent[i]], func(next S, by step) {
			if taken == "" && next == states[i] {
				taken = by.String()
			}
		})
		trace = append(trace, taken)
	}
	slices.Reverse(trace)
	return fold(trace)
}

// fold replaces repeated lines by one.
func fold(lines []string) []string {
	var out []string
	for i := 0; i < len(lines); {
		n := 1
		for i+n < len(lines) && lines[i+n] == lines[i] {
			n++
		}
		if n > 1 {
			out = append(out, fmt.Sprintf("%s (%d times)", lines[i], n))
		} else {
			out = append(out, lines[i])
		}
		i += n
	}
	return out
}
