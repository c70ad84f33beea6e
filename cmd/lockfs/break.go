package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/lockfs/lockfs/internal/serve"
	"github.com/lockfs/lockfs/lockmgr"
)

type breakOptions struct {
	volumeFlags
	reason  string
	force   bool
	timeout time.Duration
}

func newBreak() *cobra.Command {
	o := &breakOptions{}
	cmd := &cobra.Command{
		Use:   "break PATH --reason TEXT",
		Short: "Take a lock away from its holder",
		Long: `Take the lock of the file PATH away from its holder, who may have opened the file by
another of its names. If PATH is a directory, take the lock of a program that renames or
removes it, or a directory above it, but no lock of the files below it. PATH is as for
'lockfs ls'. Programs that wait for the lock keep their places in line.

Where mounts share flock(2) and fcntl(2) locks (--flock cluster), the command also takes
all of these that each mount has on the file. Every program that has the file open on
such a mount gets EIO.

lockfs asks the holder's mount to give the lock up. The mount stops the holder's writes for
good (they fail with EIO), lets writes that are under way finish, and only then lets the
next owner in. If the mount does not answer within --timeout, the holder keeps the lock and
the command fails.

With --force, the command then ends the session of that mount, and with it ALL locks of
that session. It also does so if the lock service has no space left for the question. The
mount might be frozen or cut off: until it notices, its programs can write to files that
others have locked by then.

The log of the holder's mount says who broke the lock, when and why. The lock service keeps
that for a day; in etcd it is under /lockfs/NAMESPACE/NAME/break/.

Exit status:
  0  the lock was broken
  1  nobody holds the lock, or the holder's mount or the lock service did not answer
  2  usage error`,
		Example: `  # Who has it? Take it away
  lockfs ls /mnt/shared/report
  lockfs break /mnt/shared/report --reason "hangs since Monday, ticket 4711"`,
		Args: wants("one PATH", cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd, args[0])
		},
	}
	f := cmd.Flags()
	o.register(f, "that of PATH", ownService)
	o.registerListed(f)
	f.StringVar(&o.reason, "reason", "", "why the lock is broken: a `text` for people who ask later; required")
	f.BoolVar(&o.force, "force", false, "end the session of a holder that does not answer, with all its locks. Its programs may write until its mount notices")
	f.DurationVar(&o.timeout, "timeout", 0, "how long the holder's mount has to answer (default: the TTL of its session)")
	bindEnv(cmd)
	o.completeBackend(cmd)
	return cmd
}

func (o *breakOptions) run(cmd *cobra.Command, path string) error {
	if strings.TrimSpace(o.reason) == "" {
		return usage(errors.New("--reason is required: it tells the holder, and whoever asks later, why the lock was broken"))
	}
	if o.timeout < 0 {
		return usage(fmt.Errorf("--timeout %v: want a positive duration, or 0 for the TTL of the holder's session", o.timeout))
	}
	ctx := cmd.Context()
	start, cancel := context.WithTimeout(ctx, serve.StartTimeout)
	defer cancel()
	backend, at, closeBackend, err := o.reach(start, cmd, path)
	if err != nil {
		return err
	}
	defer closeBackend()
	if err := at.lockedIn(start, backend); err != nil {
		return err
	}
	b := &breaking{breakOptions: o, service: backend, at: at, out: cmd.OutOrStdout(), progress: cmd.ErrOrStderr()}
	if b.keys, err = at.keys(); err != nil {
		return err
	}
	holders, err := b.endDelegations(ctx)
	if err != nil {
		return err
	}
	flocks, err := b.advisoryHolders(ctx)
	if err != nil {
		return err
	}
	if holders = append(holders, flocks...); len(holders) == 0 {
		return fmt.Errorf("%s: nobody holds it", path)
	}
	var errs []error
	for _, held := range holders {
		errs = append(errs, b.take(ctx, held))
	}
	return errors.Join(errs...)
}

// breaking is the breaking of one file's lock.
type breaking struct {
	*breakOptions
	service       lockmgr.Backend
	at            place
	keys          []lockmgr.Key // of the file
	out, progress io.Writer
}

// endDelegations ends the delegations of directories above the file, so that its holder has an
// entry.
func (b *breaking) endDelegations(ctx context.Context) ([][]lockmgr.Entry, error) {
	for {
		holders, err := b.holders(ctx)
		i := slices.IndexFunc(holders, func(held []lockmgr.Entry) bool { return b.above(held[0]) })
		if err != nil || i < 0 {
			return holders, err
		}
		if err := b.take(ctx, holders[i]); err != nil {
			return nil, err
		}
	}
}

func (b *breaking) above(e lockmgr.Entry) bool {
	return e.Mode == lockmgr.Delegated && !slices.ContainsFunc(b.keys, func(k lockmgr.Key) bool { return k.Path == e.Key.Path })
}

