package report

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// Line is a line of the table: the figures of each system, one for each round.
type Line struct {
	Name, Unit string
	Of         map[string][]float64
}

// Table prints the systems' medians, and the ratios of one of them. Flags are tabwriter's.
func Table(out io.Writer, flags uint, of string, systems []string, lines []Line) {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', flags)
	defer t.Flush()
	fmt.Fprint(t, "\nrow\tunit\t")
	for _, s := range systems {
		fmt.Fprint(t, s, "\t")
	}
	others := slices.DeleteFunc(slices.Clone(systems), func(s string) bool { return s == of })
	for _, s := range others {
		fmt.Fprint(t, "/", s, "\t")
	}
	fmt.Fprintln(t)
	for _, l := range lines {
		fmt.Fprintf(t, "%s\t%s\t", l.Name, l.Unit)
		for _, s := range systems {
			fmt.Fprint(t, Format(Median(l.Of[s])), "\t")
		}
		for _, s := range others {
			fmt.Fprint(t, Number("%.2f", Ratio(l.Of[of], l.Of[s])), "\t")
		}
		fmt.Fprintln(t)
	}
}
