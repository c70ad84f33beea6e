package commands

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// execution is a 'lockfs exec' that runs.
type execution struct {
	t              *testing.T
	cmd            *exec.Cmd
	in             io.Closer // what its command reads from
	stdout, stderr *lab.LogBuffer
	done           chan struct{} // closed when it has ended
}

// patientTTL is for a 'lockfs exec' that must not lose its lock, and for --wait 0: the lock service has
// an eighth of it to answer, but at most 5 s.
const patientTTL = "1m"

// startExec starts 'lockfs exec' far from any terminal. Its TTL is patientTTL unless args have another.
func startExec(v *lab.Volume, args ...string) *execution {
	v.T.Helper()
	e := prepareExec(v, args...)
	in, err := e.cmd.StdinPipe()
	if err != nil {
		v.T.Fatal(err)
	}
	e.in = in
	e.start()
	return e
}

func prepareExec(v *lab.Volume, args ...string) *execution {
	e := &execution{t: v.T, cmd: v.Command(append([]string{"exec", "--ttl", patientTTL}, args...)...), stdout: &lab.LogBuffer{}, stderr: &lab.LogBuffer{}, done: make(chan struct{})}
	e.cmd.Stdout, e.cmd.Stderr = e.stdout, e.stderr
	e.cmd.WaitDelay = time.Second // what its command has started may live on
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return e
}

func (e *execution) start() {
	e.t.Helper()
	if err := e.cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	go func() {
		defer close(e.done)
		_ = e.cmd.Wait()
	}()
	e.t.Cleanup(func() {
		_ = e.cmd.Process.Kill()
		<-e.done
		if log := e.stderr.String(); strings.Contains(log, "DATA RACE") || strings.Contains(log, "panic") {
			e.t.Error(log)
		}
	})
}

// says waits until the command has printed something.
func (e *execution) says(what string) {
	e.t.Helper()
	lab.Eventually(e.t, "the command says "+what, func() bool {
		select {
		case <-e.done:
			if !strings.Contains(e.stdout.String(), what) {
				e.t.Fatalf("it has ended: %v, %q, %q", e.cmd.ProcessState, e.stdout, e.stderr)
			}
		default:
		}
		return strings.Contains(e.stdout.String(), what)
	})
}

// ends waits for the end of 'lockfs exec' and returns its exit status, -1 if it
// died of a signal.
func (e *execution) ends() int {
	e.t.Helper()
	select {
	case <-e.done:
	case <-time.After(lab.CallTimeout):
		e.t.Fatalf("exec does not end: %q, %q", e.stdout, e.stderr)
	}
	return e.cmd.ProcessState.ExitCode()
}

// A command runs under the lock that an open for write takes, of the same path in
// a view or in the directory itself; it knows token and id of the lock; and its exit
// status is passed on. (docs/SEMANTICS.md, rule 26.)
func TestExec(t *testing.T) { lab.Over(t, testExec, lab.Local, lab.InLeases) }

