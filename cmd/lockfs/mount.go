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
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/fs"
	"github.com/lockfs/lockfs/internal/boottime"
	"github.com/lockfs/lockfs/internal/lifeline"
	"github.com/lockfs/lockfs/internal/mounts"
	"github.com/lockfs/lockfs/internal/procid"
	"github.com/lockfs/lockfs/internal/volume"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/policy"
	"github.com/lockfs/lockfs/renew"
)

// startTimeout bounds the first answers of the lock service, so that a mount
// that cannot work says so instead of hanging.
const startTimeout = 15 * time.Second

// syncAuto is fs.SyncClose on a network file system, else fs.SyncNever.
const syncAuto fs.Sync = "auto"

// mountOptions are the flags of 'lockfs mount'.
type mountOptions struct {
	volumeFlags
	policyFlags
	ttl, suspendWait, nameWait time.Duration
	wait                       waitFlag
	scope                      choiceFlag[fs.Scope]
	sync                       choiceFlag[fs.Sync]
	logFormat                  choiceFlag[string]
	node                       string
	readLocks                  bool
	allowOther                 bool
	foreground                 bool
	embedded                   bool
	guard                      bool

	source, mountpoint string
	policy             *policy.Policy
}

func newMount() *cobra.Command {
	o := &mountOptions{
		wait:      waitFlag(fs.DefaultWait),
		scope:     choiceFlag[fs.Scope]{fs.ScopeAuto, fs.Scopes},
		sync:      choiceFlag[fs.Sync]{syncAuto, []fs.Sync{syncAuto, fs.SyncClose, fs.SyncAlways, fs.SyncNever}},
		logFormat: choiceFlag[string]{"text", []string{"text", "json"}},
	}
	cmd := &cobra.Command{
		Use:   "mount SOURCE MOUNTPOINT",
		Short: "Mount a view of SOURCE at MOUNTPOINT and serve it until it is unmounted",
		Long: `Mount a view of the directory SOURCE at MOUNTPOINT, an empty directory, and serve it
until it is unmounted or the program gets SIGINT or SIGTERM.

All mounts of a volume must agree on --namespace, --name, SOURCE's root and the policy
(--policy, --rule), and use the same lock service. Without --endpoints that is an etcd which lockfs runs by itself, for the mounts of
this machine only.`,
		Example: `  # Try it on one machine
  lockfs mount /srv/shared /mnt/shared

  # On every node, over a network volume
  lockfs mount --endpoints https://etcd:2379 --name shared /net/shared /mnt/shared

  # Logs need no lock, and nobody changes the configuration
  lockfs mount --rule '*.log nolock' --rule '/etc/** readonly' /srv/shared /mnt/shared`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.source, o.mountpoint = args[0], args[1]
			if !cmd.Flags().Changed("guard") {
				o.guard = os.Geteuid() == 0 && len(o.dial.Endpoints) > 0
			}
			return o.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	o.volumeFlags.register(f)
	o.policyFlags.register(f)
	f.DurationVar(&o.ttl, "ttl", 15*time.Second, "how long a lock outlives a mount that is cut off or killed; whole seconds, at least 3s")
	f.Var(&o.wait, "wait", "how long an open waits for a lock; 0 refuses at once, -1 waits for ever")
	f.DurationVar(&o.nameWait, "name-wait", fs.DefaultNameWait, "how long a request that cannot queue (rename, unlink, truncate, …) tries a lock held on another node")
	f.DurationVar(&o.suspendWait, "suspend-wait", 0, "how long writes wait for a lock service that does not answer, before EIO (default: the TTL)")
	f.Var(&o.scope, "scope", "who shares a lock: "+o.scope.list()+"; auto is the pod of the caller, or its process outside of one")
	f.BoolVar(&o.readLocks, "read-locks", false, "lock files that are open for read, too: shared by readers, excluding writers")
	f.Var(&o.sync, "sync", "when written bytes must be on the volume: "+o.sync.list()+"; close is at close and whenever the lock service does not answer, auto is close on a network file system, else never")
	f.StringVar(&o.node, "node", "", "name of this node in 'lockfs ls' (default: the host name)")
	f.Var(&o.logFormat, "log-format", o.logFormat.list())
	f.BoolVar(&o.allowOther, "allow-other", os.Geteuid() == 0, "let other users use the view")
	f.BoolVar(&o.foreground, "foreground", true, "stay in the foreground: the only mode, a service manager does the rest")
	f.BoolVar(&o.embedded, "embedded", false, "use the embedded etcd even if SOURCE is on a network file system: nothing is locked against other machines")
	f.BoolVar(&o.guard, "guard", false, "make the bare MOUNTPOINT immutable, so that nothing is written to it while it is not mounted; chattr -i takes it back (default: as root with --endpoints)")
	bindEnv(cmd)
	complete(cmd, "scope", o.scope.words())
	complete(cmd, "sync", o.sync.words())
	complete(cmd, "log-format", o.logFormat.words())
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= 2 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	return cmd
}

// check refuses what cannot work, before anything is started.
func (o *mountOptions) check() error {
	if !o.foreground {
		return usage(errors.New("--foreground=false: lockfs stays in the foreground; run it under a service manager"))
	}
	var err error
	if o.source, err = mounts.CheckSource(o.source); err != nil {
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
	if err := o.renew().Validate(); err != nil {
		return usage(fmt.Errorf("--ttl %v: %w", o.ttl, err))
	}
	if o.embedded && len(o.dial.Endpoints) > 0 {
		return usage(errors.New("--embedded and --endpoints exclude each other: drop one"))
	}
	fstype, network, err := mounts.NetworkFS(o.source)
	if err != nil {
		return err
	}
	if network && len(o.dial.Endpoints) == 0 && !o.embedded {
		return usage(fmt.Errorf("%s is on a network file system (%s), and locks kept on this machine exclude no other: give --endpoints, or --embedded if only this machine writes there", o.source, fstype))
	}
	if o.sync.value == syncAuto {
		o.sync.value = fs.SyncNever
		if network {
			o.sync.value = fs.SyncClose
		}
	}
	if o.guard && os.Geteuid() != 0 {
		return usage(errors.New("--guard: only root can make a directory immutable: drop it, or run as root"))
	}
	if o.policy, err = o.readPolicy(); err != nil {
		return usage(err)
	}
	if scope := o.needsHostPIDs(); scope != "" && !(procid.Proc{}).InHostPIDNamespace() {
		return usage(fmt.Errorf("scope %s: callers cannot be told apart outside the host's PID namespace: share it (in Kubernetes: hostPID: true), or use scope handle or node", scope))
	}
	if err := mounts.CheckFuse(); err != nil {
		return err
	}
	if err := mounts.ClearStale(o.mountpoint); errors.As(err, new(*mounts.PathError)) {
		return usage(err)
	} else if err != nil {
		return err
	}
	if o.mountpoint, err = mounts.CheckMountpoint(o.source, o.mountpoint); err != nil {
		return usage(err)
	}
	return nil
}

// needsHostPIDs returns a scope, of the mount or of a rule, that tells callers
// apart by their processes; "" if there is none.
func (o *mountOptions) needsHostPIDs() fs.Scope {
	if o.scope.value.NeedsHostPIDs() {
		return o.scope.value
	}
	for _, r := range o.policy.Rules() {
		if s := fs.Scope(r.Scope); s.NeedsHostPIDs() {
			return s
		}
	}
	return ""
}

func (o *mountOptions) renew() renew.Config {
	return renew.Config{TTL: o.ttl, SuspendWait: o.suspendWait}
}

func (o *mountOptions) logger() *slog.Logger {
	if o.logFormat.value == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, nil))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil))
}

