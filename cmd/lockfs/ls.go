package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	iofs "io/fs"
	"strconv"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/lockfs/lockfs/internal/serve"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/advisory"
)

type listOptions struct {
	volumeFlags
	output choiceFlag[string]
	watch  bool
}

func newList() *cobra.Command {
	o := &listOptions{output: choiceFlag[string]{"table", []string{"table", "json", "wide"}}}
	cmd := &cobra.Command{
		Use:     "ls [PATH]",
		Aliases: []string{"list"},
		Short:   "List who holds and who waits for the locks of a volume",
		Long: `List the locks at PATH and below it: who holds them, and who waits for them, in order of
path and of arrival.

PATH is a file or directory in a view, or in the directory that a view shows. The default
is the working directory. If PATH is in neither, --name and the lock service say which
volume, and PATH is relative to its root. The volume need not be on this machine.

MODE is:
  w                 exclusive, to write
  r                 shared with other readers
  tree-w            a directory and all below it, which a program renames or removes;
                    one above PATH is listed too
  inode-w, inode-r  a file that has several names, by its inode number. These come last.
                    PATH also lists holders that opened the file by another name
  flock-w, flock-r  a lock of flock(2), on a mount with --flock cluster, by the file's inode
                    number. They come last, and only if PATH is the whole volume or the
                    file. One line stands for all shared flocks of a mount
  fcntl-w, fcntl-r  a lock of fcntl(2), with its first and last byte. AGE is that of the
                    process's first one in the file

With --watch, each change prints another table, or with -o json one line with an array.
Locks that last less than a second might not show.`,
		Example: `  # Who holds what in a view
  lockfs ls /mnt/shared

  # Where 'lockfs serve' has mounted it. In its pods, --config and --credentials-dir are set
  lockfs ls --config /etc/lockfs/lockfs.yaml /var/lib/lockfs/shared/view

  # Follow the changes
  lockfs ls --watch /mnt/shared

  # From any machine
  lockfs ls --endpoints https://etcd:2379 --name shared logs/app.log -o wide`,
		Args: wants("at most one PATH", cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd, args)
		},
	}
	o.register(cmd.Flags(), "that of PATH", ownService)
	o.registerListed(cmd.Flags())
	cmd.Flags().VarP(&o.output, "output", "o", "output `format`: "+o.output.list())
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "list again when something has changed, until SIGINT. A terminal is redrawn each second")
	bindEnv(cmd)
	complete(cmd, "output", o.output.words())
	o.completeBackend(cmd)
	return cmd
}

func (o *listOptions) run(cmd *cobra.Command, args []string) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), serve.StartTimeout)
	defer cancel()
	path := ""
	if len(args) > 0 {
		path = args[0]
	}
	backend, at, closeBackend, err := o.reach(ctx, cmd, path)
	if err != nil {
		return err
	}
	defer closeBackend()
	if err := at.lockedIn(ctx, backend); err != nil {
		return err
	}
	var keys []lockmgr.Key
	if at.path != "" {
		keys, err = at.keys()
		if err != nil && !errors.Is(err, iofs.ErrPermission) { // without the right to look, the path itself must do
			return err
		}
	}
	list := func(ctx context.Context) ([]lockmgr.Entry, error) {
		entries, err := at.entries(ctx, backend, keys)
		if err != nil {
			return nil, err
		}
		advisory, err := at.advisory(ctx, backend)
		return append(entries, advisory...), err
	}
	if o.watch {
		return o.follow(cmd, at, list)
	}
	entries, err := list(ctx)
	if err != nil {
		return err
	}
	return o.print(cmd.OutOrStdout(), entries, time.Now())
}

func (o *listOptions) follow(cmd *cobra.Command, at place, list func(context.Context) ([]lockmgr.Entry, error)) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	w := watcher{
		list: list, print: o.print, out: cmd.OutOrStdout(), errs: cmd.ErrOrStderr(), what: "/" + printable(at.path) + " of " + o.namespace + "/" + o.name,
		size: func() (int, bool) {
			rows, terminal := terminalRows(cmd.OutOrStdout())
			return rows, terminal && o.output.value != "json"
		},
	}
	return w.run(cmd.Context(), tick.C)
}