func testExec(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	a := v.Mount("a")
	e := startExec(v, a.Path("f"), "--", "sh", "-c", `echo "$LOCKFS_TOKEN $LOCKFS_LOCK ready"; read x; exit 7`)
	e.says("ready")
	var held []lab.Entry
	lab.Eventually(t, "the lock is listed with what the command was told", func() bool {
		held = v.LS()
		return len(held) == 1 && held[0].Path == "f" && held[0].PID == e.cmd.Process.Pid && held[0].Command == "sh" &&
			e.stdout.String() == fmt.Sprintf("%d %s ready\n", held[0].Token, held[0].Lock)
	})
	p := lab.NewAgent(t)
	p.Fails(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_NONBLOCK}, unix.EAGAIN)
	for _, c := range []struct {
		args   []string
		status int
	}{
		{[]string{"--wait", "0", v.InSource("f"), "--", "true"}, 75},
		{[]string{"--wait", "4s", "-E", "9", a.Path("f"), "--", "true"}, 9},
		{[]string{"--wait", "0", "--shared", a.Path("f"), "--", "true"}, 75},
		{[]string{"--wait", "0", a.Path("g"), "--", "true"}, 0},
		{[]string{"--wait", "0", a.Path("not/there"), "--", "true"}, 0},
	} {
		if status, stdout, stderr := lab.Outcome(t, v.Command(append([]string{"exec", "--ttl", patientTTL}, c.args...)...)); status != c.status || stdout != "" ||
			(status == 0) != (stderr == "") || status != 0 && !strings.Contains(stderr, fmt.Sprintf("locked by another owner (pid %d (sh) on %s, lock %s)", held[0].PID, held[0].Node, held[0].Lock)) {
			t.Errorf("exec %q: exit status %d, %q, %q", c.args, status, stdout, stderr)
		}
	}
	e.in.Close()
	if status := e.ends(); status != 7 || e.stderr.String() != "" {
		t.Errorf("exit status %d, %q", status, e.stderr)
	}
	fd := p.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT|unix.O_NONBLOCK) // free at once
	if status, _, stderr := lab.Outcome(t, v.Command("exec", "--ttl", patientTTL, "--wait", "0", a.Path("f"), "--", "true")); status != 75 {
		t.Errorf("beside a writer: exit status %d, %q", status, stderr)
	}
	p.Must(lab.Call{Op: "close", FD: fd})

	script := filepath.Join(v.Dir, "script")
	if err := os.WriteFile(script, []byte("not executable"), 0o644); err != nil {
		t.Fatal(err)
	}
	for status, command := range map[int][]string{
		0: {"true"}, 1: {"false"}, 127: {"no-such-program"}, 126: {script}, 137: {"sh", "-c", "kill -KILL $$"}, 143: {"sh", "-c", "kill $$"},
		// One in another has the other's place in the environment.
		3: {lab.Program, "exec", a.Path("g"), "--", "sh", "-c", `case "$(env)" in *LOCKFS_TOKEN*LOCKFS_TOKEN*) exit 1;; esac; exit 3`},
	} {
		if got, _, stderr := lab.Outcome(t, v.Command(append([]string{"exec", a.Path("f"), "--"}, command...)...)); got != status || (stderr != "") != (status == 126 || status == 127) {
			t.Errorf("%q: exit status %d, %q, want %d", command, got, stderr, status)
		}
	}
	uninterpreted := filepath.Join(v.Dir, "uninterpreted")
	if err := os.WriteFile(uninterpreted, []byte("#!/none"), 0o700); err != nil {
		t.Fatal(err)
	}
	if status, _, stderr := lab.Outcome(t, v.Command("exec", a.Path("f"), "--", uninterpreted)); status != 127 || !strings.Contains(stderr, uninterpreted) {
		t.Errorf("a script without its interpreter: exit status %d, %q", status, stderr)
	}
	if held := v.LS(); len(held) != 0 {
		t.Errorf("locked: %+v", held)
	}
}

// Commands stand in line with programs that open the file. A command that is ended while it waits
// leaves nothing behind.
func TestExecWaits(t *testing.T) { lab.Over(t, testExecWaits, lab.Local, lab.InLeases.ForLong()) }

func testExecWaits(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "-1")
	a := v.Mount("a")
	writer, second := lab.NewAgent(t), lab.NewAgent(t)
	fd := writer.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	line := []*execution{}
	for n := range 3 {
		line = append(line, startExec(v, "--wait", "-1", a.Path("f"), "--", "sh", "-c", "echo has it; read x"))
		lab.Eventually(t, "it waits", func() bool { return v.Waiting("f") == n+1 })
	}
	opening := second.Start(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY})
	lab.Eventually(t, "the view waits as well", func() bool {
		return slices.ContainsFunc(v.LS(), func(e lab.Entry) bool { return e.PID == second.PID() }) || v.Waiting("f") == 3
	})
	if err := line[1].cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if status := line[1].ends(); status != 1 || line[1].stdout.String() != "" || v.Waiting("f") != 2 {
		t.Errorf("exit status %d, %q; %d wait", status, line[1].stdout, v.Waiting("f"))
	}
	writer.Must(lab.Call{Op: "close", FD: fd})
	line[0].says("has it")
	line[0].in.Close()
	line[2].says("has it")
	select {
	case <-opening:
		t.Error("who came last did not wait")
	default:
	}
	line[2].in.Close()
	if r := lab.Await(t, "open", opening); r.Errno != 0 {
		t.Errorf("open: %v", r.Err())
	}
}

