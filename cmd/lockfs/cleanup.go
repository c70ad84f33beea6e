package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lockfs/lockfs/internal/cleanup"
)

// cleaned are the directories of a node's daemon, as the manifests have them.
var cleaned = []string{"/var/lib/lockfs", "/run/lockfs"}

func newCleanup() *cobra.Command {
	return &cobra.Command{
		Use:   "cleanup [DIR...]",
		Short: "Take from this machine what lockfs has left there, and nothing else",
		Long: `Take from this machine what lockfs has left in each DIR (default: /var/lib/lockfs and
/run/lockfs): views whose daemon is dead, the guards of bare mountpoints, the proofs of
which mounts lived, and the directories.

It goes through no view and deletes no data: while a daemon lives, or anything else is
mounted below a DIR, it does nothing and says what; of files it removes its own, and of
directories only empty ones, on the file system of DIR.

It looks at the mounts of its own mount namespace: run it on the machine itself, or in a
container that has DIR with mountPropagation Bidirectional (deploy/daemonset/cleanup.yaml).

Exit status: 0 if nothing is left; 1 if something is, which is listed, or if nothing was
done; 2 if the command must be given otherwise.`,
		Example: `  # After the DaemonSet was deleted
  lockfs cleanup`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, dirs []string) error {
			if len(dirs) == 0 {
				dirs = cleaned
			}
			err := cleanup.Run(dirs, func(line string) { fmt.Fprintln(cmd.OutOrStdout(), line) })
			if errors.As(err, new(*cleanup.InUseError)) {
				return fmt.Errorf("nothing was removed: %w", err)
			}
			return err
		},
	}
}