func (o *listOptions) print(w io.Writer, entries []lockmgr.Entry, now time.Time) error {
	if o.output.value == "json" {
		lines := make([]line, len(entries))
		for i, e := range entries {
			lines[i] = newLine(e, now)
		}
		enc := json.NewEncoder(w)
		if !o.watch { // without --watch, one line each
			enc.SetIndent("", "  ")
		}
		return enc.Encode(lines)
	}
	wide := o.output.value == "wide"
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	header := "PATH\tMODE\tSTATE\tLOCK\tNODE\tPOD\tCONTAINER\tPID\tCOMMAND\tAGE\tTOKEN"
	if wide {
		header += "\tUID\tSESSION\tSINCE"
	}
	fmt.Fprintln(t, header)
	for _, e := range entries {
		l := newLine(e, now)
		id := l.Lock
		if !wide && e.Range == nil {
			id = e.Holder.AcquisitionID.Short()
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d", printable(e.Key.String()), l.Mode+covers(e.Range), l.State, orDash(id),
			orDash(printable(l.Node)), orDash(printable(e.Holder.PodLabel())), orDash(printable(l.Container)), pid(l.PID), orDash(printable(l.Command)), age(l.age), l.Token)
		if wide {
			fmt.Fprintf(t, "\t%d\t%s\t%s", l.UID, l.Session, l.Since.Format(time.RFC3339))
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

// line is one entry as 'lockfs ls -o json' prints it.
type line struct {
	Path      string    `json:"path"`
	PathBytes []byte    `json:"path_base64,omitempty"` // when the path is not UTF-8
	Mode      string    `json:"mode"`                  // w, r; tree-w: path and all below it; inode-w, inode-r, flock-w, flock-r, fcntl-w, fcntl-r: path is an inode's number
	State     string    `json:"state"`                 // held, waiting, or kept: nobody has it open
	Lock      string    `json:"lock"`                  // its id; "" of a flock or fcntl lock
	Node      string    `json:"node"`
	Pod       string    `json:"pod,omitempty"`      // its UID
	PodName   string    `json:"pod_name,omitempty"` // namespace/name, where the mount knew it
	Container string    `json:"container,omitempty"`
	PID       int       `json:"pid,omitempty"`
	UID       uint32    `json:"uid"`
	Command   string    `json:"command,omitempty"`
	Session   string    `json:"session"`
	Start     *uint64   `json:"start,omitempty"` // of a flock or fcntl lock, the first byte
	End       *uint64   `json:"end,omitempty"`   // and the last; 9223372036854775807: to the end of the file
	Since     time.Time `json:"since"`           // when the lock was asked for, by the holder's clock
	Age       float64   `json:"age_seconds"`     // since then; for a waiter, how long it has waited
	Token     int64     `json:"token"`

	age time.Duration
}

func newLine(e lockmgr.Entry, now time.Time) line {
	l := line{
		Path: e.Key.Path, Mode: mode(e), State: e.State(), Lock: e.Holder.AcquisitionID.String(), Node: e.Holder.Node,
		Pod: e.Holder.Pod, PodName: e.Holder.PodName, Container: e.Holder.Container, PID: e.Holder.PID, UID: e.Holder.UID, Command: e.Holder.Comm, Session: e.Holder.Session,
		Since: e.Holder.Since, Token: e.FencingToken(), age: max(0, now.Sub(e.Holder.Since)),
	}
	if e.Range != nil {
		l.Lock, l.Start, l.End = "", &e.Range.Start, &e.Range.End
	}
	l.Age = l.age.Seconds()
	if !utf8.ValidString(l.Path) {
		l.PathBytes = []byte(l.Path)
	}
	return l
}

func mode(e lockmgr.Entry) string {
	s := "w"
	if e.Mode == lockmgr.Shared {
		s = "r"
	}
	switch {
	case e.Range != nil:
		return e.Range.Kind.String() + "-" + s
	case e.Key.Kind == lockmgr.Tree:
		return "tree-" + s
	case e.Key.Kind == lockmgr.Inode:
		return "inode-" + s
	}
	return s
}

func covers(r *lockmgr.Range) string {
	switch {
	case r == nil || r.Kind == advisory.Flock:
		return ""
	case r.End == advisory.EOF:
		return fmt.Sprintf(" %d-", r.Start)
	}
	return fmt.Sprintf(" %d-%d", r.Start, r.End)
}

// printable quotes characters that would disturb a terminal or a table.
func printable(s string) string {
	if q := strconv.Quote(s); q[1:len(q)-1] != s {
		return q
	}
	return s
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func pid(p int) string {
	if p == 0 {
		return "-"
	}
	return strconv.Itoa(p)
}

// age prints a duration as kubectl does: short, in one or two units.
func age(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 3*time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}