// Commands that share exclude writers, and not each other.
func TestExecShared(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	first := startExec(v, "--shared", a.Path("f"), "--", "sh", "-c", "echo ready; read x")
	first.says("ready")
	second := startExec(v, "-s", "--wait", "0", a.Path("f"), "--", "sh", "-c", "echo ready; read x")
	second.says("ready")
	p := lab.NewAgent(t)
	p.Fails(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_NONBLOCK}, unix.EAGAIN)
	for _, e := range []*execution{first, second} {
		e.in.Close()
		if status := e.ends(); status != 1 { // read met the end of file
			t.Errorf("exit status %d, %q", status, e.stderr)
		}
	}
	p.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT|unix.O_NONBLOCK)
}

// A file of several names is locked by any of them; a symbolic link stands for
// what it leads to.
func TestExecOfLinks(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	v.Write("one", "")
	if err := errors.Join(os.Link(v.InSource("one"), v.InSource("two")), os.Symlink("two", v.InSource("link"))); err != nil {
		t.Fatal(err)
	}
	e := startExec(v, a.Path("link"), "--", "sh", "-c", "echo ready; read x")
	e.says("ready")
	p := lab.NewAgent(t)
	for _, name := range []string{"one", "two", "link"} {
		p.Fails(lab.Call{Op: "open", Path: a.Path(name), Flags: unix.O_WRONLY | unix.O_NONBLOCK}, unix.EAGAIN)
		if status, _, stderr := lab.Outcome(t, v.Command("exec", "--ttl", patientTTL, "--wait", "0", v.InSource(name), "--", "true")); status != 75 {
			t.Errorf("%s: exit status %d, %q", name, status, stderr)
		}
	}
	// A name that comes while exec waits counts as well.
	v.Write("f", "")
	fd := p.Open(a.Path("f"), unix.O_WRONLY)
	late := startExec(v, "--wait", "-1", a.Path("f"), "--", "sh", "-c", "echo ready; read x")
	v.WaitFor("f")
	if err := os.Link(v.InSource("f"), v.InSource("g")); err != nil {
		t.Fatal(err)
	}
	p.Must(lab.Call{Op: "close", FD: fd})
	late.says("ready")
	p.Fails(lab.Call{Op: "open", Path: a.Path("g"), Flags: unix.O_WRONLY | unix.O_NONBLOCK}, unix.EAGAIN)
}

// What is sent to exec is for its command.
func TestExecForwardsSignals(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	e := startExec(v, a.Path("f"), "--", "sh", "-c", `
		for s in INT QUIT TERM HUP USR1 USR2; do trap "echo got $s." $s; done
		echo ready; while :; do sleep 0.01; done`)
	e.says("ready")
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2} {
		if err := e.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		e.says("got " + strings.TrimPrefix(unix.SignalName(sig), "SIG") + ".")
	}
	if len(v.LS()) != 1 {
		t.Errorf("locked: %+v", v.LS())
	}
	// What nohup, or a shell in the background, has its commands ignore stays ignored.
	status, stdout, stderr := lab.Outcome(t, v.Command("exec", a.Path("g"), "--", "true"))
	if status != 0 {
		t.Fatalf("exit status %d, %q, %q", status, stdout, stderr)
	}
	v.Via = []string{"sh", "-c", `trap "" INT HUP; exec "$@"`, "sh"}
	ignoring := startExec(v, a.Path("g"), "--", "sh", "-c", "kill -INT $$; kill -HUP $$; echo lives")
	ignoring.says("lives")
	if status := ignoring.ends(); status != 0 {
		t.Errorf("exit status %d, %q", status, ignoring.stderr)
	}
}

