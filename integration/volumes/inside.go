package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/mounts"
)

// stageEnv says which of the processes this is, configEnv what a run is asked for.
const (
	stageEnv  = "LOCKFS_VOLUMES_STAGE"
	configEnv = "LOCKFS_VOLUMES_CONFIG"
)

// Exit statuses of the lab.
const (
	exitFailed  = 1
	exitSkipped = 77
)

// serveInit is the first process inside: it makes what is inside the lab's own, starts
// the lab, reaps what daemons leave, and at the end ends all that still runs.
func serveInit() int {
	if err := furnish(); err != nil {
		fmt.Fprintln(os.Stderr, "volumes: no namespaces:", err)
		return exitSkipped
	}
	// Daemons become our children when what started them has ended.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "volumes: subreaper:", err)
		return exitFailed
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		fmt.Fprintln(os.Stderr, "volumes:", err)
		return exitFailed
	}
	os.Setenv(stageEnv, "lab")
	lab, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{
		Env:   os.Environ(),
		Files: []*os.File{null, os.Stdout, os.Stderr},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "volumes:", err)
		return exitFailed
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = unix.Kill(lab.Pid, unix.SIGKILL) // our parent has ended
	}()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if err == syscall.EINTR || err == nil && pid != lab.Pid {
			continue
		}
		endChildren()
		switch {
		case err != nil:
			fmt.Fprintln(os.Stderr, "volumes: wait:", err)
			return exitFailed
		case status.Exited():
			return status.ExitStatus()
		}
		return exitFailed
	}
}