func (o *mountOptions) run(ctx context.Context) error {
	if err := o.check(); err != nil {
		return err
	}
	log := o.logger().With(slog.String("namespace", o.namespace), slog.String("name", o.name))
	raiseFileLimit(log)

	start, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	backend, closeBackend, err := o.connect(start, o.source, log)
	if err != nil {
		return err
	}
	defer closeBackend()
	volumeID, err := volume.Check(start, volume.Config{
		Source: o.source, Namespace: o.namespace, Name: o.name, Record: backend,
		Policy: o.policy.Digest(), SetPolicy: o.setPolicy,
	})
	if err != nil {
		return err
	}
	info, err := o.session()
	if err != nil {
		return err
	}
	next, err := newSuccessor(backend, volumeID, o.source, info.BootID, log)
	if err != nil {
		return err
	}
	life, err := lifeline.Hold(next.dir, next.dev)
	if err != nil {
		return fmt.Errorf("the mark of a living mount: %w", err)
	}
	// Unless the session has ended, for whoever comes next to find it dead.
	defer life.Leave()
	info.Lifeline = life.ID
	next.succeed(start)
	locks, err := lockmgr.New(start, lockmgr.Config{Backend: backend, Session: info, Renew: o.renew(), Logger: log})
	if err != nil {
		return err
	}
	if o.guard {
		guardMountpoint(log, o.mountpoint)
	}
	view, err := fs.Mount(o.mountpoint, fs.Config{
		Source: o.source, Locks: locks, Scope: o.scope.value, Policy: o.policy, Wait: time.Duration(o.wait), NameWait: o.nameWait, Sync: o.sync.value,
		ReadLocks:  o.readLocks,
		AllowOther: o.allowOther, Logger: log,
	})
	if err != nil {
		return errors.Join(err, o.closeLocks(locks))
	}
	log.Info("mounted", slog.String("source", o.source), slog.String("mountpoint", o.mountpoint),
		slog.String("policy", o.policy.Digest()), slog.String("version", buildVersion()))
	defer reportUnmatched(log, o.policy)

	unmounted := make(chan struct{})
	go func() { view.Wait(); close(unmounted) }()
	select {
	case <-ctx.Done():
		log.Info("unmounting on a signal")
	case <-unmounted:
		log.Info("unmounted by somebody else")
	}
	// Programs that still write get what they wrote to the volume first; only
	// then are the locks let go.
	stop, cancelStop := context.WithTimeout(context.Background(), o.ttl)
	defer cancelStop()
	err = view.Close(stop)
	if errors.Is(err, context.DeadlineExceeded) {
		// A write is still on its way to the volume: nobody else may have its
		// lock before the lease ends by itself.
		return fmt.Errorf("writes are still under way after %v; their locks end with the lease: %w", o.ttl, err)
	}
	if closeErr := o.closeLocks(locks); closeErr != nil {
		return errors.Join(err, closeErr)
	}
	life.Close()
	return err
}