// What a terminal sends to all in its foreground reaches the command once.
func TestExecOnTerminal(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	defer terminal.Close()
	n, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	e := prepareExec(v, a.Path("f"), "--", "sh", "-c", `trap "echo INT." INT; trap "echo USR1." USR1; echo ready; while :; do sleep 0.01; done`)
	e.cmd.Stdin = tty
	e.cmd.SysProcAttr.Setctty = true
	e.start()
	e.says("ready")
	if _, err := terminal.Write([]byte{'C' - '@'}); err != nil {
		t.Fatal(err)
	}
	e.says("INT.")
	if err := e.cmd.Process.Signal(unix.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	e.says("USR1.")
	if n := strings.Count(e.stdout.String(), "INT."); n != 1 {
		t.Errorf("Ctrl-C was told %d times", n)
	}
}

// However the lock is lost, the command is dead before anybody else has it, with
// what it has started if exec lives: when exec is cut off from the lock service,
// its lock is broken, its session is ended, it is stopped for longer than the TTL,
// or killed. (docs/SEMANTICS.md, rule 26.)
func TestExecOutlivesNoLock(t *testing.T) {
	t.Parallel()
	// They write to the file $1 for ever, also when they are asked to end; but for
	// the parent of the family, which leaves its child behind.
	const loop = `while :; do echo x >> "$1"; sleep 0.005; done`
	const parent = `trap 'echo the parent was asked; exit 0' TERM; ` +
		`setsid sh -c 'trap "echo the child was asked" TERM; echo ready; ` + loop + `' sh "$1" & ` + loop
	alone := []string{"sh", "-c", `trap "" TERM; echo ready; ` + loop, "sh"}
	family := []string{"sh", "-c", parent, "sh"}
	inNamespace := append([]string{"unshare", "--pid", "--fork", "--kill-child"}, family...)
	for name, c := range map[string]execEnd{
		// What is told to end has time to say so: a sixth of the TTL.
		"cut off": {family, 30 * time.Second, func(_ *lab.Volume, _ *execution, p *lab.Partition) { p.Part() }, 1, cutOff},
		// It has longer to end than the writes of a broken lock have to land.
		"broken": {family, time.Minute, func(v *lab.Volume, e *execution, _ *lab.Partition) {
			if status, _, stderr := lab.Outcome(v.T, v.Command("break", v.InSource("f"), "--reason", "ticket 4711")); status != 0 {
				v.T.Errorf("break: exit status %d, %q", status, stderr)
			}
		}, 1, ": ticket 4711"},
		// Several processes end one after the other within a part of the TTL.
		"stopped":                  {alone, 9 * time.Second, func(v *lab.Volume, e *execution, _ *lab.Partition) { lab.Freeze(v.T, e.cmd.Process.Pid) }, -1, ""},
		"killed":                   {alone, lab.ShortTTL, func(_ *lab.Volume, e *execution, _ *lab.Partition) { _ = e.cmd.Process.Kill() }, -1, ""},
		"stopped with a namespace": {inNamespace, 9 * time.Second, func(v *lab.Volume, e *execution, _ *lab.Partition) { lab.Freeze(v.T, e.cmd.Process.Pid) }, -1, ""},
		"killed with a namespace":  {inNamespace, lab.ShortTTL, func(_ *lab.Volume, e *execution, _ *lab.Partition) { _ = e.cmd.Process.Kill() }, -1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if c.command[0] == "unshare" && os.Getuid() != 0 {
				t.Skip("needs root, for a namespace of processes")
			}
			for range 5 {
				if testExecOutlivesNoLock(t, c) {
					return
				}
				t.Log("cut off before its time: once again")
			}
			t.Skip("cut off before its time")
		})
	}
}

