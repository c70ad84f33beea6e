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
	of      string // the system whose ratios are shown
	systems []*system
	figures []figures
	notes   []string
}

// figures are the figures of a row by system, one for each round.
type figures struct {
	row     row
	of      map[string][]float64
	commits map[string][]float64 // in etcd, for 100 files or operations
}

// ratio is the median of lockfs' figures over another's of the same round; NaN: not measured.
func (f figures) ratio(over string) float64 {
	return report.Ratio(f.of["lockfs"], f.of[over])
}

func (res *results) print(out io.Writer) {
	fmt.Fprintf(out, "Medians. A ratio is of %s over the other: of rates, more is better; of times (s), less.\n", res.of)
	var systems []string
	for _, s := range res.systems {
		systems = append(systems, s.name)
	}
	var lines []report.Line
	for _, f := range res.figures {
		lines = append(lines, report.Line{Name: f.row.name, Unit: f.row.unit, Of: f.of})
		if len(f.commits) > 0 {
			lines = append(lines, report.Line{Name: f.row.name + ": commits", Unit: "/100", Of: f.commits})
		}
	}
	report.Table(out, tabwriter.AlignRight, res.of, systems, lines)
	res.printTargets(out)
	for _, n := range res.notes {
		fmt.Fprintln(out, "\nNote:", n)
	}
}

// printTargets prints whether targets are met. 'Not below loopback' is listed only if missed.
func (res *results) printTargets(out io.Writer) {
	var lines []string
	below := 0
	for _, f := range res.figures {
		for i, t := range f.row.allTargets() {
			r := f.ratio(t.Over)
			if math.IsNaN(r) {
				continue
			}
			if i == 0 && t.Met(r) {
				below++
				continue
			}
			lines = append(lines, fmt.Sprintf("%s\t%s\t%s\t%.2f\t", f.row.name, t, t.Verdict(r), r))
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
