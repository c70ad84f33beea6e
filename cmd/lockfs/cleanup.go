package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/cleanup"
	"github.com/lockfs/lockfs/internal/mounts"
)

// cleaned are the default directories: those of the manifests.
var cleaned = []string{"/var/lib/lockfs", "/run/lockfs"}

func newCleanup() *cobra.Command {
	return &cobra.Command{
		Use:   "cleanup [DIR...]",
		Short: "Remove what lockfs has left on this machine",
		Long: `Remove what lockfs has left in each DIR (default: /var/lib/lockfs and /run/lockfs): views
of dead daemons, guarded mountpoints, the files that prove which mounts were alive, and
empty directories.

The command goes through no view and deletes no data. While a daemon is alive there, or
another file system is mounted below a DIR, it changes nothing and says why. It removes
only lockfs's own files, and stays on the file system of DIR.

It sees the mounts of its own mount namespace. Run it on the machine itself, or in a
container that has DIR with mountPropagation Bidirectional (deploy/daemonset/cleanup.yaml).

Exit status:
  0  nothing is left
  1  something is left, which is listed; or nothing was done
  2  usage error`,
		Example: `  # After the DaemonSet was deleted
  lockfs cleanup`,
		DisableFlagsInUseLine: true,
		Args:                  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, dirs []string) error {
			for _, dir := range dirs {
				switch _, err := mounts.Resolve(dir); {
				case errors.Is(err, os.ErrNotExist):
					fmt.Fprintf(cmd.OutOrStdout(), "%s: no such directory\n", dir)
				case errors.Is(err, unix.ENOTDIR):
					return usage(fmt.Errorf("DIR %s: not a directory; name a directory", dir))
				}
			}
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
