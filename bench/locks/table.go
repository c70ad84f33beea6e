package main

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"

	"github.com/lockfs/lockfs/bench/internal/report"
)

type results struct {
	systems []string
	figures []figures
	notes   []string
}

// figures are the figures of a line by system, one for each round.
type figures struct {
	row  string
	line line
	of   map[string][]float64
}

func (f figures) name() string {
	if f.line.name == "" {
		return f.row
	}
	return f.row + ": " + f.line.name
}

func (f figures) judged(t report.Target) float64 {
	if t.Over == "" {
		of := f.of["lockfs"]
		if of == nil {
			of = f.of["keeping"]
		}
		return report.Median(of)
	}
	return report.Ratio(f.of["lockfs"], f.of[t.Over])
}

func (res *results) print(out io.Writer) {
	fmt.Fprintln(out, "Medians. A ratio is lockfs over the other: of rates (/s), more is better; of all else, less.")
	var lines []report.Line
	last := ""
	for _, f := range res.figures {
		name := f.name()
		if f.row == last {
			name = "  " + f.line.name
		}
		last = f.row
		lines = append(lines, report.Line{Name: name, Unit: f.line.unit, Of: f.of})
	}
	report.Table(out, 0, "lockfs", res.systems, lines)
	res.printTargets(out)
	for _, n := range res.notes {
		fmt.Fprintln(out, "\nNote:", n)
	}
}

// printTargets prints whether each target is met.
func (res *results) printTargets(out io.Writer) {
	var lines []string
	for _, f := range res.figures {
		for _, t := range f.line.targets {
			v := f.judged(t)
			if math.IsNaN(v) {
				continue
			}
			unit := ""
			if t.Over == "" {
				unit = " " + f.line.unit
			}
			lines = append(lines, fmt.Sprintf("%s\t%s%s\t%s\t%.2f\t", f.name(), t, unit, t.Verdict(v), v))
		}
	}
	if len(lines) == 0 {
		return
	}
	fmt.Fprintln(out, "\nTargets:")
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(lines, "\n"))
	t.Flush()
}
