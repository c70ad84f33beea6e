package netvolume

import (
	"fmt"
	"strconv"
	"strings"
)

// Finding is one thing that is wrong with a volume, or that cannot be seen.
type Finding struct {
	Volume string // what people call it: NFS, GlusterFS
	Point  string // where it is mounted
	What   string // what is wrong, or not known
	Rules  []int  // of docs/SEMANTICS.md that are broken; none for what is not known
	Set    string // what to do about it
}

// Breaks reports whether rules are known to be broken.
func (f Finding) Breaks() bool { return len(f.Rules) > 0 }

// String returns one line.
func (f Finding) String() string {
	where := f.Volume + " at " + f.Point + ": " + f.What
	if !f.Breaks() {
		return where + ": " + f.Set
	}
	return where + ": " + rulesOf(f.Rules) + " of docs/SEMANTICS.md: " + f.Set
}

func rulesOf(rules []int) string {
	words := make([]string, len(rules))
	for i, r := range rules {
		words[i] = strconv.Itoa(r)
	}
	if len(words) == 1 {
		return "breaks rule " + words[0]
	}
	return "breaks rules " + strings.Join(words, ", ")
}

// Broken returns the findings that break rules.
func Broken(findings []Finding) (broken []Finding) {
	for _, f := range findings {
		if f.Breaks() {
			broken = append(broken, f)
		}
	}
	return broken
}

// RefusedError reports a volume that breaks rules.
type RefusedError struct {
	Source   string
	Findings []Finding // all break rules
}

// Error has a line for each finding.
func (e *RefusedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "SOURCE %s is on a volume that breaks what lockfs promises; set the options, or accept it (--accept-volume):", e.Source)
	for _, f := range e.Findings {
		b.WriteString("\n" + f.String())
	}
	return b.String()
}
