package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"
)

// daemonFlags are the flags of commands that serve volumes until they are stopped.
type daemonFlags struct {
	httpFlag
	logFlags
	watchFlags
	node  string
	guard bool
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

// settle sets guard's default, and refuses contradictions.
func (d *daemonFlags) settle(cmd *cobra.Command, guarded bool) error {
	root := os.Geteuid() == 0
	if !cmd.Flags().Changed("guard") {
		d.guard = guarded && root
	}
	if d.guard && !root {
		return usage(errors.New("--guard: only root can make a directory immutable: drop it, or run as root"))
	}
	if err := d.httpFlag.check(); err != nil {
		return err
	}
	return d.watchFlags.check()
}
