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
		fmt.Fprintln(os.Stderr, "bench/locks:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGPIPE)
	defer stop()
	_, err = run(ctx, opts)
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/locks:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// runChild runs a hidden mode if the environment says so.
func runChild() (isChild bool, err error) {
	switch os.Getenv(childEnv) {
	case "member":
		return true, serveMember(os.Args[1:])
	case "holder":
		return true, serveHolder(os.Args[1:])
	}
	return false, nil
}

// options are the command's flags.
type options struct {
	rows     []row
	systems  []string
	rounds   int
	each     time.Duration // of measuring, for a rate
	handoffs int           // of measuring, for a handoff
	held     time.Duration // how long locks are held to see what they cost
	dir      string        // where etcd's files are made
	profile  string
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("bench/locks", flag.ExitOnError)
	pattern := f.String("rows", "", "measure the rows that match this regular `expression` only")
	names := f.String("systems", strings.Join(systemNames, ","), "measure these `systems`")
	f.IntVar(&o.rounds, "rounds", 9, "how often each figure is taken, those that take long less often; the table shows medians")
	f.DurationVar(&o.each, "time", 300*time.Millisecond, "how long a rate is measured in each round")
	f.IntVar(&o.handoffs, "handoffs", 100, "how many handoffs are measured in each round")
	f.DurationVar(&o.held, "held", 20*time.Second, "how long locks are held to see what they cost")
	short := f.Bool("short", false, "by default one round of little: a look, not a measurement")
	f.StringVar(&o.dir, "dir", memoryDir(), "make etcd's files in this `directory`")
	f.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile of this process, which is the locks' client, to this `file`")
	_ = f.Parse(args)
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if *short {
		given := make(map[string]bool)
		f.Visit(func(f *flag.Flag) { given[f.Name] = true })
		for name, v := range map[string]string{"rounds": "1", "time": "100ms", "handoffs": "10", "held": "1s"} {
			if !given[name] {
				_ = f.Set(name, v)
			}
		}
	}
	if o.rounds < 1 || o.handoffs < 1 {
		return o, errors.New("-rounds, -handoffs: want at least 1")
	}
	re, err := regexp.Compile(*pattern)
	if err != nil {
		return o, fmt.Errorf("-rows: %w", err)
	}
	o.rows = slices.DeleteFunc(allRows(), func(r row) bool { return !re.MatchString(r.name) })
	if len(o.rows) == 0 {
		return o, fmt.Errorf("-rows %s matches no row", *pattern)
	}
	o.systems = strings.Split(*names, ",")
	for _, s := range o.systems {
		if !slices.Contains(systemNames, s) {
			return o, fmt.Errorf("-systems: %q is none of %v", s, systemNames)
		}
	}
	return o, nil
}

// memoryDir is where files are in memory, if the machine has such a place.
func memoryDir() string {
	const shm = "/dev/shm"
	if unix.Access(shm, unix.W_OK) == nil {
		return shm
	}
	return os.TempDir()
}

// run measures, prints, and leaves nothing behind.
func run(ctx context.Context, o options) (*results, error) {
	stop, err := profileTo(o.profile)
	if err != nil {
		return nil, err
	}
	b := bench{opts: o}
	res, err := b.measure(ctx)
	if err = errors.Join(err, stop()); err != nil {
		return nil, err
	}
	res.print(os.Stdout)
	return res, nil
}
