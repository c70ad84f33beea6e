package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// childEnv chooses a hidden mode of the program.
const childEnv = "LOCKFS_BENCH_CHILD"

func main() {
	if isChild, err := runChild(); isChild {
		exit(err)
	}
	opts, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/fs:", err)
		os.Exit(2)
	}
	// What is mounted has to go: a second signal does not end the program either,
	// nor does a reader of the table that has read enough.
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGPIPE)
	defer stop()
	_, err = run(ctx, opts)
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/fs:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// runChild runs a hidden mode if the environment says so.
func runChild() (isChild bool, err error) {
	switch os.Getenv(childEnv) {
	case "view":
		return true, serveView(os.Args[1:])
	case "work":
		return true, serveWork(os.Args[1:])
	case "plain":
		return true, execPlain(os.Args[1:])
	}
	return false, nil
}

// options are the command's flags.
type options struct {
	rows     []row
	systems  []string
	rounds   int
	each     time.Duration // of measuring, for a rate
	short    bool          // small files and trees
	dir      string        // where the directories are made
	profile  string        // of the lockfs daemon
	other    string        // another build of this program
	requests bool
}

func parse(args []string) (options, error) {
	o := options{rows: rows}
	f := flag.NewFlagSet("bench/fs", flag.ExitOnError)
	pattern := f.String("rows", "", "measure the rows that match this regular `expression` only")
	names := f.String("systems", strings.Join(systemNames[:4], ","), "measure these `systems`, of "+strings.Join(systemNames, ", "))
	f.IntVar(&o.rounds, "rounds", 9, "how often each figure is taken; the table shows medians")
	f.DurationVar(&o.each, "time", 200*time.Millisecond, "how long a rate is measured in each round")
	f.BoolVar(&o.short, "short", false, "small files, and by default one round of 100ms: a look, not a measurement")
	f.StringVar(&o.dir, "dir", os.TempDir(), "make the directories in this `directory`; it should be on ext4")
	f.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile of the lockfs daemon to this `file`")
	f.StringVar(&o.other, "other", "", "compare with the view of another build of this `program`, as system other (go build -o PROGRAM ./bench/fs)")
	f.BoolVar(&o.requests, "requests", false, "instead of speed, show the requests that the kernel sends, per system call; times are totals")
	_ = f.Parse(args)
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.short {
		given := make(map[string]bool)
		f.Visit(func(f *flag.Flag) { given[f.Name] = true })
		if !given["rounds"] {
			o.rounds = 1
		}
		if !given["time"] {
			o.each = 100 * time.Millisecond
		}
	}
	if o.rounds < 1 {
		return o, errors.New("-rounds: want at least 1")
	}
	re, err := regexp.Compile(*pattern)
	if err != nil {
		return o, fmt.Errorf("-rows: %w", err)
	}
	o.rows = slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return !re.MatchString(r.name) })
	if len(o.rows) == 0 {
		return o, fmt.Errorf("-rows %s matches no row", *pattern)
	}
	o.systems = strings.Split(*names, ",")
	if o.other != "" {
		o.systems = append(o.systems, "other")
	}
	for _, s := range o.systems {
		if !slices.Contains(systemNames, s) {
			return o, fmt.Errorf("-systems: %q is none of %v", s, systemNames)
		}
	}
	if os.Geteuid() != 0 {
		return o, errors.New("needs root, to mount without fusermount3 as a daemon on a node does")
	}
	return o, nil
}

// run measures, prints, and leaves nothing behind.
func run(ctx context.Context, o options) (_ *results, err error) {
	b, err := newBench(o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.start(ctx); err != nil {
		return nil, err
	}
	if o.requests {
		return nil, b.countRequests(ctx)
	}
	res, err := b.measure(ctx)
	if err != nil {
		return nil, err
	}
	res.print(os.Stdout)
	return res, nil
}

// environ is what children get: a mode, and no signals by which Go's runtime
// preempts, for they would interrupt requests.
func environ(mode string) []string {
	return append(os.Environ(), childEnv+"="+mode, "GODEBUG=asyncpreemptoff=1")
}

// inGroup keeps the terminal's SIGINT from children: they end when we say so.
func inGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
