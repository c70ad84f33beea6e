package main

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockfs/lockfs/internal/supervise"
)

// daemonFlags are the flags of commands that serve volumes until they are stopped.
type daemonFlags struct {
	httpFlag
	logFlags
	watchFlags
	node      string
	guard     bool
	supervise bool
}

// register is told, for the help, when guard is on by default.
func (d *daemonFlags) register(cmd *cobra.Command, guarded string) {
	d.logFlags = newLogFlags()
	f := cmd.Flags()
	d.httpFlag.register(f)
	d.logFlags.register(cmd)
	d.watchFlags.register(f)
	f.StringVar(&d.node, "node", "", "`name` of this node in 'lockfs ls' (default: the host name)")
	f.BoolVar(&d.guard, "guard", false, "close the bare mountpoint (mode 0, immutable), so that no program uses it while there is no view (default: "+guarded+")")
}

// registerSupervise is for a command that mounts.
func (d *daemonFlags) registerSupervise(f *pflag.FlagSet) {
	f.BoolVar(&d.supervise, "supervise", false, "if the daemon dies, start it again, and let it go on with its views: programs wait for a moment, and keep their open files and locks. For root, with Linux 6.9")
}

// resolve sets guard's default, and refuses contradictions.
func (d *daemonFlags) resolve(cmd *cobra.Command, guarded bool) error {
	root := os.Geteuid() == 0
	if !cmd.Flags().Changed("guard") {
		d.guard = guarded && root
	}
	if d.guard && !root {
		return usage(errors.New("--guard: only root can make a directory immutable: drop it, or run as root"))
	}
	if d.supervise && !root {
		return usage(errors.New("--supervise: only root's views can be taken over: drop it, or run as root"))
	}
	if err := d.httpFlag.check(); err != nil {
		return err
	}
	return d.watchFlags.check()
}

// supervised runs the daemon in a worker, if --supervise says so and this is none yet. over: the
// daemon ran in a worker, which has ended, and the caller returns err.
func (d *daemonFlags) supervised(ctx context.Context, log *slog.Logger) (over bool, err error) {
	if !d.supervise || supervise.Self() != nil {
		return false, nil
	}
	status, err := supervise.Run(ctx, log)
	if err == nil && status != 0 {
		err = statusError{status: status}
	}
	return true, err
}

// replaces reports whether this process goes on for one that has died, whose descriptors are open for
// a moment.
func replaces() bool { w := supervise.Self(); return w != nil && w.Deaths > 0 }
