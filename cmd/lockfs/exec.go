package main

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockfs/lockfs/internal/boottime"
	"github.com/lockfs/lockfs/internal/config"
	"github.com/lockfs/lockfs/internal/serve"
	"github.com/lockfs/lockfs/internal/volume"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/policy"
	"github.com/lockfs/lockfs/renew"
)

// Exit statuses of 'lockfs exec': as shells and sysexits.h have them.
const (
	exitConflict    = 75 // EX_TEMPFAIL
	exitNotRunnable = 126
	exitNotFound    = 127
	exitSignal      = 128 // plus the signal's number
)

// releaseTimeout bounds the release at the end of a command. After it, the lock ends with its
// lease.
const releaseTimeout = 3 * time.Second

type execOptions struct {
	volumeFlags
	policyFlags
	ttl      time.Duration
	wait     waitFlag
	shared   bool
	conflict int
	node     string

	at place
}

func newExec() *cobra.Command {
	o := &execOptions{wait: waitFlag(config.DefaultWait)}
	cmd := &cobra.Command{
		Use:   "exec [flags] PATH -- COMMAND [ARG]...",
		Short: "Run a command under the lock of a file",
		Long: `Take the lock of PATH, run COMMAND, and release the lock when COMMAND has ended. It is the
lock that an open of PATH for write takes: meanwhile no program opens PATH for write in a
view, and no other 'lockfs exec' has it, on any node. PATH is in a view, or in the
directory that the view shows. It need not exist. If PATH is a directory, the lock is of
the directory itself, and not of the files below it.

The lock excludes COMMAND too: if COMMAND opens PATH for write in a view, it waits for
'lockfs exec' itself. Let COMMAND write to the directory that the view shows, or choose a
PATH that is nothing but a lock.

COMMAND finds the fencing token in $LOCKFS_TOKEN and the id of the lock in $LOCKFS_LOCK.
lockfs passes on SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2.

If the lock is broken, or could soon be granted to another owner because the lock service
does not answer, lockfs sends SIGTERM to COMMAND and all that it has started, and SIGKILL
after TTL/6. That is at least TTL/3 before another owner can have the lock. If 'lockfs exec'
is stopped (SIGSTOP, Ctrl-Z) or frozen, the kernel kills it another TTL/6 later. If 'lockfs
exec' is killed, the kernel kills COMMAND, but not what COMMAND has started: for that, run
'unshare --pid --fork --kill-child COMMAND'. lockfs cannot kill processes of users that it
has no right to signal, nor processes that hang in the kernel.

Exit status:
  COMMAND's own, or 128 + N if it died of signal N
  1         the lock was lost before COMMAND had ended, or the lock service did not answer
  2         usage error
  75        another owner had the lock for all of --wait; see --conflict-exit-code
  126, 127  COMMAND cannot be run; COMMAND was not found`,
		Example: `  # One backup at a time, on any node
  lockfs exec --wait 0 /mnt/shared/backup.lock -- pg_dump -f /mnt/shared/db.sql db

  # Where 'lockfs serve' has mounted the volume
  lockfs exec --config /etc/lockfs/lockfs.yaml /var/lib/lockfs/shared/view/backup.lock -- make backup`,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 1 || len(args) < 2 {
				return errors.New("want PATH -- COMMAND [ARG]")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd, args[0], args[1:])
		},
	}
	f := cmd.Flags()
	o.volumeFlags.register(f, "that of PATH", ownService)
	o.registerListed(f)
	o.policyFlags.register(f)
	f.DurationVar(&o.ttl, "ttl", config.DefaultTTL, "how long the lock outlives a 'lockfs exec' that is cut off or killed. Whole seconds, at least 3s")
	f.Var(&o.wait, "wait", "how long to wait for the lock. 0: not at all. -1: for ever")
	f.BoolVarP(&o.shared, "shared", "s", false, "share the lock with other --shared commands and with readers that lock; exclude writers")
	f.IntVarP(&o.conflict, "conflict-exit-code", "E", exitConflict, "exit `status` if another owner has the lock")
	f.StringVar(&o.node, "node", "", "`name` of this node in 'lockfs ls' (default: the host name)")
	bindEnv(cmd)
	o.completeBackend(cmd)
	return cmd
}

func (o *execOptions) run(cmd *cobra.Command, path string, argv []string) error {
	rules, err := o.checkFlags()
	if err != nil {
		return err
	}
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return notRunnable(err)
	}
	ctx := cmd.Context()
	start, cancel := context.WithTimeout(ctx, serve.StartTimeout)
	defer cancel()
	backend, at, closeBackend, err := o.reach(start, cmd, path)
	if err != nil {
		return err
	}
	defer closeBackend()
	if o.at = at; at.source == "" {
		return usage(fmt.Errorf("%s is %w", path, errNoVolume)) // without the volume, nobody knows the file's other names
	}
	enforced, err := o.checkPolicy(start, backend, rules, path)
	if err != nil {
		return err
	}
	info, err := o.session(argv, enforced)
	if err != nil {
		return err
	}
	// Nothing is logged: how the command ends tells what became of the lock.
	locks, err := lockmgr.New(start, lockmgr.Config{
		Backend: backend, Session: info, Renew: renew.Config{TTL: o.ttl}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	defer closeInTime(locks)
	hold, grant, err := o.acquire(ctx, locks, argv)
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passedOn()...)
	if err := ctx.Err(); err != nil { // a signal that came before
		return err
	}
	token := lockmgr.FencingToken(grant.Token, 0)
	if !o.shared {
		hold.Looked()
		if token, _, err = locks.FencingToken(ctx, grant.Key); err != nil {
			return err
		}
	}
	env := append(os.Environ(), "LOCKFS_TOKEN="+strconv.FormatInt(token, 10), "LOCKFS_LOCK="+grant.AcquisitionID.String())
	c := &command{
		program: program, argv: argv,
		env:  (&exec.Cmd{Env: env}).Environ(), // each variable once, also below another 'lockfs exec'
		hold: hold, grace: o.ttl / 6,
	}
	status, err := c.run(signals)
	return outcome(path, argv[0], status, err)
}