// execEnd is how a 'lockfs exec' loses its lock.
type execEnd struct {
	command []string
	ttl     time.Duration
	end     func(v *lab.Volume, e *execution, p *lab.Partition)
	status  int
	says    string // on stderr
}

// cutOff is what a 'lockfs exec' says that is cut off from the lock service.
const cutOff = "the lock service does not answer"

// testExecOutlivesNoLock returns false if exec was cut off before its time: a machine that is overloaded
// does that as well.
func testExecOutlivesNoLock(t *testing.T, c execEnd) bool {
	v := lab.NewVolume(t)
	v.Mount("server")
	p := lab.NewPartition(t, v.StateFile("client.sock"))
	out := filepath.Join(v.Dir, "out")
	e := startExec(v, slices.Concat([]string{"--ttl", c.ttl.String(), "--endpoints", p.Endpoint(), v.InSource("f"), "--"}, c.command, []string{out})...)
	lab.Eventually(t, "it is ready", func() bool { return e.isCutOff() || strings.Contains(e.stdout.String(), "ready") })
	lab.Eventually(t, "it writes", func() bool {
		fi, err := os.Stat(out)
		return e.isCutOff() || err == nil && fi.Size() > 100
	})
	// The next looks twice whether anything is written still.
	next := startExec(v, "--wait", "-1", v.InSource("f"), "--", "sh", "-c", `echo granted; wc -c < "$1"; sleep 0.5; wc -c < "$1"`, "sh", out)
	lab.Eventually(t, "the next waits", func() bool { return e.isCutOff() || v.Waiting("f") == 1 })
	if e.isCutOff() {
		return false
	}
	c.end(v, e, p)
	next.says("granted")
	if status := next.ends(); status != 0 {
		t.Fatalf("the next: exit status %d, %q", status, next.stderr)
	}
	if f := strings.Fields(next.stdout.String()); len(f) != 3 || f[1] != f[2] {
		t.Errorf("written when the next had the lock, and half a second later: %q", f)
	}
	status := e.ends()
	if c.says != cutOff && status == 1 && strings.Contains(e.stderr.String(), cutOff) {
		return false
	}
	if status != c.status || !strings.Contains(e.stderr.String(), c.says) {
		t.Errorf("exit status %d, %q; want %d and %q", status, e.stderr, c.status, c.says)
	}
	if out := e.stdout.String(); c.status == 1 && (!strings.Contains(out, "the parent was asked") || !strings.Contains(out, "the child was asked")) {
		t.Errorf("killed without a word: %q", out)
	}
	return true
}

// isCutOff reports whether it has ended because it was cut off. It must not have ended otherwise.
func (e *execution) isCutOff() bool {
	e.t.Helper()
	select {
	case <-e.done:
	default:
		return false
	}
	if status := e.ends(); status != 1 || !strings.Contains(e.stderr.String(), cutOff) {
		e.t.Fatalf("it has ended: exit status %d, %q", status, e.stderr)
	}
	return true
}

// A session that ends behind exec's back takes the command along.
func TestExecIsRevoked(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	e := startExec(v, a.Path("f"), "--", "sh", "-c", `trap "" TERM; echo ready; while :; do sleep 0.01; done`)
	e.says("ready")
	v.Revoke()
	if status := e.ends(); status != 1 || !strings.Contains(e.stderr.String(), "lock session lost") {
		t.Errorf("exit status %d, %q", status, e.stderr)
	}
}

