package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
)

// results is what was measured.
type results struct {
	systems []*system
	figures []figures
	notes   []string
}

// figures are a row's, by system, one a round.
type figures struct {
	row row
	of  map[string][]float64
}

func median(v []float64) float64 {
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

// ratio is the median of lockfs' figures over another's of the same round; NaN
// if one of both was not measured.
func (f figures) ratio(over string) float64 {
	a, b := f.of["lockfs"], f.of[over]
	var r []float64
	for i := range min(len(a), len(b)) {
		r = append(r, a[i]/b[i])
	}
	return median(r)
}

func (res *results) print(out io.Writer) {
	fmt.Fprintln(out, "Medians. A ratio is lockfs over the other: of rates, more is better; of times (s), less.")
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "\nrow\tunit\t")
	for _, s := range res.systems {
		fmt.Fprint(t, s.name, "\t")
	}
	others := slices.DeleteFunc(slices.Clone(res.systems), func(s *system) bool { return s.name == "lockfs" })
	for _, s := range others {
		fmt.Fprint(t, "/", s.name, "\t")
	}
	fmt.Fprintln(t)
	for _, f := range res.figures {
		fmt.Fprintf(t, "%s\t%s\t", f.row.name, f.row.unit)
		for _, s := range res.systems {
			fmt.Fprint(t, figure(median(f.of[s.name])), "\t")
		}
		for _, s := range others {
			fmt.Fprint(t, number("%.2f", f.ratio(s.name)), "\t")
		}
		fmt.Fprintln(t)
	}
	t.Flush()
	res.printTargets(out)
	for _, n := range res.notes {
		fmt.Fprintln(out, "\nNote:", n)
	}
}

// printTargets says of each target whether it is met. Those that are no more
// than 'not below loopback' are listed when missed.
func (res *results) printTargets(out io.Writer) {
	var lines []string
	below := 0
	for _, f := range res.figures {
		for i, t := range f.row.allTargets() {
			r := f.ratio(t.over)
			if math.IsNaN(r) {
				continue
			}
			verdict := "met"
			if !t.met(r) {
				verdict = "MISSED"
			}
			if i == 0 && t.met(r) {
				below++
				continue
			}
			lines = append(lines, fmt.Sprintf("%s\t%s\t%s\t%.2f\t", f.row.name, t, verdict, r))
		}
	}
	if below == 0 && len(lines) == 0 {
		return
	}
	fmt.Fprintf(out, "\nTargets. Not below loopback (with %.0f %% for the noise): %d rows; the rest:\n", noise*100, below)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(lines, "\n"))
	t.Flush()
}

func (t target) String() string {
	if t.atMost != 0 {
		return fmt.Sprintf("≤ %.2f × %s", t.atMost, t.over)
	}
	return fmt.Sprintf("≥ %.2f × %s", t.atLeast, t.over)
}

// figure has three digits that count.
func figure(v float64) string {
	switch {
	case v >= 100:
		return number("%.0f", v)
	case v >= 10:
		return number("%.1f", v)
	}
	return number("%.3f", v)
}

func number(format string, v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return fmt.Sprintf(format, v)
}
