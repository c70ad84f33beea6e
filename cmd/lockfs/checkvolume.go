package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/checkvolume"
	"github.com/lockfs/lockfs/internal/embedetcd"
	"github.com/lockfs/lockfs/internal/mounts"
	"github.com/lockfs/lockfs/internal/netvolume"
	"github.com/lockfs/lockfs/internal/serve"
)

// checkVolumeOptions are the flags of 'lockfs check-volume'.
type checkVolumeOptions struct {
	listen, peer string
}

func newCheckVolume() *cobra.Command {
	o := &checkVolumeOptions{}
	cmd := &cobra.Command{
		Use:   "check-volume DIR [DIR2]",
		Short: "Test which rules hold on a network volume",
		Long: `Test which rules of docs/SEMANTICS.md hold on a network volume, between two of its clients.
On one machine, mount the volume twice, at DIR and DIR2, each with a client of its own. On
two machines, run the command with --listen on one, and with --peer on the other.

The command works in a directory lockfs-check-… that it makes in DIR and removes at the end.
It mounts views of its own there, with locks in an etcd of its own. It needs no lock
service, takes less than two minutes, and changes nothing else on the volume. It also tests
volumes that 'lockfs mount' refuses.

For each rule it prints 'ok', 'BROKEN (n of m)' and how, 'undecided' and why (the etcd did
not answer, or there is no space), or 'not tried' for the two rules that it cannot test.
A rule that is ok now can break another time.

On one machine, NFS mounts share one client: use two machines, or two network namespaces.
While the command runs with --listen, anybody who reaches the address can change files below
lockfs-check-…: choose an address in a network that you trust.

Exit status:
  0  all rules hold that were tried
  1  a rule is broken or undecided, or the test could not be run to its end
  2  usage error`,
		Example: `  # Two clients on one machine
  lockfs check-volume /mnt/a /mnt/b

  # Two machines
  node1# lockfs check-volume --listen 10.0.0.1:7701 /mnt/shared
  node2# lockfs check-volume --peer 10.0.0.1:7701 /mnt/shared`,
		Args: wants("two directories, or one and either --listen or --peer", cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, dirs []string) error { return o.run(cmd, dirs) },
	}
	f := cmd.Flags()
	f.StringVar(&o.listen, "listen", "", "serve DIR to a check on another machine, at this `address`, until SIGINT")
	f.StringVar(&o.peer, "peer", "", "`address` of the machine that runs with --listen")
	bindEnv(cmd)
	return cmd
}

func (o *checkVolumeOptions) run(cmd *cobra.Command, dirs []string) error {
	switch {
	case o.listen != "" && o.peer != "":
		return usage(errors.New("--listen and --peer exclude each other: one machine serves, the other checks"))
	case (len(dirs) == 2) == (o.listen != "" || o.peer != ""):
		return usage(errors.New("want two directories, or one and either --listen or --peer"))
	}
	if err := checkAddress("listen", o.listen, "10.0.0.1:7701"); err != nil {
		return err
	}
	if err := checkAddress("peer", o.peer, "10.0.0.1:7701"); err != nil {
		return err
	}
	for i, dir := range dirs {
		var err error
		if dirs[i], err = mounts.CheckShared("DIR", dir); err != nil {
			return usage(err)
		}
	}
	if len(dirs) == 2 && dirs[0] == dirs[1] {
		return usage(fmt.Errorf("DIR and DIR2 are both %s: mount the volume twice, each time with a client of its own", dirs[0]))
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "lockfs-check")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp) // views are unmounted by now
	var sites []*checkvolume.Site
	for i, dir := range dirs {
		site := &checkvolume.Site{Dir: dir, Program: program, Temp: filepath.Join(temp, fmt.Sprint(i))}
		if err := os.Mkdir(site.Temp, 0o700); err != nil {
			return err
		}
		sites = append(sites, site)
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGPIPE) // as of 'check-volume | head'
	defer stop()
	if err := describe(cmd, dirs); err != nil {
		return err
	}
	if o.peer != "" {
		return ended(ctx, checkvolume.WithPeer(ctx, sites[0], o.peer, cmd.OutOrStdout()))
	}
	start, cancel := context.WithTimeout(ctx, serve.StartTimeout)
	defer cancel()
	etcd, err := embedetcd.Start(start, embedetcd.Config{
		Dir: filepath.Join(temp, "etcd"), Source: temp, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return fmt.Errorf("embedded etcd: %w", err)
	}
	defer etcd.Close()
	for _, s := range sites {
		s.Endpoint = etcd.Endpoint()
	}
	if o.listen == "" {
		return ended(ctx, checkvolume.Local(ctx, sites[0], sites[1], cmd.OutOrStdout()))
	}
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "serving %s at %s until SIGINT; on the other machine: lockfs check-volume --peer %[2]s DIR\n", dirs[0], listener.Addr())
	return sites[0].Serve(ctx, listener, strings.TrimPrefix(etcd.Endpoint(), "unix://"))
}

func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return err
}

func describe(cmd *cobra.Command, dirs []string) error {
	out := cmd.OutOrStdout()
	for _, dir := range dirs {
		fstype, _, err := mounts.NetworkFS(dir)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: %s\n", dir, fstype)
		findings, err := netvolume.Look(dir, false)
		if err != nil {
			return err
		}
		for _, f := range findings {
			fmt.Fprintf(out, "  %s\n", f)
		}
	}
	if len(dirs) == 2 {
		var a, b unix.Stat_t
		if err := errors.Join(unix.Stat(dirs[0], &a), unix.Stat(dirs[1], &b)); err != nil {
			return err
		}
		if a.Dev == b.Dev {
			fmt.Fprintln(out, "one client has mounted both: a rule that holds here may be broken between two clients")
		}
	}
	return nil
}
