package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockfs/lockfs/internal/mounts"
	"github.com/lockfs/lockfs/internal/serve"
	"github.com/lockfs/lockfs/internal/status"
)

// defaultServeState is the state directory of 'lockfs serve'.
const defaultServeState = "/run/lockfs"

// viewTimeout bounds the check whether a view without a daemon is dead.
const viewTimeout = 2 * time.Second

type statusOptions struct {
	stateDir string
	output   choiceFlag[string]
}

func newStatus() *cobra.Command {
	o := &statusOptions{output: choiceFlag[string]{"text", []string{"text", "json"}}}
	cmd := &cobra.Command{
		Use:   "status [MOUNTPOINT]...",
		Short: "Show the views of this machine, and what is wrong",
		Long: `Show each view of this machine's daemons: whether it answers, its session and its lock
service, the locks that it holds and who waits for one. MOUNTPOINT chooses views, by their
mountpoint or SOURCE.

The first line of a view begins with:
  [+]  it is served
  [!]  it has trouble, and its daemon serves the others
  [-]  it is not served, or not yet
  [*]  a rule of docs/SEMANTICS.md does not hold, because of the volume's mount options

The daemons answer from memory, also while the volume or the lock service hangs. Only root
and the user of a daemon can ask it. In a pod, run the command in the daemon's container.

Exit status:
  0  all views are served
  1  a view has trouble or is dead, a daemon does not answer, or there is none
  2  usage error`,
		Example: `  # All views
  lockfs status

  # One view, for a script
  lockfs status -o json /mnt/shared

  # In Kubernetes
  kubectl -n lockfs-system exec POD -- lockfs status`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), args, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.VarP(&o.output, "output", "o", "output `format`: "+o.output.list())
	f.StringVar(&o.stateDir, "state-dir", "", "state `directory` of the daemons (default: that of 'lockfs mount' for this user; for root, also "+defaultServeState+")")
	bindEnv(cmd)
	complete(cmd, "output", o.output.words())
	return cmd
}

func (o *statusOptions) run(ctx context.Context, chosen []string, out io.Writer) error {
	dirs, err := o.stateDirs()
	if err != nil {
		return err
	}
	daemons := []status.Daemon{}
	for _, dir := range dirs {
		found, err := status.Ask(ctx, dir)
		if err != nil {
			return err
		}
		daemons = append(daemons, found...)
	}
	dead, err := deadViews(daemons)
	if err != nil {
		return err
	}
	if len(chosen) > 0 {
		if daemons, dead, err = choose(chosen, daemons, dead); err != nil {
			return err
		}
	}
	slices.SortStableFunc(daemons, func(a, b status.Daemon) int { return cmp.Compare(a.PID, b.PID) })
	if o.output.value == "json" {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		err = enc.Encode(statusOutput{daemons, dead})
	} else {
		err = printStatus(out, daemons, dead)
	}
	switch {
	case err != nil:
		return err
	case len(daemons) == 0 && len(dead) == 0:
		return fmt.Errorf("no daemon of this user answers in %s: does it belong to another user, or run in a container?", strings.Join(dirs, " or "))
	case troubled(daemons, dead):
		return statusError{exitFailure, nil}
	}
	return nil
}

func (o *statusOptions) stateDirs() ([]string, error) {
	if o.stateDir != "" {
		if !filepath.IsAbs(o.stateDir) {
			return nil, usage(fmt.Errorf("--state-dir %s: want an absolute path", o.stateDir))
		}
		return []string{o.stateDir}, nil
	}
	dir, err := stateDir()
	if err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return []string{dir}, nil
	}
	return slices.Compact([]string{dir, defaultServeState}), nil
}

// deadViews returns the views of this mount namespace that no daemon serves.
func deadViews(daemons []status.Daemon) ([]status.View, error) {
	table, err := mounts.List()
	if err != nil {
		return nil, err
	}
	table = slices.DeleteFunc(table, func(m mounts.Mount) bool {
		return m.FSType != mounts.FSType || slices.ContainsFunc(daemons, func(d status.Daemon) bool {
			return slices.ContainsFunc(d.Views, func(v status.View) bool { return v.Mountpoint == m.Point && v.Session != nil })
		})
	})
	dead := []status.View{}
	for _, m := range unserved(table, mounts.Served) {
		dead = append(dead, status.View{
			State: status.NotServed, Source: m.Source, Mountpoint: m.Point,
			Error: "its daemon has ended: unmount it, or start the daemon again",
		})
	}
	return dead, nil
}

// unserved asks all views at the same time, and returns those that are dead. A view that does not
// answer within viewTimeout is not.
func unserved(views []mounts.Mount, served func(point string) bool) []mounts.Mount {
	dead := make([]chan bool, len(views))
	var asked sync.WaitGroup
	for i, m := range views {
		dead[i] = make(chan bool, 1)
		asked.Go(func() { dead[i] <- !served(m.Point) })
	}
	all := make(chan struct{})
	go func() { asked.Wait(); close(all) }()
	select {
	case <-all:
	case <-time.After(viewTimeout):
	}
	var found []mounts.Mount
	for i, m := range views {
		select {
		case is := <-dead[i]:
			if is {
				found = append(found, m)
			}
		default:
		}
	}
	return found
}

