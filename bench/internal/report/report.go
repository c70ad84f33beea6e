// Package report has the benchmarks' results: medians, ratios, their table, and targets.
package report

import (
	"fmt"
	"math"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Median is NaN of nothing.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	v = slices.Sorted(slices.Values(v))
	m := len(v) / 2
	if len(v)%2 == 1 {
		return v[m]
	}
	return (v[m-1] + v[m]) / 2
}

// Ratio is the median of figures over another system's of the same round; NaN: not measured.
func Ratio(of, over []float64) float64 {
	var r []float64
	for i := range min(len(of), len(over)) {
		r = append(r, of[i]/over[i])
	}
	return Median(r)
}

// Format prints three significant digits.
func Format(v float64) string {
	switch {
	case v >= 100:
		return Number("%.0f", v)
	case v >= 10:
		return Number("%.1f", v)
	}
	return Number("%.3f", v)
}

// Number prints a dash for NaN, which was not measured.
func Number(format string, v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return fmt.Sprintf(format, v)
}

// Target bounds the ratio over another system, or the figure itself.
type Target struct {
	Over            string  // "" is the figure itself
	AtLeast, AtMost float64 // of which one is 0
}

// Least returns the target of a ratio, or figure, that is better when larger.
func Least(over string, v float64) Target { return Target{Over: over, AtLeast: v} }

// Most returns the target of one that is better when smaller.
func Most(over string, v float64) Target { return Target{Over: over, AtMost: v} }

// Met reports whether v meets the target.
func (t Target) Met(v float64) bool {
	if t.AtMost != 0 {
		return v <= t.AtMost
	}
	return v >= t.AtLeast && !math.IsNaN(v)
}

// Verdict is the word for it in a table.
func (t Target) Verdict(v float64) string {
	if t.Met(v) {
		return "met"
	}
	return "MISSED"
}

func (t Target) String() string {
	sign, v := "≥", t.AtLeast
	if t.AtMost != 0 {
		sign, v = "≤", t.AtMost
	}
	if t.Over == "" {
		return fmt.Sprintf("%s %.3g", sign, v)
	}
	return fmt.Sprintf("%s %.2f × %s", sign, v, t.Over)
}

// Progress shows on a terminal what is being measured.
func Progress(what string) {
	if _, err := unix.IoctlGetTermios(int(os.Stderr.Fd()), unix.TCGETS); err == nil {
		fmt.Fprintf(os.Stderr, "%-40s\r", what)
	}
}