// endChildren kills what still runs inside, until nothing does. It kills children of
// children too: a program that waits in a view ends only after the view's daemon, which
// may be stopped, and the program's own child.
func endChildren() {
	late := time.AfterFunc(endPatience, func() {
		fmt.Fprintln(os.Stderr, "volumes: killed, and still there:", descendants(os.Getpid()))
		os.Exit(exitFailed)
	})
	defer late.Stop()
	for {
		for _, pid := range descendants(os.Getpid()) {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if _, err := syscall.Wait4(-1, nil, 0, nil); err != nil && err != syscall.EINTR {
			return // ECHILD
		}
	}
}

// endPatience is how long what was killed may take to end: a guest has much memory.
const endPatience = 2 * time.Minute

// descendants are the pids of a process's children, and of theirs.
func descendants(of int) (pids []int) {
	children := make(map[int][]int)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range stats {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		// PID (COMMAND) STATE PARENT; the command may have blanks.
		rest := string(b[strings.LastIndexByte(string(b), ')')+1:])
		var state string
		var pid, parent int
		if _, err := fmt.Sscan(rest, &state, &parent); err != nil {
			continue
		}
		if _, err := fmt.Sscan(string(b), &pid); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	pids = slices.Clone(children[of])
	for i := 0; i < len(pids); i++ {
		pids = append(pids, children[pids[i]]...)
	}
	return pids
}

// address is the machine's inside: some servers refuse 127.0.0.1.
const address = "10.77.0.1"

// furnish gives the namespaces a network, and directories in memory.
func furnish() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make / private: %w", err)
	}
	if err := unix.Sethostname([]byte("lab")); err != nil {
		return err
	}
	for _, args := range [][]string{{"link", "set", "lo", "up"}, {"addr", "add", address + "/24", "dev", "lo"}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	var c config
	if err := json.Unmarshal([]byte(os.Getenv(configEnv)), &c); err != nil {
		return err
	}
	// What stands in /tmp and is needed stays there.
	keep := map[string]int{}
	for _, dir := range []string{c.Repo, filepath.Dir(c.Program)} {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		keep[dir] = fd
	}
	for _, dir := range []string{"/tmp", "/dev/shm", "/run"} {
		if err := detachBelow(dir, slices.Collect(maps.Keys(keep))); err != nil {
			return err
		}
		if err := unix.Mount("lab", dir, "tmpfs", 0, "mode=1777"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	for dir, fd := range keep {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if !strings.HasPrefix(dir, "/tmp/") && !strings.HasPrefix(dir, "/dev/shm/") && !strings.HasPrefix(dir, "/run/") {
			continue
		}
		if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("keep %s: %w", dir, err)
		}
		unix.Close(fd)
	}
	return os.Chdir(c.Repo)
}

// detachBelow detaches what is mounted below a directory, except what leads to those that are kept. A
// tmpfs on the directory would only cover it: we would hold copies of the mounts of other tests on the
// machine, and their drivers would look for them here.
func detachBelow(dir string, keep []string) error {
	table, err := mounts.List()
	if err != nil {
		return err
	}
	gone := make(map[int]bool)
	for _, m := range table {
		needed := slices.ContainsFunc(keep, func(k string) bool { return strings.HasPrefix(k+"/", m.Point+"/") })
		if !strings.HasPrefix(m.Point, dir+"/") || needed {
			continue
		}
		gone[m.ID] = true
		if gone[m.Parent] {
			continue // it went with that one, which could hang
		}
		for err = nil; err == nil; { // all that are stacked there
			err = unix.Unmount(m.Point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
		if err != unix.EINVAL && err != unix.ENOENT { // none is left
			return fmt.Errorf("detach %s: %w", m.Point, err)
		}
	}
	return nil
}

// serveLab brings the volume up and runs the tests over it.
func serveLab() int {
	l := &lab{dir: "/tmp/lab", faults: make(map[string]func() (string, error))}
	err := json.Unmarshal([]byte(os.Getenv(configEnv)), &l.config)
	os.Unsetenv(stageEnv)
	os.Unsetenv(configEnv)
	if err == nil {
		err = os.Mkdir(l.dir, 0o755)
	}
	if err == nil {
		err = l.serve()
	}
	l.close()
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errSkip):
		fmt.Fprintln(os.Stderr, "volumes:", err)
		return exitSkipped
	}
	fmt.Fprintln(os.Stderr, "volumes:", err)
	return exitFailed
}

// serve runs the tests, or what else is asked for.
func (l *lab) serve() error {
	k := kinds[l.Kind]
	clients, err := k.up(l)
	if err != nil {
		return err
	}
	if k.syncs != nil {
		l.fault("syncs", func() (string, error) {
			counts, err := k.syncs(l)
			text, _ := json.Marshal(counts)
			return string(text), err
		})
	}
	traits, err := json.Marshal(k.traits)
	if err != nil {
		return err
	}
	env := append(os.Environ(),
		"LOCKFS_TEST_PROGRAM="+l.Program, "LOCKFS="+l.Program,
		"LOCKFS_TEST_VOLUME="+strings.Join(clients, ","),
		"LOCKFS_TEST_VOLUME_TRAITS="+string(traits),
		"LOCKFS_ACCEPT_VOLUME=true") // what is refused is tried as well
	stop, err := l.listen()
	if err != nil {
		return err
	}
	defer stop()
	env = append(env, "LOCKFS_TEST_LAB="+l.socket())
	if l.Keep {
		l.sayHowToEnter(env)
	}
	var errs []error
	for _, cmd := range l.commands() {
		cmd.Env, cmd.Stdout, cmd.Stderr = env, os.Stdout, os.Stderr
		errs = append(errs, cmd.Run())
	}
	err = errors.Join(errs...)
	if l.Keep {
		fmt.Println("volumes: the tests ended:", err)
		select {}
	}
	if err != nil {
		return fmt.Errorf("the tests: %w", err)
	}
	return nil
}

// commands are those that run the tests, or what else is asked for.
func (l *lab) commands() (cmds []*exec.Cmd) {
	if l.Args != nil {
		return []*exec.Cmd{exec.Command(l.Args[0], l.Args[1:]...)}
	}
	test, part, _ := strings.Cut(l.Run, "/")
	args := []string{"-test.run", test + "/^volume$/" + part, "-test.timeout=60m", fmt.Sprintf("-test.count=%d", l.Count)}
	if l.Verbose {
		args = append(args, "-test.v")
	}
	for _, name := range suites {
		cmd := exec.Command(l.testBinary(name), args...)
		cmd.Dir = filepath.Join(l.Repo, "integration", name)
		cmds = append(cmds, cmd)
	}
	return cmds
}

// sayHowToEnter prints a command that gives a shell inside.
func (l *lab) sayHowToEnter(env []string) {
	var own []string
	for _, e := range env {
		if strings.HasPrefix(e, "LOCKFS") {
			own = append(own, e)
		}
	}
	fmt.Printf("volumes: enter by: nsenter -a -t $(pgrep -f -o '^%s') env %s bash\n", strings.Join(os.Args, " "), strings.Join(own, " "))
}
