package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockfs/lockfs/fs"
	"github.com/lockfs/lockfs/internal/config"
	"github.com/lockfs/lockfs/internal/mounts"
	"github.com/lockfs/lockfs/internal/serve"
	"github.com/lockfs/lockfs/internal/supervise"
	"github.com/lockfs/lockfs/internal/volume"
	"github.com/lockfs/lockfs/policy"
	"github.com/lockfs/lockfs/renew"
)

// mountOptions are the flags of 'lockfs mount'.
type mountOptions struct {
	volumeFlags
	policyFlags
	daemonFlags
	ttl, suspendWait, nameWait time.Duration
	keep                       keepFlag
	wait                       waitFlag
	scope                      choiceFlag[policy.Scope]
	sync                       choiceFlag[fs.Sync]
	flock                      choiceFlag[policy.Flock]
	setPolicy                  bool
	readLocks                  bool
	allowOther                 bool
	embedded                   bool
	acceptVolume               bool
	takeOver                   bool

	source, mountpoint string
	policy             *policy.Policy
	former             formerFlags
	formerTerms        *policy.Terms // nil: none are given
}

func newMount() *cobra.Command {
	o := &mountOptions{
		wait:   waitFlag(config.DefaultWait),
		keep:   keepFlag(config.DefaultKeep),
		scope:  choiceFlag[policy.Scope]{policy.ScopeAuto, policy.Scopes},
		sync:   choiceFlag[fs.Sync]{config.SyncAuto, config.Syncs},
		flock:  choiceFlag[policy.Flock]{policy.FlockLocal, policy.Flocks},
		former: formerFlags{flock: choiceFlag[policy.Flock]{choices: policy.Flocks}},
	}
	cmd := &cobra.Command{
		Use:   "mount SOURCE MOUNTPOINT",
		Short: "Mount a view of a directory and serve it",
		Long: `Mount a view of the directory SOURCE at MOUNTPOINT, an empty directory, and serve it. The
command stays in the foreground until the view is unmounted, or until it receives SIGINT,
SIGTERM or SIGHUP.

All mounts of a volume need the same --name, --namespace, policy and lock service. Without
--endpoints or --backend kubernetes, lockfs starts an etcd for the mounts on this machine.
Nothing is locked against other machines then.`,
		Example: `  # Try it on one machine
  lockfs mount /srv/shared /mnt/shared

  # On each node, over a network volume
  lockfs mount --endpoints https://etcd:2379 --name shared /net/shared /mnt/shared

  # The same, with the locks in a Kubernetes cluster
  lockfs mount --backend kubernetes --kubeconfig ~/.kube/config --name shared /net/shared /mnt/shared

  # Logs need no lock, and nobody changes the configuration
  lockfs mount --rule '*.log* nolock' --rule '/etc/** readonly' /srv/shared /mnt/shared`,
		Args: wants("SOURCE MOUNTPOINT", cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.source, o.mountpoint = args[0], args[1]
			if err := o.resolve(cmd, o.remote()); err != nil {
				return err
			}
			return o.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	o.volumeFlags.register(f, "the last part of SOURCE", "an embedded etcd, for this machine only")
	o.policyFlags.register(f)
	f.BoolVar(&o.setPolicy, "set-policy", false, "make --policy, --rule and --flock the volume's policy. Every other mount that is alive must enforce it too")
	o.former.register(f)
	o.daemonFlags.register(cmd, "for root, with --endpoints or --backend kubernetes")
	o.registerSupervise(f)
	f.DurationVar(&o.ttl, "ttl", config.DefaultTTL, "how long a lock outlives a mount that is cut off or killed. Whole seconds, at least 3s")
	f.Var(&o.wait, "wait", "how long an open waits for a lock before it fails with EBUSY. 0: not at all. -1: for ever")
	f.DurationVar(&o.nameWait, "name-wait", config.DefaultNameWait, "how long a call that cannot queue (rename, unlink, truncate, …) tries for a lock that another node holds")
	f.DurationVar(&o.suspendWait, "suspend-wait", 0, "how long writes wait for a lock service that does not answer before they fail with EIO (default: the TTL)")
	f.Var(&o.keep, "keep", "how long the mount keeps the lock of a file that is opened again and again, and of a directory in which many files are, so that the next open here does not ask the lock service. At least 500ms. 0: not at all")
	f.Var(&o.scope, "scope", "`who` shares a lock: "+o.scope.list()+". auto: the pod of the caller, or its process outside of pods")
	f.BoolVar(&o.readLocks, "read-locks", false, "an open for read takes the lock too, shared with other readers")
	f.Var(&o.flock, "flock", "`which` programs exclude each other by flock(2) and fcntl(2): "+o.flock.list()+". local: those on this mount. cluster: on all mounts of the volume, which need the same")
	f.Var(&o.sync, "sync", "`when` written bytes must be on the volume: "+o.sync.list()+". auto: always on NFS, close on another network file system, else never")
	f.BoolVar(&o.allowOther, "allow-other", os.Geteuid() == 0, "other users may use the view")
	f.BoolVar(&o.embedded, "embedded", false, "use the embedded etcd although SOURCE is on a network file system. Nothing is locked against other machines")
	f.BoolVar(&o.acceptVolume, "accept-volume", false, "mount although the volume's mount options break rules. The log and 'lockfs status' name the rules")
	f.BoolVar(&o.takeOver, "take-over", false, "if another lockfs mount serves MOUNTPOINT, take the view over from it, with its open files and locks, and let it end. SOURCE, the lock service, the policy, --flock, --scope, --sync, --read-locks and --allow-other must be the same, and the user, root. Otherwise mount as usual")
	bindEnv(cmd)
	complete(cmd, "scope", o.scope.words())
	complete(cmd, "sync", o.sync.words())
	complete(cmd, "flock", o.flock.words())
	complete(cmd, "former-flock", o.former.flock.words())
	o.completeBackend(cmd)
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= 2 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	return cmd
}

// check returns usage errors, before anything is started.
func (o *mountOptions) check() error {
	var err error
	if o.source, err = mounts.CheckSource(o.source); err != nil {
		if path := new(mounts.PathError); errors.As(err, &path) && path.MayPass() {
			return err // systemd tries again, as it does not after a usage error
		}
		return usage(err)
	}
	if o.name == "" {
		o.name = filepath.Base(o.source)
	}
	if err := volume.ValidateName("namespace", o.namespace); err != nil {
		return usage(fmt.Errorf("--namespace: %w", err))
	}
	if err := volume.ValidateName("name", o.name); err != nil {
		return usage(fmt.Errorf("--name: %w", err))
	}
	if o.nameWait <= 0 {
		return usage(fmt.Errorf("--name-wait %v: want a positive duration", o.nameWait))
	}
	if err := checkTTL(o.ttl); err != nil {
		return err
	}
	if o.suspendWait < 0 {
		return usage(fmt.Errorf("--suspend-wait %v: want a positive duration, or 0 for the TTL", o.suspendWait))
	}
	if err := o.checkBackend(o.podNames); err != nil {
		return err
	}
	if o.embedded && o.remote() {
		return usage(errors.New("--embedded, --endpoints and --backend kubernetes exclude each other: keep one"))
	}
	fstype, network, err := mounts.NetworkFS(o.source)
	if err != nil {
		return err
	}
	if network && !o.remote() && !o.embedded {
		return usage(fmt.Errorf("%s is on a network file system (%s), and locks kept on this machine exclude no other: give --endpoints or --backend kubernetes, or --embedded if only this machine writes there", o.source, fstype))
	}
	if o.sync.value == config.SyncAuto {
		o.sync.value = ""
	}
	if o.policy, err = o.readPolicy(); err != nil {
		return usage(err)
	}
	if o.formerTerms, err = o.former.terms(policy.Terms{Policy: o.policy, Flock: o.flock.value}); err != nil {
		return usage(err)
	}
	return nil
}

func (o *mountOptions) renew() renew.Config {
	return renew.Config{TTL: o.ttl, SuspendWait: o.suspendWait}
}

func (o *mountOptions) run(ctx context.Context) error {
	if err := o.check(); err != nil {
		return err
	}
	state, err := stateDir()
	if err != nil {
		return err
	}
	log := o.logger()
	if over, err := o.supervised(ctx, log); over {
		return err
	}
	names, forget, err := o.pods(o.kube.Kubeconfig, o.node, log)
	if err != nil {
		return err
	}
	defer forget()
	serve.RaiseFileLimit(log)
	vol := serve.New(serve.Config{
		Namespace: o.namespace, Name: o.name, Source: o.source, Mountpoint: o.mountpoint,
		Connect: func(ctx context.Context, log *slog.Logger) (serve.Backend, func(), error) {
			return o.connect(ctx, o.source, log)
		},
		Embedded: !o.remote(),
		Policy:   o.policy, SetPolicy: o.setPolicy, Former: o.formerTerms,
		Renew: o.renew(), Wait: time.Duration(o.wait), NameWait: o.nameWait, Keep: time.Duration(o.keep), Scope: o.scope.value, ReadLocks: o.readLocks, Flock: o.flock.value,
		Sync: o.sync.value, AllowOther: o.allowOther, AcceptVolume: o.acceptVolume, TakeOver: o.takeOver, Guard: o.guard, Worker: supervise.Self(),
		Node: o.node, Version: buildVersion(), StateDir: state, Logger: log,
		SlowWait: o.slowWait, Metrics: o.metrics(), Pods: names,
	})
	checks := func() []serve.Check { return []serve.Check{vol.Check()} }
	stop, err := o.listen(log, checks, o.takeOver || replaces())
	if err != nil {
		return err
	}
	defer stop()
	defer answerStatus(state, log, checks)()
	err = vol.Run(ctx)
	if errors.As(err, new(*serve.RefusedError)) {
		return usage(err)
	}
	if errors.Is(err, serve.ErrHandedOn) {
		return nil
	}
	return err
}
