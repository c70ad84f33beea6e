package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockfs/lockfs/internal/config"
	"github.com/lockfs/lockfs/internal/pods"
	"github.com/lockfs/lockfs/internal/serve"
	"github.com/lockfs/lockfs/internal/supervise"
	"github.com/lockfs/lockfs/renew"
)

// reloadEvery is how often the file is read. A change is used when it was read twice.
const reloadEvery = time.Second

// serveOptions are the flags of 'lockfs serve'.
type serveOptions struct {
	daemonFlags
	kubeFlags
	configFlags
	stateDir string

	log   *slog.Logger
	names *pods.Pods
}

func newServe() *cobra.Command {
	o := &serveOptions{}
	cmd := &cobra.Command{
		Use:   "serve --config FILE",
		Short: "Serve all volumes that a file lists",
		Long: `Serve all volumes that a YAML file lists, each at a mountpoint of its own, until the
command receives SIGINT, SIGTERM or SIGHUP. This is the daemon of a node, in a DaemonSet
for example.

When the file changes, lockfs mounts new volumes, unmounts removed ones, and mounts changed
ones anew. It does not touch the others. A file with a mistake changes nothing. A volume
that cannot be mounted is tried again, and delays no other volume.`,
		Example: `  lockfs serve --config /etc/lockfs/lockfs.yaml --http :9808

  # lockfs.yaml; docs/CONFIG.md has all fields
  volumes:
  - name: shared
    source: /srv/shared
    mountpoint: /var/lib/lockfs/shared/view
    endpoints: [https://etcd.example:2379]
    policy:
    - "*.log* nolock"`,
		Args: wants("no argument: give the file by --config", cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(o.resolve(cmd, true), o.kubeFlags.check()); err != nil {
				return err
			}
			return o.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	o.configFlags.register(f, "`file` that lists the volumes; required")
	f.StringVar(&o.stateDir, "state-dir", defaultServeState, "`directory` in which the next daemon finds the proof that this one is dead. Its files must survive the daemon, but not a reboot")
	o.daemonFlags.register(cmd, "for root")
	o.registerSupervise(f)
	o.kubeFlags.register(f)
	bindEnv(cmd)
	return cmd
}

func (o *serveOptions) run(ctx context.Context) error {
	if o.config == "" {
		return usage(errors.New("--config is required: name the file that lists the volumes"))
	}
	if !filepath.IsAbs(o.stateDir) {
		return usage(fmt.Errorf("--state-dir %s: want an absolute path", o.stateDir))
	}
	text, err := supervise.Self().ReadFile(o.config)
	if err != nil {
		return usage(fmt.Errorf("--config: %w", err))
	}
	reader := config.NewReader(o.config)
	file, err := reader.LoadText(text)
	if err != nil {
		return usage(err)
	}
	for _, v := range file.Volumes {
		if err := o.checkCredentialsDir(v); err != nil {
			return err
		}
	}
	o.log = o.logger()
	if over, err := o.supervised(ctx, o.log); over {
		return err
	}
	var forget func()
	if o.names, forget, err = o.pods(o.kube.Kubeconfig, o.node, o.log); err != nil {
		return err
	}
	defer forget()
	serve.RaiseFileLimit(o.log)
	daemon := serve.NewDaemon(o.log)
	o.metrics().Configuration(daemon.Rejected)
	stop, err := o.listen(o.log, daemon.Checks, true)
	if err != nil {
		return err
	}
	defer stop()
	defer answerStatus(o.stateDir, o.log, daemon.Checks)()
	specs := o.specs(file)
	go serve.ForsakeOthers(supervise.Self(), specs) // a view of another daemon may hang
	daemon.Set(specs)
	o.follow(ctx, reader, daemon)
	o.log.Info("unmounting all volumes")
	return daemon.Close()
}

func (o *serveOptions) follow(ctx context.Context, reader *config.Reader, daemon *serve.Daemon) {
	look := time.NewTicker(reloadEvery)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
		file, changed, err := reader.Reload()
		switch {
		case !changed:
		case err != nil:
			for line := range strings.SplitSeq(err.Error(), "\n") {
				o.log.Error("the configuration was refused; the volumes are served as before", slog.String("error", line))
			}
			daemon.Reject(err)
		default:
			o.log.Info("the configuration has changed", slog.Int("volumes", len(file.Volumes)))
			supervise.Self().Record(o.config, reader.Text())
			daemon.Set(o.specs(file))
		}
	}
}

func (o *serveOptions) specs(file *config.File) []serve.Spec {
	specs := make([]serve.Spec, len(file.Volumes))
	for i, v := range file.Volumes {
		sync := v.Sync
		if v.Sync == config.SyncAuto {
			sync = ""
		}
		specs[i] = serve.Spec{
			Revision: fmt.Sprintf("%+v", v),
			Config: serve.Config{
				Namespace: v.Namespace, Name: v.Name, Source: v.Source, Mountpoint: v.Mountpoint, MakeMountpoint: true,
				Connect: func(ctx context.Context, log *slog.Logger) (serve.Backend, func(), error) {
					return o.connect(ctx, &o.kubeFlags, v, log)
				},
				Policy: v.Policy(), SetPolicy: v.SetPolicy, Former: v.FormerTerms(),
				Renew: renew.Config{TTL: v.TTL, SuspendWait: v.SuspendWait},
				Wait:  v.Wait, NameWait: v.NameWait, Keep: v.Keep, Scope: v.Scope, ReadLocks: v.ReadLocks, Flock: v.Flock, Sync: sync,
				AcceptVolume: v.AcceptVolume, TakeOver: true,
				AllowOther: os.Geteuid() == 0, Guard: o.guard, Worker: supervise.Self(), ForPods: true, WaitForWrites: true,
				Node: o.node, Version: buildVersion(), StateDir: o.stateDir, Logger: o.log,
				SlowWait: o.slowWait, Metrics: o.metrics(), Pods: o.names,
			},
		}
	}
	return specs
}
