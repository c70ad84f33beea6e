package commands

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// Bad input and bad circumstances get one line that says what to do, and exit
// status 2 or 1.
func TestRefusals(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	empty := filepath.Join(v.Dir, "empty")
	full := filepath.Join(v.Dir, "full")
	inside := filepath.Join(v.Source, "inside")
	for _, dir := range []string{empty, full, filepath.Join(full, "x"), inside} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	v.Write("file", "")
	file := filepath.Join(v.Source, "file")
	missing := filepath.Join(v.Dir, "missing")
	cwd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	rules := filepath.Join(v.Dir, "rules")
	if err := os.WriteFile(rules, []byte("# good\n*.log nolock\n/etc/** read-only\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	mount := func(args ...string) []string { return append([]string{"mount"}, args...) }
	for name, c := range map[string]struct {
		args   []string
		env    string
		status int
		says   string
	}{
		"no command":              {nil, "", 2, "which command"},
		"unknown command":         {[]string{"frobnicate"}, "", 2, "unknown command"},
		"no arguments":            {mount(), "", 2, "want SOURCE MOUNTPOINT"},
		"one argument":            {mount(v.Source), "", 2, "want SOURCE MOUNTPOINT"},
		"unknown flag":            {mount("--frob", v.Source, empty), "", 2, "unknown flag: --frob"},
		"SOURCE missing":          {mount(missing, empty), "", 1, "create it"},
		"SOURCE a file":           {mount(file, empty), "", 2, "not a directory"},
		"MOUNTPOINT missing":      {mount(v.Source, missing), "", 2, "create it"},
		"MOUNTPOINT a file":       {mount(v.Source, file), "", 2, "not a directory"},
		"MOUNTPOINT not empty":    {mount(v.Source, full), "", 2, "not empty"},
		"MOUNTPOINT in SOURCE":    {mount(v.Source, inside), "", 2, "inside"},
		"MOUNTPOINT is SOURCE":    {mount(empty, empty), "", 2, "SOURCE"},
		"SOURCE in MOUNTPOINT":    {mount(v.Source, v.Dir), "", 2, "MOUNTPOINT"},
		"namespace with a slash":  {mount("--namespace", "a/b", v.Source, empty), "", 2, "--namespace"},
		"namespace of dots":       {mount("--namespace", "..", v.Source, empty), "", 2, "--namespace"},
		"namespace empty":         {mount("--namespace", "", v.Source, empty), "", 2, "--namespace"},
		"name with a newline":     {mount("--name", "a\nb", v.Source, empty), "", 2, "--name"},
		"name with a slash":       {mount("--name", "a/b", v.Source, empty), "", 2, "--name"},
		"TTL too short":           {mount("--ttl", "2s", v.Source, empty), "", 2, "--ttl 2s: want whole seconds, at least 3s"},
		"TTL in fractions":        {mount("--ttl", "4500ms", v.Source, empty), "", 2, "whole seconds"},
		"TTL no duration":         {mount("--ttl", "soon", v.Source, empty), "", 2, "--ttl"},
		"TTL in the environment":  {mount(v.Source, empty), "LOCKFS_TTL=soon", 2, "LOCKFS_TTL"},
		"wait no duration":        {mount("--wait", "-2s", v.Source, empty), "", 2, "-1 (for ever)"},
		"scope unknown":           {mount("--scope", "galaxy", v.Source, empty), "", 2, "auto|handle|process|pod|node"},
		"policy missing":          {mount("--policy", missing, v.Source, empty), "", 2, missing},
		"policy with a bad rule":  {mount("--policy", rules, v.Source, empty), "", 2, rules + `: line 3, column 9: unknown action "read-only": want lock, nolock or readonly`},
		"second rule is bad":      {mount("--rule", "*.log nolock", "--rule", "a lock scope=galaxy", v.Source, empty), "", 2, "--rule: line 2, column 8: unknown scope"},
		"rule in the environment": {mount(v.Source, empty), "LOCKFS_RULE=*.log nolock\na/ lock", 2, "--rule: line 2, column 1: the glob ends in a slash"},
		"suspend-wait negative":   {mount("--suspend-wait", "-1s", v.Source, empty), "", 2, "--suspend-wait -1s: want a positive duration"},
		"embedded and endpoints":  {mount("--embedded", "--endpoints", "http://127.0.0.1:1", v.Source, empty), "", 2, "exclude each other"},
		"endpoints unreachable":   {mount("--endpoints", "http://127.0.0.1:1", v.Source, empty), "", 1, "http://127.0.0.1:1"},
		"certificate, no etcd":    {mount("--cert", missing, v.Source, empty), "", 2, "--cert is for an etcd at --endpoints"},
		"password, no etcd":       {mount(v.Source, empty), "LOCKFS_PASSWORD=x", 2, "--password is for an etcd at --endpoints"},
		"CA, in Kubernetes":       {mount("--backend", "kubernetes", "--cacert", missing, v.Source, empty), "", 2, "--cacert is for an etcd"},
		"certificate, no key":     {mount("--endpoints", "https://127.0.0.1:1", "--cert", missing, v.Source, empty), "", 2, "--cert and --key belong together"},
		"user, no password":       {mount("--endpoints", "https://127.0.0.1:1", "--user", "x", v.Source, empty), "", 2, "--user and its password belong together"},
		"two passwords":           {mount("--endpoints", "https://127.0.0.1:1", "--user", "x", "--password", "y", "--password-file", missing, v.Source, empty), "", 2, "exclude each other"},
		"ls with a certificate":   {[]string{"ls", "--cert", missing, v.Source}, "", 2, "--cert is for an etcd at --endpoints"},
		"certificate missing":     {mount("--endpoints", "https://127.0.0.1:1", "--cacert", missing, v.Source, empty), "", 1, "--cacert: stat " + missing},
		"ls outside of a volume":  {[]string{"ls", empty}, "", 2, "--endpoints"},
		"ls from outside of one":  {[]string{"ls"}, "", 2, filepath.Base(cwd) + " is neither"},
		"ls of two paths":         {[]string{"ls", "a", "b"}, "", 2, "want at most one PATH"},
		"ls in an unknown format": {[]string{"ls", "-o", "yaml"}, "", 2, "table|json|wide"},
		"state directory unusable": {mount(v.Source, empty), "LOCKFS_STATE_DIR=" + file, 1,
			"LOCKFS_STATE_DIR"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := v.Command(c.args...)
			if c.env != "" {
				cmd.Env = append(cmd.Env, c.env)
			}
			status, stdout, stderr := lab.Outcome(t, cmd)
			lines := strings.Split(strings.TrimSpace(stderr), "\n")
			last := lines[len(lines)-1]
			if status != c.status || !strings.HasPrefix(last, "lockfs: ") || !strings.Contains(last, c.says) {
				t.Errorf("exit status %d, %q; want %d and a line with %q", status, stderr, c.status, c.says)
			}
			if c.status == 2 && (len(lines) != 1 || stdout != "") {
				t.Errorf("more than one line: %q %q", stderr, stdout)
			}
		})
	}
}

// A user who may not mount is told what is missing.
func TestRefusedUser(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	v := lab.NewVolume(t)
	mnt := filepath.Join(v.Dir, "mnt")
	if err := errors.Join(os.Mkdir(mnt, 0o777), os.Chmod(mnt, 0o777), os.Chmod(v.Dir, 0o755), os.Chmod(v.Source, 0o777)); err != nil {
		t.Fatal(err)
	}
	cmd := v.Command("mount", "--guard", v.Source, mnt)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if status, _, stderr := lab.Outcome(t, cmd); status != 2 || !strings.Contains(stderr, "--guard: only root") {
		t.Errorf("--guard: exit status %d, %q", status, stderr)
	}
	cmd = v.Command("mount", v.Source, mnt)
	cmd.Env = append(os.Environ(), "LOCKFS_STATE_DIR="+filepath.Join(mnt, "state"), "PATH=/nowhere")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	status, _, stderr := lab.Outcome(t, cmd)
	if status != 1 || !regexp.MustCompile(`fuse3|/dev/fuse`).MatchString(stderr) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit status %d, %q; want 1 and one line about /dev/fuse or fuse3", status, stderr)
	}
}

