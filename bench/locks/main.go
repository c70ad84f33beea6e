package main

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/bench/internal/command"
)

var program = command.Program{Name: "bench/locks", Modes: map[string]func([]string) error{
	"member": serveMember, "holder": serveHolder, "view": serveView,
}}

func main() { command.Main(program, parse, run) }

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

func parse(args []string) (o options, err error) {
	f := command.NewFlags(program.Name, systemNames, systemNames, 300*time.Millisecond)
	f.IntVar(&o.handoffs, "handoffs", 100, "how many handoffs are measured in each round")
	f.DurationVar(&o.held, "held", 20*time.Second, "how long locks are held to see what they cost")
	f.StringVar(&o.dir, "dir", memoryDir(), "make etcd's files in this `directory`")
	f.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile of this process, which is the locks' client, to this `file`")
	if err := f.Parse(args, map[string]string{"rounds": "1", "time": "100ms", "handoffs": "10", "held": "1s"}); err != nil {
		return o, err
	}
	o.rounds, o.each = f.Rounds, f.Each
	if o.handoffs < 1 {
		return o, errors.New("-handoffs: want at least 1")
	}
	if o.rows, err = command.Rows(f, allRows(), func(r row) string { return r.name }); err != nil {
		return o, err
	}
	o.systems, err = f.Systems()
	return o, err
}

// memoryDir is where files are in memory, if the machine has such a place.
func memoryDir() string {
	const shm = "/dev/shm"
	if unix.Access(shm, unix.W_OK) == nil {
		return shm
	}
	return os.TempDir()
}

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
