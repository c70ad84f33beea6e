package command

import (
	"errors"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Flags are a benchmark's flags. All have -rows, -systems, -rounds, -time and -short.
type Flags struct {
	*flag.FlagSet
	Rounds int           // of each figure
	Each   time.Duration // of measuring, for a rate
	Short  bool

	rows, systems string
	known         []string // systems
}

// NewFlags returns flags for known systems, of which the usual ones are the default.
func NewFlags(program string, known, usual []string, each time.Duration) *Flags {
	f := &Flags{FlagSet: flag.NewFlagSet(program, flag.ExitOnError), known: known}
	f.StringVar(&f.rows, "rows", "", "measure the rows that match this regular `expression` only")
	f.StringVar(&f.systems, "systems", strings.Join(usual, ","), "measure these `systems`, of "+strings.Join(known, ", "))
	f.IntVar(&f.Rounds, "rounds", 9, "how often each figure is taken, at most; the table shows medians")
	f.DurationVar(&f.Each, "time", each, "how long a rate is measured in each round")
	f.BoolVar(&f.Short, "short", false, "little of everything, and by default one round: a look, not a measurement")
	return f
}

// Parse parses args. short has a -short run's values of flags that are not among args.
func (f *Flags) Parse(args []string, short map[string]string) error {
	if err := f.FlagSet.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	given := make(map[string]bool)
	f.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name, v := range short {
		if f.Short && !given[name] {
			if err := f.Set(name, v); err != nil {
				return err
			}
		}
	}
	if f.Rounds < 1 {
		return errors.New("-rounds: want at least 1")
	}
	return nil
}

// Systems returns the systems to measure.
func (f *Flags) Systems() ([]string, error) {
	systems := strings.Split(f.systems, ",")
	for _, s := range systems {
		if !slices.Contains(f.known, s) {
			return nil, fmt.Errorf("-systems: %q is none of %v", s, f.known)
		}
	}
	return systems, nil
}

// Rows returns those of all whose names match -rows.
func Rows[R any](f *Flags, all []R, name func(R) string) ([]R, error) {
	re, err := regexp.Compile(f.rows)
	if err != nil {
		return nil, fmt.Errorf("-rows: %w", err)
	}
	rows := slices.DeleteFunc(slices.Clone(all), func(r R) bool { return !re.MatchString(name(r)) })
	if len(rows) == 0 {
		return nil, fmt.Errorf("-rows %s matches no row", f.rows)
	}
	return rows, nil
}
