package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/lockfs/lockfs/bench/internal/command"
)

var program = command.Program{Name: "bench/fs", Modes: map[string]func([]string) error{
	"view": serveView, "work": serveWork, "plain": execPlain,
}}

func main() { command.Main(program, parse, run) }

// options are the command's flags.
type options struct {
	rows     []row
	systems  []string
	of       string // the system whose ratios are shown
	rounds   int
	each     time.Duration // of measuring, for a rate
	short    bool          // small files and trees
	dir      string        // where the directories are made
	profile  string        // of the lockfs daemon
	other    string        // another build of this program
	mount    string        // more flags of 'lockfs mount'
	requests bool
}

func parse(args []string) (o options, err error) {
	f := command.NewFlags(program.Name, systemNames, systemNames[:4], 200*time.Millisecond)
	f.StringVar(&o.of, "of", "lockfs", "show the ratios of this `system` over the others")
	f.StringVar(&o.dir, "dir", os.TempDir(), "make the directories in this `directory`; it should be on ext4")
	f.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile of the lockfs daemon to this `file`")
	f.StringVar(&o.other, "other", "", "compare with the view of another build of this `program`, as system other (go build -o PROGRAM ./bench/fs)")
	f.StringVar(&o.mount, "mount", "", "give 'lockfs mount' these `flags` too in the systems nolock, etcd, kept and supervised: to name another lock service")
	f.BoolVar(&o.requests, "requests", false, "instead of speed, show the requests that the kernel sends, per system call; times are totals")
	if err := f.Parse(args, map[string]string{"rounds": "1", "time": "100ms"}); err != nil {
		return o, err
	}
	o.rounds, o.each, o.short = f.Rounds, f.Each, f.Short
	if o.rows, err = command.Rows(f, rows, func(r row) string { return r.name }); err != nil {
		return o, err
	}
	if o.systems, err = f.Systems(); err != nil {
		return o, err
	}
	if o.other != "" {
		o.systems = append(o.systems, "other")
	}
	if !slices.Contains(o.systems, o.of) {
		return o, fmt.Errorf("-of %s is none of %v", o.of, o.systems)
	}
	if os.Geteuid() != 0 {
		return o, errors.New("needs root, to mount without fusermount3 as a daemon on a node does")
	}
	return o, nil
}

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

// environ disables Go's preemption signals, which would interrupt requests.
func environ(mode string) []string {
	return append(command.Environ(mode), "GODEBUG=asyncpreemptoff=1")
}

// inGroup keeps the terminal's SIGINT from children: the bench ends them.
func inGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
