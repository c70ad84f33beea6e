// Package lab has what tests of lockfs run on: volumes and mounts, as their users have them,
// real processes and a real lock service.
//
//	Volume         a shared directory: local, over caching clients of its own, or a network volume
//	Setup          what a test's volumes are made of; Over runs a test on several
//	Mount          a lockfs process and its view
//	Agent          a program under remote control
//	Cluster, Leases  the lock services that tests make faults of
//	Wire, Partition  what leads to them
//	Below          what a volume lies over, with faults of its own
package lab

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// Program is the program under test. It has the race detector if the tests have.
var Program string

// programEnv names one that is built already.
const programEnv = "LOCKFS_TEST_PROGRAM"

// Role is what a test binary is instead of the tests, if an environment variable is set.
type Role struct {
	Env   string
	Serve func()
}

// Main is the main function of a test binary, which may have roles, and returns the exit status.
func Main(m *testing.M, roles ...Role) int {
	for _, r := range append(roles, Role{clientEnv, serveClient}, Role{memberEnv, serveMember}, Role{stagedEnv, serveStaged}) {
		if os.Getenv(r.Env) != "" {
			r.Serve()
			return 0
		}
	}
	if isChild() {
		fmt.Fprintln(os.Stderr, "the tests have started themselves: TestMain does not pass the role that one of them needs to lab.Main")
		return 1
	}
	defer stopServer()
	return runTests(m)
}

// isChild reports whether this process's parent is the same program.
func isChild() bool {
	own, err := os.Stat("/proc/self/exe")
	parent, perr := os.Stat(fmt.Sprintf("/proc/%d/exe", os.Getppid()))
	return err == nil && perr == nil && os.SameFile(own, parent)
}

func runTests(m *testing.M) int {
	// A caller may have the tests ignore a signal, as nohup does. Their programs begin with the
	// default.
	for _, sig := range []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	// Of all that the tests start. The default is a second at each exit.
	os.Setenv("GORACE", "halt_on_error=1 atexit_sleep_ms=0")
	dir, err := os.MkdirTemp("", "lockfs-bin")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // other users run it as well
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	Program = filepath.Join(dir, "lockfs")
	if built := os.Getenv(programEnv); built != "" {
		Program = built
		return m.Run()
	}
	build := exec.Command("go", "build", "-o", Program, "github.com/lockfs/lockfs/cmd/lockfs")
	if raceDetector() {
		build.Args = slices.Insert(build.Args, 2, "-race")
	} else {
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is released
	}
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build lockfs:", err)
		return 1
	}
	return m.Run()
}

// raceDetector reports whether the tests were built with -race.
func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
