// Package command is how benchmarks start and end, their own processes, and their flags.
package command

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// Program is a benchmark. In its hidden modes it is a process that the benchmark starts.
type Program struct {
	Name  string
	Modes map[string]func(args []string) error
}

// modeEnv chooses a mode.
const modeEnv = "LOCKFS_BENCH_CHILD"

// Environ is the environment of this program in a mode.
func Environ(mode string) []string { return append(os.Environ(), modeEnv+"="+mode) }

// RunMode runs the mode of the environment, if any, and exits. A test's TestMain calls it too.
func (p Program) RunMode() {
	if mode := p.Modes[os.Getenv(modeEnv)]; mode != nil {
		p.exit(mode(os.Args[1:]))
	}
}

// Main runs a mode or the benchmark, and exits: with 2 after a mistake in the arguments.
func Main[O, R any](p Program, parse func(args []string) (O, error), run func(context.Context, O) (R, error)) {
	p.RunMode()
	o, err := parse(os.Args[1:])
	if err != nil {
		p.report(err)
		os.Exit(2)
	}
	// After a second signal or a closed output, mounts and processes must still be cleaned up.
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