// holders returns the locks that exclude others from the file, by acquisition.
func (b *breaking) holders(ctx context.Context) (holders [][]lockmgr.Entry, err error) {
	entries, err := b.service.Entries(ctx, "") // the file's other names, and directories above
	if err != nil {
		return nil, err
	}
	index := make(map[lockmgr.AcquisitionID]int)
	for _, e := range entries {
		if !e.Held {
			index[e.Holder.AcquisitionID] = -1 // it waits: a holder has all its keys
		}
	}
	for _, e := range entries {
		if !slices.ContainsFunc(b.keys, e.Key.Conflicts) {
			continue
		}
		i, known := index[e.Holder.AcquisitionID]
		if i < 0 {
			continue
		}
		if !known {
			i = len(holders)
			index[e.Holder.AcquisitionID] = i
			holders = append(holders, nil)
		}
		holders[i] = append(holders[i], e)
	}
	return holders, nil
}

func (b *breaking) take(ctx context.Context, held []lockmgr.Entry) error {
	holder, path := held[0].Holder, printable(b.at.path)
	if key := held[0].Key.String(); key != b.at.path {
		path += " (" + printable(key) + ")"
	}
	ttl, err := b.service.SessionTTL(ctx, holder.Session)
	if err != nil && !errors.Is(err, lockmgr.ErrSessionLost) { // a lost session has lost this lock too
		return err
	}
	timeout := b.timeout
	if timeout == 0 {
		timeout = max(ttl, time.Second)
	}
	request := lockmgr.Break{
		ID: uuid.New(), Path: held[0].Key.String(), AcquisitionID: holder.AcquisitionID, Token: held[0].Token, Turn: holder.Turn,
		By: whoami(), Reason: b.reason, At: time.Now().UTC(),
	}
	if held[0].Range != nil {
		request.Session = holder.Session
	}
	asked, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	why, then := fmt.Sprintf("has not given it up within %v", timeout), "it may still do so, if its mount has the request"
	if err = b.service.PutBreak(asked, request); err != nil {
		// This works with a lock service that accepts no new entry.
		why, then = fmt.Sprintf("cannot be asked (%v)", err), "it keeps the lock"
	} else {
		fmt.Fprintf(b.progress, "%s: asked %s to give it up, which may take %v\n", path, holder, timeout)
		err = b.gone(asked, held)
		if err == nil && b.above(held[0]) {
			return nil
		}
		if err == nil {
			fmt.Fprintf(b.out, "broken: %s was held by %s; %s\n", path, holder, b.whoHolds(ctx))
			return nil
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			return errors.Join(err, b.withdraw(ctx, request.ID))
		}
	}
	if ctx.Err() != nil {
		return errors.Join(err, b.withdraw(ctx, request.ID))
	}
	locks, err := b.locksOf(ctx, holder.Session)
	if err != nil {
		return errors.Join(err, b.withdraw(ctx, request.ID))
	}
	if !b.force {
		err = fmt.Errorf("%s: %s %s; %s. --force ends its session %s with all its locks (%d); its programs may then write until their mount notices, up to %v, beside the next holders",
			path, holder, why, then, holder.Session, locks, ttl)
		return errors.Join(err, b.withdraw(ctx, request.ID))
	}
	if err := b.service.Revoke(ctx, holder.Session); err != nil {
		return err
	}
	fmt.Fprintf(b.out, "broken by force: %s was held by %s, which %s; ended its session %s with all its locks (%d); its programs may write until their mount notices, up to %v; %s\n",
		path, holder, why, holder.Session, locks, ttl, b.whoHolds(ctx))
	return nil
}

func (b *breaking) gone(ctx context.Context, held []lockmgr.Entry) error {
	if held[0].Range != nil {
		return b.rowGone(ctx, held[0])
	}
	for _, e := range held {
		g := lockmgr.Grant{Key: e.Key, Mode: e.Mode, AcquisitionID: e.Holder.AcquisitionID, Token: e.Token}
		if err := b.service.AwaitGone(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

// withdraw makes sure that a holder that did not answer does not answer later.
func (b *breaking) withdraw(ctx context.Context, id uuid.UUID) error {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), serve.StartTimeout)
	defer cancel()
	if err := b.service.DropBreak(bounded, id); err != nil {
		return fmt.Errorf("the request stands, and may be answered later: %w", err)
	}
	return nil
}

// locksOf counts the locks that end with a session.
func (b *breaking) locksOf(ctx context.Context, session string) (n int, err error) {
	entries, err := b.service.Entries(ctx, "")
	if err != nil {
		return 0, err
	}
	flocks, err := place{}.advisory(ctx, b.service)
	for _, e := range append(entries, flocks...) {
		if e.Holder.Session == session && e.Held {
			n++
		}
	}
	return n, err
}

// whoHolds says what became of the lock.
func (b *breaking) whoHolds(ctx context.Context) string {
	holders, err := b.holders(ctx)
	if err == nil && len(holders) == 0 {
		holders, err = b.advisoryHolders(ctx)
	}
	switch {
	case err != nil:
		return fmt.Sprintf("who holds it now is not known (%v)", err)
	case len(holders) == 0:
		return "now free"
	}
	return "now held by " + holders[0][0].Holder.String()
}

func whoami() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	s := fmt.Sprintf("%s@%s (uid %d, pid %d)", name, host, os.Getuid(), os.Getpid())
	if sudo := os.Getenv("SUDO_USER"); sudo != "" {
		s += ", sudo by " + sudo
	}
	return s
}
