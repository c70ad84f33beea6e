// Command lockmodel checks the lock algorithm of lockfs by exploring all that
// can happen in small models of it. docs/MODEL.md says what they contain.
//
//	go run ./lockmodel                                 every model, and every mutation
//	go run ./lockmodel -full                           larger configurations, some minutes
//	go run ./lockmodel -model links -mutate nogate     one rule removed, and what comes of it
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"time"
)

func main() {
	full := flag.Bool("full", false, "explore the larger configurations")
	name := flag.String("model", "", "only this `model`")
	mutate := flag.String("mutate", "", "remove the rule of this `mutation` and show how it goes wrong")
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	chosen := slices.DeleteFunc(slices.Clone(models), func(m model) bool { return *name != "" && m.name != *name })
	if len(chosen) == 0 {
		fmt.Fprintf(os.Stderr, "lockmodel: there is no model %q\n", *name)
		os.Exit(2)
	}
	ok := true
	for _, m := range chosen {
		if *mutate != "" {
			ok = show(&m, *full, *mutate) && ok
		} else {
			ok = check(&m, *full) && ok
		}
	}
	if !ok {
		os.Exit(1)
	}
}

// check explores a model with all its rules, and then without each. It reports whether the
// first run found nothing and all others something.
func check(m *model, full bool) bool {
	start := time.Now()
	r := m.run(full, "")
	fmt.Printf("%s: %s\n    %d states, %d steps, depth %d, %.1f s: %s\n",
		m.name, m.question, r.states, r.steps, r.depth, time.Since(start).Seconds(), r.verdict())
	r.print()
	ok := r.violated == "" && !r.cut
	if full {
		return ok
	}
	for _, mu := range m.mutations {
		r := m.run(false, mu.name)
		fmt.Printf("    without %-14s %s after %d steps\n", mu.name+":", r.verdict(), len(r.trace))
		ok = ok && r.violated != ""
	}
	for _, mu := range m.redundant {
		r := m.run(false, mu.name)
		fmt.Printf("    without %-14s %s (redundant)\n", mu.name+":", r.verdict())
		ok = ok && r.violated == ""
	}
	return ok
}

// show explores a model without one rule. It reports whether the model has that rule.
func show(m *model, full bool, name string) bool {
	if !slices.ContainsFunc(slices.Concat(m.mutations, m.redundant), func(mu mutation) bool { return mu.name == name }) {
		fmt.Fprintf(os.Stderr, "lockmodel: %s has no mutation %q\n", m.name, name)
		return false
	}
	r := m.run(full, name)
	fmt.Printf("%s without %s: %d states: %s\n", m.name, name, r.states, r.verdict())
	r.print()
	return true
}

func (r *result) verdict() string {
	switch {
	case r.violated != "":
		return r.violated
	case r.cut:
		return "no violation found, but not all was explored"
	}
	return "no violation"
}

func (r *result) print() {
	for _, line := range r.trace {
		fmt.Println("        " + line)
	}
}
