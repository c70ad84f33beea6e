// Command volumes runs the tests of semantics and programs that can run on a network volume on
// real ones: it brings up a server and two separate clients of each kind, and takes
// all of it down again.
//
//	go run ./integration/volumes [-run PATTERN] [-options default|recommended] [-keep] KIND...
//
// A volume stands in namespaces of its own:
//
//	volumes (outside)      builds lockfs and the tests, installs what a kind needs
//	  └ init (inside)      reaps, and at the end kills what still runs
//	      └ lab (inside)   server, clients, and the tests
//
// The PID namespace is the host's: lockfs knows its callers there alone.
// Inside, /tmp, /dev/shm and /run are its own and in memory, and so is the network,
// where the machine has the address 10.77.0.1. So nothing is left, however a run ends.
//
// The tests make faults by asking the lab, see lab.fault.
package main

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// kind is a kind of volume.
type kind struct {
	programs []string // that it needs
	packages []string // of Debian, that have them
	prepare  func() error
	// guest has the volume brought up, and the tests run, in a guest with a kernel of its own.
	// Packages are unpacked for it, and not installed.
	guest bool
	// up brings the volume up and returns where its clients have it mounted.
	up func(l *lab) (clients []string, err error)
	// syncs counts, if it is set, what the server was asked since it runs, or its clients if it
	// cannot say. "sync" is how often it was told to have bytes on its disk, in any way; other
	// names are for the reader of the log.
	syncs func(l *lab) (map[string]int, error)
	traits
}

// traits are what the tests have to know of a kind.
type traits struct {
	// Keeps is how long the server keeps from others what a client had in use that was killed.
	Keeps time.Duration
	// NoWinner has the ways to claim a job that the volume itself, now and then, lets nobody win.
	NoWinner []string
}

var kinds = map[string]kind{
	"disk":          {up: disk},
	"disk-in-guest": {guest: true, up: disk},
	"nfs3":          {guest: true, packages: nfsPackages, up: nfs("3"), syncs: nfsSyncs},
	"nfs4":          {guest: true, packages: nfsPackages, up: nfs("4.2"), syncs: nfsSyncs},
	"smb":           {guest: true, packages: smbPackages, up: smb},
	"cephkernel":    {guest: true, packages: cephPackages, up: cephKernel},
	"gluster": {
		programs: []string{"glusterd", "glusterfs"},
		packages: []string{"glusterfs-server", "glusterfs-client"},
		up:       gluster,
		syncs:    glusterSyncs,
		// Its brick makes a directory and then gives it a number. If another client looks it up
		// in between, the look-up gives the number, and the maker gets EEXIST.
		traits: traits{NoWinner: []string{"mkdir"}},
	},
	"ceph": {
		programs: []string{"ceph-mon", "ceph-osd", "ceph-mds", "ceph-fuse", "ceph"},
		packages: append(cephPackages, "ceph-fuse"),
		up:       ceph,
		syncs:    cephSyncs,
		traits:   traits{Keeps: time.Minute}, // session_timeout
	},
	"juicefs": {
		programs: []string{"redis-server", "redis-cli", "gcc"},
		packages: []string{"redis-server", "redis-tools", "gcc", "libc6-dev"},
		prepare:  buildJuice,
		up:       juicefs,
		syncs:    juiceSyncs,
	},
}

// Options of a volume's clients and server.
const (
	optionsDefault     = "default"
	optionsRecommended = "recommended"
)

// config is what a run is asked for. It goes to the lab as JSON.
type config struct {
	Kind    string
	Run     string // pattern of tests
	Options string
	Keep    bool
	Verbose bool
	Count   int

	Program string   // lockfs
	Repo    string   // the module's directory
	Args    []string // what to run in place of the tests
}

// errSkip is of a volume that cannot be had here.
var errSkip = errors.New("skipped")

func main() {
	switch os.Getenv(stageEnv) {
	case "init":
		os.Exit(serveInit())
	case "lab":
		os.Exit(serveLab())
	}
	var c config
	flag.StringVar(&c.Run, "run", "", "run only tests that match `pattern`")
	flag.StringVar(&c.Options, "options", optionsRecommended, "of the volume: default or recommended")
	flag.BoolVar(&c.Keep, "keep", false, "leave the volume up until SIGINT, and say how to enter it")
	flag.BoolVar(&c.Verbose, "v", false, "the tests' own -v")
	flag.IntVar(&c.Count, "count", 1, "run the tests `n` times")
	command := flag.String("command", "", "run a shell command in place of the tests; $LOCKFS and $LOCKFS_TEST_VOLUME are set")
	flag.Parse()
	names := flag.Args()
	all := slices.Sorted(maps.Keys(kinds))
	if len(names) == 0 || c.Options != optionsDefault && c.Options != optionsRecommended {
		fmt.Fprintln(os.Stderr, "usage: volumes [flags] KIND...\nkinds:", strings.Join(all, ", "))
		flag.PrintDefaults()
		os.Exit(2)
	}
	if *command != "" {
		c.Args = []string{"sh", "-c", *command}
	}
	dir, err := os.MkdirTemp("", "lockfs-volumes")
	if err == nil {
		err = c.build(dir)
	}
	status := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, "volumes:", err)
	} else {
		status = runKinds(c, names)
	}
	os.RemoveAll(dir)
	os.Exit(status)
}

// runKinds runs one kind after the other, and returns the status for all: 1 if one failed. It ends
// with what became of each.
func runKinds(c config, names []string) (status int) {
	var results []string
	tell := func(name, result string) {
		results = append(results, fmt.Sprintf("=== %s (%s): %s", name, c.Options, result))
		fmt.Println(results[len(results)-1])
	}
	defer func() {
		if len(results) > 1 {
			fmt.Println("\n" + strings.Join(results, "\n"))
		}
	}()
	for _, name := range names {
		k, ok := kinds[name]
		if !ok {
			fmt.Fprintf(os.Stderr, "volumes: no kind %q\n", name)
			return 2
		}
		c.Kind = name
		begin := time.Now()
		err := outside(c, k)
		took := time.Since(begin).Round(time.Second)
		switch {
		case errors.Is(err, errSkip):
			tell(name, err.Error())
		case errors.Is(err, errSignal):
			fmt.Println(err)
			return 1
		case err != nil:
			tell(name, fmt.Sprintf("FAIL after %v: %v", took, err))
			status = 1
		default:
			tell(name, fmt.Sprintf("ok in %v", took))
		}
	}
	return status
}
