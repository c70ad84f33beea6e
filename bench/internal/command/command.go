// Package command is what the benchmarks' commands have in common: how they start
// and end, the processes of their own, and the flags that choose what is measured.
package command

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// Program is a benchmark. In its modes, which are hidden, it is a process that
// the benchmark starts; they get the arguments.
type Program struct {
	Name  string
	Modes map[string]func(args []string) error
}

// modeEnv chooses a mode.
const modeEnv = "LOCKFS_BENCH_CHILD"

// Environ is the environment of this program in a mode.
func Environ(mode string) []string { return append(os.Environ(), modeEnv+"="+mode) }

// RunMode runs the mode that the environment chooses, and ends the process; it
// returns if there is none. A test's TestMain calls it too.
func (p Program) RunMode() {
	if mode := p.Modes[os.Getenv(modeEnv)]; mode != nil {
		p.exit(mode(os.Args[1:]))
	}
}

// Main runs a mode or the benchmark, and ends the process. Its exit status is 2
// after a mistake in the arguments.
func Main[O, R any](p Program, parse func(args []string) (O, error), run func(context.Context, O) (R, error)) {
	p.RunMode()
	o, err := parse(os.Args[1:])
	if err != nil {
		p.report(err)
		os.Exit(2)
	}
	// Mounts and processes must be cleaned up. So neither a second signal nor a reader that
	// closes our output ends the program.
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGPIPE)
	defer stop()
	_, err = run(ctx, o)
	p.exit(err)
}

func (p Program) exit(err error) {
	if err != nil {
		p.report(err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (p Program) report(err error) { fmt.Fprintf(os.Stderr, "%s: %v\n", p.Name, err) }