// checkFlags returns the policy of --policy and --rule, or a usage error.
func (o *execOptions) checkFlags() (*policy.Policy, error) {
	if err := checkTTL(o.ttl); err != nil {
		return nil, err
	}
	if o.conflict < 0 || o.conflict > 255 {
		return nil, usage(fmt.Errorf("--conflict-exit-code %d: want 0 to 255", o.conflict))
	}
	rules, err := o.readPolicy()
	if err != nil {
		return nil, usage(err)
	}
	if o.inConfig() && (o.policyFile != "" || len(o.rules) > 0) {
		return nil, usage(errors.New("--config has the rules of the volume: drop --policy and --rule"))
	}
	return rules, nil
}

// checkPolicy fails unless the policy, of the file with --config, is the mounts' and locks o.at. It
// returns the digests of what it enforces.
func (o *execOptions) checkPolicy(ctx context.Context, record volume.RecordStore, rules *policy.Policy, path string) (enforced []string, err error) {
	from := "--policy and --rule"
	var former *policy.Terms
	if o.inConfig() {
		listed, err := o.listed(o.namespace, o.name)
		if err != nil {
			return nil, err
		}
		rules, former, from = listed.Policy(), listed.FormerTerms(), "the rules in "+o.config
	}
	all := []*policy.Policy{rules}
	if former != nil {
		all = append(all, former.Policy)
	}
	locked := false
	for _, p := range all {
		for _, flock := range policy.Flocks { // it has nothing to do with flocks
			enforced = append(enforced, p.Digest(flock))
		}
		locked = locked || p.Match(o.at.path).Action != policy.NoLock
	}
	_, err = volume.Check(ctx, volume.Config{
		Source: o.at.source, Namespace: o.namespace, Name: o.name, Record: record, Policies: enforced,
	})
	if other := new(volume.PolicyError); errors.As(err, &other) {
		return nil, usage(fmt.Errorf("%s are not those of the mounts: %s: give the mounts' --policy and --rule, or --config", from, other.Differ()))
	}
	if err != nil {
		return nil, err
	}
	if !locked {
		return nil, usage(fmt.Errorf("%s: the volume's policy says that it needs no lock, so that views would not respect one: give another PATH", path))
	}
	return enforced, nil
}

func closeInTime(locks *lockmgr.Manager) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	if err := locks.Close(ctx); err != nil {
		report(err)
	}
}

// outcome is what 'lockfs exec' says and exits with: status, or the status for err.
func outcome(path, program string, status int, err error) error {
	switch {
	case errors.Is(err, lockmgr.ErrLockLost), errors.Is(err, lockmgr.ErrSessionLost), errors.Is(err, lockmgr.ErrSuspended):
		return fmt.Errorf("%s: the lock was lost before %s had ended: %w", path, program, err)
	case err != nil:
		return notRunnable(err)
	case status != 0:
		return statusError{status: status}
	}
	return nil
}

func notRunnable(err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, iofs.ErrNotExist) {
		return statusError{exitNotFound, err}
	}
	return statusError{exitNotRunnable, err}
}

// acquire takes the locks that an open of the file for write takes.
func (o *execOptions) acquire(ctx context.Context, locks *lockmgr.Manager, argv []string) (*lockmgr.Hold, lockmgr.Grant, error) {
	req := lockmgr.Request{
		Owner: "exec", Queue: true, Wait: time.Duration(o.wait),
		Holder: lockmgr.Holder{PID: os.Getpid(), UID: uint32(os.Getuid()), Comm: filepath.Base(argv[0])},
	}
	if o.shared {
		req.Mode = lockmgr.Shared
	}
	for {
		var err error
		if req.Keys, err = o.at.keys(); err != nil {
			return nil, lockmgr.Grant{}, err
		}
		hold, err := locks.Acquire(ctx, req)
		if errors.Is(err, lockmgr.ErrContended) && ctx.Err() == nil {
			err = statusError{o.conflict, err}
		}
		if err != nil {
			return nil, lockmgr.Grant{}, err
		}
		// During the wait the file may have got another name, or have been replaced.
		now, err := o.at.keys()
		if err == nil && slices.Equal(now, req.Keys) {
			return hold, hold.Grant(now[0]), nil
		}
		hold.Release()
		if err != nil {
			return nil, lockmgr.Grant{}, err
		}
	}
}

func (o *execOptions) session(argv, enforced []string) (lockmgr.SessionInfo, error) {
	if o.node == "" {
		var err error
		if o.node, err = os.Hostname(); err != nil {
			return lockmgr.SessionInfo{}, err
		}
	}
	boot, err := boottime.BootID()
	return lockmgr.SessionInfo{
		Node: o.node, BootID: boot, Mountpoint: "lockfs exec " + argv[0], Version: buildVersion(), Started: time.Now(), Policies: enforced,
	}, err
}