func (o *mountOptions) closeLocks(locks *lockmgr.Manager) error {
	ctx, cancel := context.WithTimeout(context.Background(), o.ttl)
	defer cancel()
	return locks.Close(ctx)
}

// session describes this mount to those who look at its locks.
func (o *mountOptions) session() (lockmgr.SessionInfo, error) {
	if o.node == "" {
		var err error
		if o.node, err = os.Hostname(); err != nil {
			return lockmgr.SessionInfo{}, err
		}
	}
	boot, err := boottime.BootID()
	if err != nil {
		return lockmgr.SessionInfo{}, err
	}
	return lockmgr.SessionInfo{
		Node: o.node, BootID: boot, Mountpoint: o.mountpoint, Version: buildVersion(), Started: time.Now(),
	}, nil
}

// guardMountpoint keeps programs from writing to the bare directory while the
// view is away. It stays when the mount ends: the next one is as likely to be late.
func guardMountpoint(log *slog.Logger, mountpoint string) {
	switch set, err := mounts.Guard(mountpoint); {
	case err != nil:
		log.Warn("the bare mountpoint cannot be guarded: while it is not mounted, programs can write to it", slog.Any("error", err))
	case set:
		log.Info("the bare mountpoint is immutable from now on (chattr -i takes it back)", slog.String("mountpoint", mountpoint))
	}
}

// raiseFileLimit makes room for one descriptor per inode that the kernel knows.
func raiseFileLimit(log *slog.Logger) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return
	}
	const want = 1 << 20 // the kernel's own limit, unless fs.nr_open was changed
	if l.Max < want && unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: want, Max: want}) == nil {
		return
	}
	l.Cur = l.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		log.Warn("cannot raise the limit of open files", slog.Any("error", err))
	}
}
