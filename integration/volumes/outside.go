package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

var errSignal = errors.New("volumes: ended by a signal")

// outside prepares a kind and runs its lab.
func outside(c config, k kind) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%w: it takes root", errSkip)
	}
	if k.guest {
		return guest(c, k.packages)
	}
	if err := install(k.programs, k.packages); err != nil {
		return err
	}
	if k.prepare != nil {
		if err := k.prepare(); err != nil {
			return fmt.Errorf("%w: %w", errSkip, err)
		}
	}
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), stageEnv+"=init", configEnv+"="+string(text))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Dir = c.Repo
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:    true, // ^C is ours to answer
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}
	// When its other end is closed, whoever closes it, all ends that is inside.
	alive, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	defer alive.Close()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%w: it takes namespaces: %w", errSkip, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if exit := new(exec.ExitError); errors.As(err, &exit) && exit.ExitCode() == exitSkipped {
			return errSkip
		}
		return err
	case <-signals:
		alive.Close()
		<-ended
		return errSignal
	}
}

// aptWaits has apt-get wait while another holds its lock: else a kind is left out.
const aptWaits = "-oDPkg::Lock::Timeout=600"

// install has programs installed that packages of Debian's have.
func install(programs, packages []string) error {
	missing := func() (names []string) {
		for _, p := range programs {
			if _, err := exec.LookPath(p); err != nil {
				names = append(names, p)
			}
		}
		return names
	}
	names := missing()
	if len(names) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("%w: no %s, and no apt-get to install it", errSkip, strings.Join(names, ", "))
	}
	// No daemon of a package's may start: the lab has its own.
	args := append([]string{"apt-get", aptWaits, "install", "-q", "-y", "--no-install-recommends"}, packages...)
	script := `export DEBIAN_FRONTEND=noninteractive; "$@" >/dev/null || { apt-get update -q >/dev/null; "$@" >/dev/null; }`
	cmd := exec.Command("sh", append([]string{"-c", script, "sh"}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: no %s: apt-get: %w: %s", errSkip, strings.Join(names, ", "), err, out)
	}
	if names := missing(); len(names) > 0 {
		return fmt.Errorf("%w: no %s in %s", errSkip, strings.Join(names, ", "), strings.Join(packages, ", "))
	}
	return nil
}

// suites are the packages of integration with tests that run on a network volume.
var suites = []string{"semantics", "programs"}

// testBinary is beside lockfs.
func (c *config) testBinary(suite string) string {
	return filepath.Join(filepath.Dir(c.Program), suite+".test")
}

// build builds lockfs and the tests into dir.
func (c *config) build(dir string) error {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	c.Repo = strings.TrimSpace(string(out))
	c.Program = filepath.Join(dir, "lockfs")
	builds := [][]string{{"build", "-o", c.Program, "./cmd/lockfs"}}
	for _, name := range suites {
		builds = append(builds, []string{"test", "-c", "-o", c.testBinary(name), "./integration/" + name})
	}
	for _, args := range builds {
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Env = c.Repo, append(os.Environ(), "CGO_ENABLED=0") // they run in any guest
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}