// exec goes by the policy of the volume.
func TestExecByPolicy(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--rule", "*.log nolock", "--rule", "/etc/** readonly")
	a := v.Mount("a")
	rules := v.Args
	for _, c := range []struct {
		path   string
		rules  []string
		status int
		says   string
	}{
		{"f", rules, 0, ""},
		{"etc/f", rules, 0, ""},
		{"x.log", rules, 2, "needs no lock"},
		{"f", nil, 2, "--policy and --rule are not those of the mounts"},
		{"f", rules[:2], 2, "give the mounts' --policy and --rule"},
	} {
		status, _, stderr := lab.Outcome(t, v.Command(slices.Concat([]string{"exec"}, c.rules, []string{a.Path(c.path), "--", "true"})...))
		if status != c.status || !strings.Contains(stderr, c.says) || (stderr == "") != (status == 0) {
			t.Errorf("%s by %q: exit status %d, %q", c.path, c.rules, status, stderr)
		}
	}
}

// What cannot be carried out is said in one line, and runs nothing.
func TestExecRefusals(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	for name, c := range map[string]struct {
		args   []string
		status int
		says   string
	}{
		"no arguments":        {nil, 2, "want PATH -- COMMAND"},
		"no command":          {[]string{a.Path("f")}, 2, "want PATH -- COMMAND"},
		"nothing behind --":   {[]string{a.Path("f"), "--"}, 2, "want PATH -- COMMAND"},
		"no path":             {[]string{"--", "echo"}, 2, "want PATH -- COMMAND"},
		"no --":               {[]string{a.Path("f"), "echo"}, 2, "want PATH -- COMMAND"},
		"TTL too short":       {[]string{"--ttl", "2s", a.Path("f"), "--", "echo"}, 2, "--ttl 2s: want whole seconds, at least 3s"},
		"wait no duration":    {[]string{"--wait", "-2s", a.Path("f"), "--", "echo"}, 2, "-1 (for ever)"},
		"status too large":    {[]string{"-E", "256", a.Path("f"), "--", "echo"}, 2, "0 to 255"},
		"the volume":          {[]string{a.Dir, "--", "echo"}, 2, "name a file"},
		"outside of a volume": {[]string{v.Dir, "--", "echo"}, 2, "--endpoints"},
		"no lock service":     {[]string{"--endpoints", "http://127.0.0.1:1", a.Path("f"), "--", "echo"}, 1, "127.0.0.1:1"},
		"only a name": {[]string{"--endpoints", "unix://" + v.StateFile("client.sock"), "--name", "source", v.Dir, "--", "echo"}, 2,
			"neither in a lockfs view"},
	} {
		status, stdout, stderr := lab.Outcome(t, v.Command(append([]string{"exec"}, c.args...)...))
		if status != c.status || stdout != "" || !strings.HasPrefix(stderr, "lockfs: ") || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: exit status %d, %q, %q; want %d and a line with %q", name, status, stdout, stderr, c.status, c.says)
		}
	}
	if held := v.LS(); len(held) != 0 {
		t.Errorf("locked: %+v", held)
	}
}

// 'lockfs exec' gets a file in a delegated directory on the mount that has it, and on another, which
// recalls the directory. Each has a larger token, and excludes the other.
func TestExecInADelegatedDirectory(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--keep", "1m")
	a, b := v.MountWatched("a"), v.MountWatched("b")
	p := lab.NewAgent(t)
	fill(v, p, a, "d")
	last := int64(0)
	for _, m := range []*lab.Watched{a, b, a} {
		e := startExec(v, m.Path("d/1"), "--", "sh", "-c", `echo "token $LOCKFS_TOKEN."; read x`)
		e.says(".")
		var token int64
		if _, err := fmt.Sscanf(e.stdout.String(), "token %d.", &token); err != nil || token <= last {
			t.Errorf("token %d after %d: %q, %v", token, last, e.stdout, err)
		}
		last = token
		for _, other := range []*lab.Watched{a, b} {
			p.Fails(lab.Call{Op: "open", Path: other.Path("d/1"), Flags: unix.O_WRONLY | unix.O_NONBLOCK}, unix.EAGAIN)
		}
		if err := e.in.Close(); err != nil {
			t.Fatal(err)
		}
		e.ends()
	}
}