// choose returns the views at the paths, and the daemons that do not say what they serve.
func choose(chosen []string, daemons []status.Daemon, dead []status.View) ([]status.Daemon, []status.View, error) {
	missing := make(map[string]bool)
	paths := make([]string, len(chosen))
	for i, p := range chosen {
		abs, err := filepath.Abs(p)
		if err != nil {
			return nil, nil, err
		}
		// The last name is not resolved: that could hang.
		if dir, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
			abs = filepath.Join(dir, filepath.Base(abs))
		}
		paths[i], missing[abs] = abs, true
	}
	other := func(v status.View) bool {
		at := slices.Contains(paths, v.Mountpoint) || slices.Contains(paths, v.Source)
		delete(missing, v.Mountpoint)
		delete(missing, v.Source)
		return !at
	}
	silent := false
	kept := []status.Daemon{}
	for _, d := range daemons {
		d.Views = slices.DeleteFunc(d.Views, other)
		silent = silent || d.Error != ""
		if len(d.Views) > 0 || d.Error != "" {
			kept = append(kept, d)
		}
	}
	dead = slices.DeleteFunc(dead, other)
	for path := range missing {
		if !silent {
			return nil, nil, fmt.Errorf("%s is neither the MOUNTPOINT nor the SOURCE of a view here; 'lockfs status' alone shows all views", path)
		}
	}
	if len(missing) == 0 { // no silent daemon has them
		kept = slices.DeleteFunc(kept, func(d status.Daemon) bool { return d.Error != "" })
	}
	return kept, dead, nil
}

// statusOutput is what 'lockfs status -o json' prints.
type statusOutput struct {
	Daemons []status.Daemon `json:"daemons"`
	Dead    []status.View   `json:"dead_views"`
}

func troubled(daemons []status.Daemon, dead []status.View) bool {
	return len(dead) > 0 || slices.ContainsFunc(daemons, func(d status.Daemon) bool {
		return d.Error != "" || slices.ContainsFunc(d.Views, func(v status.View) bool { return v.State != status.Served })
	})
}

// marks begin the first line of a view, as in /readyz.
var marks = map[string]string{status.Served: "[+]", status.Trouble: "[!]", status.NotServed: "[-]"}

func printStatus(out io.Writer, daemons []status.Daemon, dead []status.View) error {
	var b strings.Builder
	for _, d := range daemons {
		if d.Error != "" {
			fmt.Fprintf(&b, "[!] daemon, pid %d: %s\n", d.PID, oneLine(d.Error))
			continue
		}
		if len(d.Views) == 0 {
			fmt.Fprintf(&b, "[+] daemon, pid %d: it serves no volume\n", d.PID)
		}
		for _, v := range d.Views {
			printView(&b, v)
			fmt.Fprintf(&b, "    daemon        pid %d, %s, for %s\n", d.PID, printable(d.Version), age(time.Since(d.Started)))
		}
	}
	for _, v := range dead {
		fmt.Fprintf(&b, "[-] %s: %s\n", printable(v.Mountpoint), v.Error)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func printView(b *strings.Builder, v status.View) {
	what := "ok"
	if v.Error != "" {
		what = oneLine(v.Error)
	}
	fmt.Fprintf(b, "%s %s: %s\n", marks[v.State], printable(v.Volume), what)
	for _, rule := range v.BrokenRules {
		fmt.Fprintf(b, "[*] %s: %s\n", printable(v.Volume), oneLine(rule))
	}
	if v.Mountpoint != "" {
		fmt.Fprintf(b, "    view          %s, of %s\n", printable(v.Mountpoint), printable(v.Source))
	}
	if s := v.Session; s != nil {
		fmt.Fprintf(b, "    session       %s, TTL %v\n", s.State, seconds(s.TTL))
		fmt.Fprintf(b, "    lock service  %s\n", printable(v.LockService))
		fmt.Fprintf(b, "                  answered %s ago", age(seconds(s.Answered)))
		if s.Took > 0 { // 0: the session began
			fmt.Fprintf(b, ", within %s", seconds(s.Took).Round(100*time.Microsecond))
		}
		b.WriteByte('\n')
		if s.Error != "" {
			fmt.Fprintf(b, "                  does not answer: %s\n", oneLine(s.Error))
		}
	}
	if l := v.Locks; l != nil {
		fmt.Fprintf(b, "    locks         %d held, %d waiting\n", l.Held, l.Waiting)
		for _, w := range l.Longest {
			fmt.Fprintf(b, "                  %s waits for %s: pid %d (%s)", age(seconds(w.Seconds)), printable(w.Path), w.PID, printable(w.Command))
			if w.Pod != "" {
				fmt.Fprintf(b, " in pod %s", printable(w.Pod))
			}
			b.WriteByte('\n')
		}
	}
	if f := v.Files; f != nil {
		fmt.Fprintf(b, "    files         %d open; the volume serves %d requests, %d wait for their turn\n", f.Open, f.UnderWay, f.Waiting)
	}
	if t := v.Takeovers; t != nil {
		after := ""
		if t.Deaths > 0 {
			after = fmt.Sprintf(" (%d after a death: %s)", t.Deaths, cmp.Or(oneLine(t.Died), "not the last one"))
		}
		fmt.Fprintf(b, "    takeovers     %d%s, the last %s ago; it took %s and carried %d open files, %d locks, %d waiting\n",
			t.Count, after, age(seconds(t.Ago)), seconds(t.Took).Round(time.Millisecond), t.Files, t.Locks, t.Waiting)
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// oneLine escapes what would disturb a terminal. Quotes do not: an error has many.
func oneLine(s string) string {
	var b strings.Builder
	for _, r := range strings.ReplaceAll(s, "\n", "; ") {
		if strconv.IsGraphic(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

func answerStatus(stateDir string, log *slog.Logger, checks func() []serve.Check) (stop func()) {
	began := time.Now()
	stop, err := status.Listen(stateDir, func(ctx context.Context) status.Daemon {
		return status.Daemon{PID: os.Getpid(), Version: buildVersion(), Started: began, Views: serve.Report(ctx, checks())}
	})
	if err != nil {
		log.Warn("'lockfs status' cannot ask this daemon", slog.Any("error", err))
		return func() {}
	}
	return stop
}
