// Package command is what the benchmarks' commands have in common: how they start
// and end, the processes of their own, and the flags that choose what is measured.
package command

import (
	"context"
	"errors"
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

// Main runs a mode or the benchmark, and ends the process.
func (p Program) Main(bench func(ctx context.Context, args []string) error) {
	p.RunMode()
	// What was mounted and started has to go: a second signal does not end the
	// program either, nor does a reader of the table that has read enough.
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGPIPE)
	err := bench(ctx, os.Args[1:])
	stop()
	p.exit(err)
}

// Usage marks what is wrong with the arguments: the exit status is 2.
func Usage(err error) error { return usageError{err} }

type usageError struct{ error }

func (p Program) exit(err error) {
	if err == nil {
		os.Exit(0)
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", p.Name, err)
	if errors.As(err, new(usageError)) {
		os.Exit(2)
	}
	os.Exit(1)
}
