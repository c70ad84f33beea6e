package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockfs/lockfs/internal/mounts"
	"github.com/lockfs/lockfs/internal/serve"
	"github.com/lockfs/lockfs/internal/volume"
	"github.com/lockfs/lockfs/lockmgr"
)

// moveTimeout is how long the lock service has to answer.
const moveTimeout = time.Minute

// moveOptions are the flags of 'lockfs move'.
type moveOptions struct {
	volumeFlags
	to, gone string
}

func newMove() *cobra.Command {
	o := &moveOptions{}
	cmd := &cobra.Command{
		Use:   "move SOURCE --to SERVICE",
		Short: "Move the locks of a volume to another lock service",
		Long: `Move the locks of the volume with the root SOURCE to another lock service, while no mount
of the volume is alive. A mount with another service than the volume's is refused, and the
message names both. SERVICE is the one that the mount would have used.

All other flags are for the service that the volume has so far. lockfs asks it whether a
mount is alive, and lets no mount in from then on. Without --endpoints, --backend
kubernetes or --config, that is the embedded etcd of this machine.

If that service is gone for ever, or was made anew and is empty, lockfs cannot ask it. Stop
every mount of the volume on all nodes, then give --gone with the id of the service, as the
refused mount names it. Nothing else keeps two programs from writing to one file then.`,
		Example: `  # From the Lease objects of a cluster to etcd
  lockfs move /srv/shared --backend kubernetes --lease-namespace lockfs-system --to etcd/9b2f…

  # From an etcd that was lost to an empty one
  lockfs move /srv/shared --gone etcd/1c77… --to etcd/9b2f…`,
		Args: wants("one SOURCE", cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd, args[0])
		},
	}
	f := cmd.Flags()
	o.volumeFlags.register(f, "that of SOURCE", ownService)
	o.registerListed(f)
	f.StringVar(&o.to, "to", "", "`service` to move to, KIND/ID; required")
	f.StringVar(&o.gone, "gone", "", "`service` that the volume has so far, KIND/ID or 'unknown'. It is gone for ever, and every mount was stopped")
	bindEnv(cmd)
	o.completeBackend(cmd)
	return cmd
}

func (o *moveOptions) run(cmd *cobra.Command, path string) error {
	if err := o.checkBackend(false); err != nil {
		return err
	}
	if o.to == "" {
		return usage(errors.New("--to is required: KIND/ID of the lock service, as the refused mount names it"))
	}
	to, err := lockmgr.ParseService(o.to)
	if err != nil {
		return usage(fmt.Errorf("--to: %w", err))
	}
	source, below, err := findVolume(path)
	if err != nil {
		return err
	}
	if below != "" {
		return usage(fmt.Errorf("%s is not the root of the volume: that is %s", path, source))
	}
	namespace, name, err := volume.NameOf(source)
	if err != nil {
		return err
	}
	if o.name != "" && o.name != name || cmd.Flags().Changed("namespace") && o.namespace != namespace {
		return usage(fmt.Errorf("%s is the volume %s/%s, but --namespace or --name name another: drop them", source, namespace, name))
	}
	o.namespace, o.name = namespace, name
	has, err := volume.ServiceOf(source)
	if err != nil {
		return err
	}
	if has.Is(to) && o.gone != "" {
		return usage(fmt.Errorf("the volume has its locks in %s already", has))
	}
	if err := unmounted(source); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), moveTimeout)
	defer cancel()
	var watch time.Duration
	move := volume.MoveConfig{Source: source, To: to}
	if o.gone == "" {
		backend, disconnect, err := o.former(ctx, source)
		if err != nil {
			return fmt.Errorf("the lock service that the volume has so far, %s, cannot be asked whether a mount is alive: %w", has, err)
		}
		defer disconnect()
		if watch, err = longestTTL(ctx, backend); err != nil {
			return err
		}
		move.Record = backend
	} else if err := o.isGone(has); err != nil {
		return err
	}
	moving, cancel := context.WithTimeout(cmd.Context(), moveTimeout+watch)
	defer cancel()
	if err := volume.Move(moving, move); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "volume %s/%s has its locks in %s from now on; before, in %s\n", namespace, name, to, has)
	return nil
}

// sessions are those of a lock service.
type sessions interface {
	Sessions(ctx context.Context) (map[string]lockmgr.SessionInfo, error)
	SessionTTL(ctx context.Context, id string) (time.Duration, error)
}

// longestTTL returns the longest TTL of a session. With Leases, a dead mount counts as alive until it was
// watched for so long.
func longestTTL(ctx context.Context, service sessions) (longest time.Duration, err error) {
	found, err := service.Sessions(ctx)
	if err != nil {
		return 0, err
	}
	for id := range found {
		ttl, err := service.SessionTTL(ctx, id)
		if err != nil && !errors.Is(err, lockmgr.ErrSessionLost) {
			return 0, err
		}
		longest = max(longest, ttl)
	}
	return longest, nil
}

func (o *moveOptions) former(ctx context.Context, source string) (serve.Backend, func(), error) {
	quiet := slog.New(slog.DiscardHandler)
	if !o.inConfig() {
		return o.connect(ctx, source, quiet)
	}
	listed, err := o.listed(o.namespace, o.name)
	if err != nil {
		return nil, nil, err
	}
	return o.configFlags.connect(ctx, &o.kubeFlags, listed, quiet)
}

func (o *moveOptions) isGone(has lockmgr.Service) error {
	if o.remote() {
		return usage(errors.New("--gone, and --endpoints or --backend kubernetes, exclude each other: drop --gone if the service still answers"))
	}
	if o.gone == has.String() {
		return nil
	}
	if gone, err := lockmgr.ParseService(o.gone); err != nil || !gone.Is(has) {
		return usage(fmt.Errorf("--gone %s: the volume has its locks in %s: give that if it is gone", o.gone, has))
	}
	return nil
}

// unmounted fails if this machine has mounted the volume, whatever the service says.
func unmounted(source string) error {
	table, err := mounts.List()
	if err != nil {
		return err
	}
	for _, m := range table {
		if m.FSType == mounts.FSType && m.Source == filepath.Clean(source) {
			return fmt.Errorf("a view of %s is mounted at %s: unmount it, and all others on all nodes, first", source, m.Point)
		}
	}
	return nil
}
