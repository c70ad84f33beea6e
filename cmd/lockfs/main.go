// Command lockfs mounts a view of a shared directory in which opening a file
// for write locks it across all nodes.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockfs/lockfs/internal/supervise"
)

// Exit statuses.
const (
	exitFailure = 1 // runtime failure: the machine, the volume or the lock service
	exitUsage   = 2 // usage error: the same command will fail again
)

// statusError makes the program exit with status. Without err, nothing is printed.
type statusError struct {
	status int
	error
}

func (e statusError) Unwrap() error { return e.error }

type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usage(err error) error {
	if err == nil {
		return nil
	}
	return usageError{err}
}

func main() {
	end := []os.Signal{syscall.SIGTERM}
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGHUP} {
		if !signal.Ignored(sig) { // a script ignores the one for background jobs, nohup the other
			end = append(end, sig)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), end...)
	// A second signal ends the program at once, but timeout(1) sends each signal twice.
	context.AfterFunc(ctx, func() { time.AfterFunc(time.Second, stop) })
	root := newRoot()
	describeCompletion(root)
	err := root.ExecuteContext(ctx)
	supervise.End()
	if err == nil {
		return
	}
	if s := (statusError{}); errors.As(err, &s) {
		if s.error != nil {
			report(s)
		}
		os.Exit(s.status)
	}
	report(err)
	if errors.As(err, new(usageError)) {
		os.Exit(exitUsage)
	}
	os.Exit(exitFailure)
}

func report(err error) {
	fmt.Fprintln(os.Stderr, "lockfs: "+strings.TrimSpace(err.Error()))
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "lockfs",
		Short: "Lock files across nodes while they are open for write",
		Long: `lockfs keeps programs on different machines from overwriting each other's files.

It mounts a view of a shared directory on each node. Opening a file for write in a view
takes a lock in the whole cluster. Closing the file releases it. Programs need no change.`,
		Version:       buildVersion(),
		SilenceErrors: true,
		SilenceUsage:  true,

		SuggestionsMinimumDistance: 2,
		Args:                       knownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usage(fmt.Errorf("which command? See '%s --help'", cmd.CommandPath()))
		},
	}
	root.SetVersionTemplate(versionLine())
	root.SetUsageFunc(writeUsage)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage(fmt.Errorf("%w; see '%s --help'", invalidValue("--", err), cmd.CommandPath()))
	})
	root.SetHelpCommand(newHelp())
	root.AddCommand(newMount(), newServe(), newCSI(), newList(), newBreak(), newExec(), newMove(), newCleanup(), newStatus(), newCheckVolume(), newVersion())
	for _, cmd := range append(root.Commands(), root) {
		args := cmd.Args
		cmd.Args = func(cmd *cobra.Command, given []string) error {
			if err := args(cmd, given); err != nil {
				return usage(fmt.Errorf("%w; see '%s --help'", err, cmd.CommandPath()))
			}
			return nil
		}
	}
	return root
}

// knownCommand refuses what is no command, and names those with a similar spelling.
func knownCommand(root *cobra.Command, given []string) error {
	if len(given) == 0 {
		return nil
	}
	if similar := root.SuggestionsFor(given[0]); len(similar) > 0 {
		return fmt.Errorf("unknown command %q (similar: %s)", given[0], strings.Join(similar, ", "))
	}
	return fmt.Errorf("unknown command %q", given[0])
}

// wants makes a command say what to give if args refuses what was given.
func wants(what string, args cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if args(cmd, given) != nil {
			return errors.New("want " + what)
		}
		return nil
	}
}

func envName(flag string) string {
	return "LOCKFS_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// bindEnv gives each flag an environment variable, which the flag overrides. An empty one is
// unset.
func bindEnv(cmd *cobra.Command) {
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		var err error
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			v := os.Getenv(envName(f.Name))
			if v == "" || f.Changed || err != nil {
				return
			}
			if e := cmd.Flags().Set(f.Name, v); e != nil {
				err = usage(invalidValue("$", e))
			}
		})
		return err
	}
}

// invalidValue says what a flag takes. The flag library's own errors speak of Go's functions. sign tells
// where the value is from: "--" for the command line, "$" for the environment.
func invalidValue(sign string, err error) error {
	invalid := new(pflag.InvalidValueError)
	if !errors.As(err, &invalid) {
		return err
	}
	f, cause := invalid.GetFlag(), invalid.Unwrap()
	switch f.Value.(type) {
	case *waitFlag, *keepFlag: // their causes say it
	default:
		switch f.Value.Type() {
		case "bool":
			cause = errors.New("want true or false")
		case "int", "float64":
			cause = errors.New("want a number")
		case "duration":
			cause = errors.New("want a duration such as 500ms, 30s or 5m")
		}
	}
	name := f.Name
	if sign == "$" {
		name = envName(name)
	}
	return fmt.Errorf("%s%s %q: %w", sign, name, invalid.GetValue(), cause)
}