// Root is told what its container lacks: the device, or the capability.
func TestRefusedContainer(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root, to take it away")
	}
	v := lab.NewVolume(t)
	mnt := filepath.Join(v.Dir, "mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	mount := lab.Program + " mount " + v.Source + " " + mnt
	for says, cmd := range map[string]*exec.Cmd{
		"modprobe fuse": exec.Command("unshare", "-m", "sh", "-c", "mount -t tmpfs none /dev && exec "+mount),
		"CAP_SYS_ADMIN": exec.Command("setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin", "sh", "-c", "exec "+mount),
	} {
		cmd.Env = v.Env
		status, _, stderr := lab.Outcome(t, cmd)
		if status != 1 || !strings.Contains(stderr, says) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("exit status %d, %q; want 1 and one line with %q", status, stderr, says)
		}
	}
}

// A SOURCE on a network file system is not locked by an etcd of this machine,
// unless somebody says that it is all right. Any FUSE file system counts.
func TestNetworkSourceNeedsEndpoints(t *testing.T) {
	t.Parallel()
	inner := lab.NewVolume(t).Mount("inner")
	outer := filepath.Join(inner.Vol.Dir, "outer")
	if err := os.Mkdir(outer, 0o755); err != nil {
		t.Fatal(err)
	}
	status, _, stderr := lab.Outcome(t, inner.Vol.Command("mount", "--embedded", "--name", "outer", inner.Dir, outer))
	if says := inner.Dir + " is a lockfs view of " + inner.Vol.Source + ": name that directory"; status != 2 || !strings.Contains(stderr, says) {
		t.Errorf("exit status %d, %q; want %q", status, stderr, says)
	}
	dir := inner.Path("dir")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	status, _, stderr = lab.Outcome(t, inner.Vol.Command("mount", "--name", "outer", dir, outer))
	if status != 2 || !strings.Contains(stderr, "fuse.lockfs") || !strings.Contains(stderr, "--endpoints") || !strings.Contains(stderr, "--embedded") {
		t.Errorf("exit status %d, %q", status, stderr)
	}
	over := lab.NewVolume(t, "--embedded", "--name", "outer")
	over.Source = dir
	m := over.Mount("outer")
	p := lab.NewAgent(t)
	fd := p.Open(m.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	p.Must(lab.Call{Op: "write", FD: fd, Data: "through both"})
	p.Must(lab.Call{Op: "close", FD: fd})
	if got := inner.Vol.Read("dir/f"); got != "through both" {
		t.Errorf("the file holds %q", got)
	}
}

// All mounts of a volume mean the same one, or are refused with both values.
func TestVolumeMismatch(t *testing.T) { lab.Over(t, testVolumeMismatch, lab.Local, lab.InLeases) }

func testVolumeMismatch(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	v.Mount("a")
	mnt := filepath.Join(v.Dir, "b")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	status, _, stderr := lab.Outcome(t, v.Command("mount", "--name", "other", v.Source, mnt))
	if status != 1 || !strings.Contains(stderr, `source`) || !strings.Contains(stderr, `other`) {
		t.Errorf("another name: exit status %d, %q", status, stderr)
	}
	status, _, stderr = lab.Outcome(t, v.Command("mount", "--namespace", "elsewhere", v.Source, mnt))
	if status != 1 || !strings.Contains(stderr, "default") || !strings.Contains(stderr, "elsewhere") {
		t.Errorf("another namespace: exit status %d, %q", status, stderr)
	}
	if _, err := os.Stat(filepath.Join(v.Dir, "a", ".lockfs-volume")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the marker shows in the view: %v", err)
	}
	names, err := os.ReadDir(filepath.Join(v.Dir, "a"))
	if err != nil || len(names) != 0 {
		t.Errorf("the view lists %v, %v", names, err)
	}
	p := lab.NewAgent(t)
	p.Fails(lab.Call{Op: "open", Path: filepath.Join(v.Dir, "a", ".lockfs-volume"), Flags: unix.O_WRONLY | unix.O_CREAT}, unix.EPERM)
}

// What a killed daemon left at a mount point is cleared by the next; anything
// else there is not touched.
func TestLeftoverMount(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	first := v.Mount("first")
	second := v.Mount("second")
	second.Kill()
	second.MustBeDead()
	again := v.Mount("second")
	p := lab.NewAgent(t)
	p.Must(lab.Call{Op: "close", FD: p.Open(again.Path("f"), unix.O_WRONLY|unix.O_CREAT)})

	status, _, stderr := lab.Outcome(t, v.Command("mount", v.Source, first.Dir))
	if status != 1 || !strings.Contains(stderr, "lockfs") || !strings.Contains(stderr, v.Source) {
		t.Errorf("over a live mount: exit status %d, %q", status, stderr)
	}
	if os.Getuid() != 0 {
		return
	}
	tmpfs := filepath.Join(v.Dir, "tmpfs")
	if err := errors.Join(os.Mkdir(tmpfs, 0o755), unix.Mount("none", tmpfs, "tmpfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(tmpfs, unix.MNT_DETACH) })
	status, _, stderr = lab.Outcome(t, v.Command("mount", v.Source, tmpfs))
	if status != 1 || !strings.Contains(stderr, "tmpfs") {
		t.Errorf("over a tmpfs: exit status %d, %q", status, stderr)
	}
}

// A daemon that is killed the moment its view appears dies, and its view with it.
func TestKilledWhileStarting(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	for range 5 {
		m := v.Mount("m")
		m.Kill()
		m.MustBeDead()
	}
}

// A signal that comes twice, as from timeout(1), ends a mount in peace.
func TestSignalledTwice(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	m := v.Mount("m")
	lab.NewAgent(t).Open(m.Path("f"), unix.O_WRONLY|unix.O_CREAT) // what is in use takes a moment
	_ = m.Cmd.Process.Signal(unix.SIGTERM)
	lab.Eventually(t, "the first is heard", func() bool { return strings.Contains(m.Log.String(), "msg=unmounting") })
	if status := m.Stop(); status != 0 || lab.FSType(m.Dir) == unix.FUSE_SUPER_MAGIC {
		t.Errorf("exit status %d", status)
	}
}

// The end of its terminal ends a mount in peace.
func TestHangup(t *testing.T) {
	t.Parallel()
	m := lab.NewVolume(t).Mount("m")
	_ = m.Cmd.Process.Signal(unix.SIGHUP)
	lab.Eventually(t, "the signal is heard", func() bool { return strings.Contains(m.Log.String(), "msg=unmounting") })
	if status := m.Stop(); status != 0 || lab.FSType(m.Dir) == unix.FUSE_SUPER_MAGIC {
		t.Errorf("exit status %d", status)
	}
}

// lockfs ls lists holders and waiters, as a table and as JSON, for the volume, a
// directory or a file, from a path in the view or in the directory itself.
func TestList(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--wait", "-1")
	a, b := v.Mount("a"), v.Mount("b")
	holder, waiter := lab.NewAgent(t), lab.NewAgent(t)
	holder.Must(lab.Call{Op: "mkdir", Path: a.Path("d")})
	holder.Open(a.Path("d/f"), unix.O_WRONLY|unix.O_CREAT)
	holder.Open(a.Path("d.txt"), unix.O_WRONLY|unix.O_CREAT)
	waiter.Start(lab.Call{Op: "open", Path: b.Path("d/f"), Flags: unix.O_WRONLY})
	v.WaitFor("d/f")

	paths := func(dir string, args ...string) (paths []string) {
		t.Helper()
		cmd := v.Command(append([]string{"ls"}, args...)...)
		cmd.Dir = dir
		status, stdout, stderr := lab.Outcome(t, cmd)
		if status != 0 {
			t.Fatalf("ls %v: exit status %d, %s", args, status, stderr)
		}
		for line := range strings.Lines(stdout) {
			if f := strings.Fields(line); f[0] != "PATH" {
				paths = append(paths, f[0]+" "+f[2])
			}
		}
		return paths
	}
	all := []string{"d.txt held", "d/f held", "d/f waiting"}
	below := all[1:]
	for _, c := range []struct {
		dir  string
		args []string
		want []string
	}{
		{"/", []string{a.Dir}, all},
		{"/", []string{v.Source}, all},
		{a.Dir, nil, all},
		{v.Source, []string{"."}, all},
		{"/", []string{b.Path("d")}, below},
		{a.Path("d"), nil, below},
		{a.Dir, []string{"d/f"}, below},
		{"/", []string{filepath.Join(v.Source, "d/f")}, below},
		{a.Dir, []string{"d.tx"}, nil},
		{a.Dir, []string{"not/there"}, nil},
	} {
		if got := paths(c.dir, c.args...); strings.Join(got, ";") != strings.Join(c.want, ";") {
			t.Errorf("in %s, ls %v: %q, want %q", c.dir, c.args, got, c.want)
		}
	}

	// In a Kubernetes container the view is a bind mount of a part of it, and
	// the environment says which volume.
	bind := filepath.Join(v.Dir, "bind")
	if os.Getuid() == 0 {
		if err := errors.Join(os.Mkdir(bind, 0o755), unix.Mount(a.Path("d"), bind, "", unix.MS_BIND, "")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(bind, unix.MNT_DETACH) })
		if got := paths("/", bind); strings.Join(got, ";") != strings.Join(below, ";") {
			t.Errorf("ls of a bind mount: %q, want %q", got, below)
		}
	}
	v.Env = append(v.Env, "LOCKFS_ENDPOINTS=unix://"+v.StateFile("client.sock"), "LOCKFS_NAME=source", "LOCKFS_WAIT=")
	for _, c := range [][]string{{a.Dir}, {"."}, {"/"}} {
		if got := paths("/", c...); strings.Join(got, ";") != strings.Join(all, ";") {
			t.Errorf("with endpoints, ls %v: %q, want %q", c, got, all)
		}
	}
	if got := paths("/", "d/"); strings.Join(got, ";") != strings.Join(below, ";") {
		t.Errorf("with endpoints, ls d/: %q, want %q", got, below)
	}
	if status, _, stderr := lab.Outcome(t, v.Command("ls", "--name", "other", a.Dir)); status != 2 || !strings.Contains(stderr, "default/source") {
		t.Errorf("ls of another volume's path: %d %q", status, stderr)
	}

	es := v.LS()
	if es[1].Node != "a" || es[1].PID != holder.PID() || es[2].Node != "b" || es[2].PID != waiter.PID() || es[1].Token >= es[2].Token {
		t.Errorf("ls -o json: %+v", es)
	}
	_, wide, _ := lab.Outcome(t, v.Command("ls", "-o", "wide", v.Source))
	for _, want := range []string{es[2].Lock, es[2].Session, es[2].Command} {
		if !strings.Contains(wide, want) {
			t.Errorf("ls -o wide lacks %q:\n%s", want, wide)
		}
	}
	for _, arg := range []string{"version", "--version"} {
		if status, stdout, _ := lab.Outcome(t, v.Command(arg)); status != 0 || !strings.HasPrefix(stdout, "lockfs ") || strings.Count(stdout, "\n") != 1 {
			t.Errorf("%s: exit status %d, %q", arg, status, stdout)
		}
	}
}

// Both commands of the README work; this is the first.
func TestDemo(t *testing.T) {
	t.Parallel()
	var out []byte
	var err error
	for range 5 {
		demo := exec.Command("../../scripts/demo.sh", lab.Program)
		demo.Env = append(os.Environ(), "LOCKFS_TTL="+patientTTL) // else a machine that stands still costs locks
		out, err = demo.CombinedOutput()
		if err == nil || !bytes.Contains(out, []byte("context deadline exceeded")) {
			break
		}
		t.Log("a mount of the demo did not start in time: once again")
	}
	if err != nil {
		t.Fatalf("demo: %v\n%s", err, out)
	}
	for _, want := range []string{`echo line >> log +200 +200 +200\n`, ` waiting `, `written by the holder\nwritten by the waiter\n`} {
		if !regexp.MustCompile(want).Match(out) {
			t.Errorf("the demo does not show %q:\n%s", want, out)
		}
	}
}
