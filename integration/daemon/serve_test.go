package daemon

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// node is a machine with one 'lockfs serve', and an etcd for its volumes.
type node struct {
	*lab.Mount // the daemon; its directory is above those of all mountpoints
	config     string
	via        []string // the command that runs the daemon
}

func newNode(t *testing.T) *node {
	t.Helper()
	v := lab.NewVolume(t)
	n := &node{config: filepath.Join(v.Dir, "lockfs.yaml")}
	n.Mount = &lab.Mount{T: t, Vol: v, Name: "serve", Dir: filepath.Join(v.Dir, "views")}
	if err := os.Mkdir(n.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	v.Mount("etcd") // which serves the embedded one
	return n
}

func (n *node) endpoint() string { return "unix://" + n.Vol.StateFile("client.sock") }

// list writes the configuration: volumes by name, with further fields.
func (n *node) list(volumes ...string) {
	n.T.Helper()
	text := "volumes:\n"
	for _, v := range volumes {
		name, more, _ := strings.Cut(v, " ")
		if !strings.Contains(more, "endpoints:") {
			more += fmt.Sprintf(" endpoints: [%q]", n.endpoint())
		}
		if !strings.Contains(more, "source:") {
			more += fmt.Sprintf(", source: %s", n.source(name))
		}
		text += fmt.Sprintf("- {name: %s, mountpoint: %s, %s}\n", name, n.view(name), more)
	}
	n.write(text)
}

func (n *node) write(text string) {
	n.T.Helper()
	if err := os.WriteFile(n.config, []byte(text), 0o644); err != nil {
		n.T.Fatal(err)
	}
}

func (n *node) source(name string) string { return filepath.Join(n.Vol.Dir, "source-"+name) }

// view is the mountpoint of a volume: the directory above is what pods mount.
func (n *node) view(name string) string { return filepath.Join(n.Dir, name, "view") }

func (n *node) makeSources(names ...string) {
	n.T.Helper()
	for _, name := range names {
		if err := os.Mkdir(n.source(name), 0o755); err != nil {
			n.T.Fatal(err)
		}
		n.T.Cleanup(func() { _ = unix.Unmount(n.view(name), unix.MNT_DETACH) })
	}
}

// start starts the daemon, and returns when it answers.
func (n *node) start(args ...string) {
	n.T.Helper()
	m := n.Mount
	m.Log, m.Done = &lab.LogBuffer{}, make(chan struct{})
	all := slices.Concat(n.via, []string{lab.Program, "serve", "--config", n.config, "--http", "127.0.0.1:0", "--state-dir", n.Vol.State, "--node", "n"}, args)
	m.Cmd = exec.Command(all[0], all[1:]...)
	m.Cmd.Env, m.Cmd.Stderr = n.Vol.Env, m.Log
	if err := m.Cmd.Start(); err != nil {
		n.T.Fatal(err)
	}
	done := m.Done
	go func() {
		m.Err = m.Cmd.Wait()
		close(done)
	}()
	n.T.Cleanup(m.Cleanup)
	lab.Eventually(n.T, "the daemon answers", func() bool {
		n.alive()
		return n.address() != ""
	})
}

func (n *node) alive() {
	n.T.Helper()
	select {
	case <-n.Done:
		n.T.Fatalf("lockfs serve has ended: %v\n%s", n.Err, n.Log)
	default:
	}
}

func (n *node) address() string {
	all := regexp.MustCompile(`"answering HTTP" address=(\S+)`).FindAllStringSubmatch(n.Log.String(), -1)
	if all == nil {
		return ""
	}
	return all[len(all)-1][1] // a worker that was started again has another port
}

// get asks the daemon, and returns the status and the body; 0 if it does not answer.
func (n *node) get(path string) (int, string) {
	n.T.Helper()
	resp, err := http.Get("http://" + n.address() + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

// ready waits until /readyz has the status and a body that matches all of lines.
func (n *node) ready(status int, lines ...string) {
	n.T.Helper()
	var got int
	var body string
	defer func() {
		if n.T.Failed() {
			n.T.Logf("/readyz: %d %s", got, body)
		}
	}()
	lab.Eventually(n.T, fmt.Sprintf("/readyz is %d %q", status, lines), func() bool {
		n.alive()
		got, body = n.get("/readyz")
		return got == status && !slices.ContainsFunc(lines, func(l string) bool {
			return !regexp.MustCompile("(?m)^" + l + "$").MatchString(body)
		})
	})
}

// Volumes come, go and change, while a program that writes to another notices
// nothing; a file with a mistake changes nothing.
func TestServeFollowsItsFile(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.makeSources("kept", "other")
	n.list("kept")
	n.start()
	n.ready(200, `\[\+\] default/kept: ok`, "ready")
	session := func() string { return n.held("kept", "held") }

	holder, busy, user := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	held := holder.Open(filepath.Join(n.view("kept"), "held"), unix.O_WRONLY|unix.O_CREAT)
	first := session()
	// A program that begins anew all the time, until it is told to end.
	lines := filepath.Join(n.view("kept"), "lines")
	busy.Must(lab.Call{Op: "close", FD: busy.Open(lines, unix.O_WRONLY|unix.O_CREAT)})
	const rounds = 600
	working := busy.Start(lab.Call{Op: "repeat", N: rounds, Calls: []lab.Call{
		{Op: "open", Path: lines, Flags: unix.O_WRONLY | unix.O_APPEND}, {Op: "write", FD: lab.Opened, Data: "line\n"}, {Op: "close", FD: lab.Opened}}})

	n.list("kept", "other")
	n.ready(200, `\[\+\] default/other: ok`)
	file := filepath.Join(n.view("other"), "f")
	fd := user.Open(file, unix.O_RDWR|unix.O_CREAT)
	user.Must(lab.Call{Op: "write", FD: fd, Data: "1"})

	n.write("volumes:\n- name: kept\n  sauce: /srv\n")
	n.ready(200, `\[!\] configuration: .*`+regexp.QuoteMeta(n.config)+`:3: a volume has no field "sauce".*`, `\[\+\] default/other: ok`)
	user.Must(lab.Call{Op: "write", FD: fd, Data: "2"})

	n.list("other wait: 2m,", "kept")
	lab.Eventually(t, "the view is mounted anew", func() bool {
		r := user.Do(lab.Call{Op: "write", FD: fd, Data: "3"})
		if r.Errno != 0 && r.Errno != unix.ENOTCONN && r.Errno != unix.ECONNABORTED && r.Errno != unix.EIO {
			t.Fatalf("a program with an open file gets %v", r.Errno)
		}
		return r.Errno == unix.ENOTCONN
	})
	n.ready(200, `\[\+\] default/other: ok`, `\[\+\] default/kept: ok`)
	user.Must(lab.Call{Op: "close", FD: user.Open(file, unix.O_WRONLY)})

	n.list("kept")
	lab.Eventually(t, "the volume is unmounted", func() bool { return lab.FSType(n.view("other")) != unix.FUSE_SUPER_MAGIC })
	lab.Eventually(t, "nothing of it is open", func() bool { return !n.hasOpen(n.source("other")) })
	lab.Eventually(t, "/readyz names it no more", func() bool { _, body := n.get("/readyz"); return body == "[+] default/kept: ok\nready\n" })

	if r := lab.Await(t, "a program on a volume that does not change", working); r.Errno != 0 || len(r.Failed) > 0 {
		t.Errorf("it met %v", r.Failed)
	}
	if b, err := os.ReadFile(filepath.Join(n.source("kept"), "lines")); err != nil || len(b) != rounds*len("line\n") {
		t.Errorf("it has written %d bytes, %v", len(b), err)
	}
	holder.Must(lab.Call{Op: "write", FD: held, Data: "still mine"})
	if got := session(); got != first {
		t.Errorf("a volume that does not change has had session %s, then %s", first, got)
	}
	if status := n.Stop(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	if lab.FSType(n.view("kept")) == unix.FUSE_SUPER_MAGIC {
		t.Error("it is still mounted")
	}
	if got := session(); got != "" {
		t.Errorf("still locked by session %s", got)
	}
}

// A mount namespace that was made beside a view, which any user can do, does not keep
// the view when its volume is gone: what takes no lock would be done there for ever, by
// the policy of that time, and the source could not be unmounted.
func TestServeCutsOffOtherNamespaces(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("the connection of a view is cut by root")
	}
	n := newNode(t)
	n.makeSources("gone", "kept")
	n.list("gone", "kept")
	n.start()
	n.ready(200, `\[\+\] default/gone: ok`, `\[\+\] default/kept: ok`)
	elsewhere := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-c", `cd "$0" && echo there && read line && mkdir made && echo made`, n.view("gone"))
	in, err := elsewhere.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := elsewhere.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := elsewhere.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); _ = elsewhere.Process.Kill(); _ = elsewhere.Wait() })
	if _, err := io.ReadFull(out, make([]byte, len("there\n"))); err != nil {
		t.Fatal(err)
	}
	n.list("kept")
	lab.Eventually(t, "the volume is unmounted", func() bool { return lab.FSType(n.view("gone")) != unix.FUSE_SUPER_MAGIC })
	lab.Eventually(t, "nothing of it is open", func() bool { return !n.hasOpen(n.source("gone")) })
	if _, err := io.WriteString(in, "\n"); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(out); err != nil || len(rest) > 0 {
		t.Errorf("a program elsewhere: %q, %v", rest, err)
	}
	if names, err := os.ReadDir(n.source("gone")); err != nil || slices.ContainsFunc(names, func(e os.DirEntry) bool { return e.Name() == "made" }) {
		t.Errorf("the source has what was made after the end: %v, %v", names, err)
	}
	n.ready(200, `\[\+\] default/kept: ok`, "ready")
}

// held returns the session that holds a file of a volume.
func (n *node) held(volume, path string) string {
	n.T.Helper()
	for _, e := range n.Vol.LSOf("--endpoints", n.endpoint(), n.source(volume)) {
		if e.Path == path && e.State == "held" {
			return e.Session
		}
	}
	return ""
}

// hasOpen reports whether the daemon has a file or directory below dir open.
func (n *node) hasOpen(dir string) bool {
	n.T.Helper()
	fds := fmt.Sprintf("/proc/%d/fd", n.Cmd.Process.Pid)
	names, err := os.ReadDir(fds)
	if err != nil {
		n.T.Fatal(err)
	}
	return slices.ContainsFunc(names, func(e os.DirEntry) bool {
		target, _ := os.Readlink(filepath.Join(fds, e.Name()))
		return strings.HasPrefix(target, dir)
	})
}

// A volume that cannot be mounted yet is named, keeps nobody waiting, and is
// mounted when it can be.
func TestServeTriesAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.makeSources("good", "cut-off")
	n.list("good", "late", "cut-off endpoints: ['http://127.0.0.1:1']")
	n.start()
	n.ready(200, `\[\+\] default/good: ok`, `\[!\] default/late: it is not mounted: SOURCE .* no such file.*`, `\[!\] default/cut-off: it is not mounted: .*http://127.0.0.1:1.*`)
	lab.Eventually(t, "/healthz is 200", func() bool { status, _ := n.get("/healthz"); return status == 200 })
	p := lab.NewAgent(t)
	p.Must(lab.Call{Op: "close", FD: p.Open(filepath.Join(n.view("good"), "f"), unix.O_WRONLY|unix.O_CREAT)})
	n.makeSources("late")
	n.ready(200, `\[\+\] default/late: ok`)
	p.Must(lab.Call{Op: "close", FD: p.Open(filepath.Join(n.view("late"), "f"), unix.O_WRONLY|unix.O_CREAT)})
}

// In pods, which see the mountpoint by the directory above it, the view comes
// back at its place after the daemon was killed. An open file does not, its
// lock is free at once, and nothing is ever written to the directory below.
func TestServeComesBackInPods(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root, for mount namespaces")
	}
	n := newNode(t)
	n.makeSources("v")
	above, pod := filepath.Dir(n.view("v")), filepath.Join(n.Vol.Dir, "pod")
	if err := errors.Join(os.MkdirAll(above, 0o755), os.Mkdir(pod, 0o755)); err != nil {
		t.Fatal(err)
	}
	// What a node has: the kubelet's directories are shared with its mounts.
	if err := errors.Join(unix.Mount(n.Dir, n.Dir, "", unix.MS_BIND, ""), unix.Mount("", n.Dir, "", unix.MS_SHARED, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Unmount(n.view("v"), unix.MNT_DETACH)
		_ = exec.Command("chattr", "-i", n.view("v")).Run()
		_ = unix.Unmount(n.Dir, unix.MNT_DETACH)
	})
	lab.InMemory(t, n.source("v"))
	n.via = []string{"unshare", "-m", "--propagation", "unchanged"} // Bidirectional
	inPod := func() *lab.Agent {                                    // HostToContainer
		return lab.NewAgentBy(t, "unshare", "-m", "--propagation", "slave", "sh", "-c", `mount --rbind "$1" "$2" && exec "$0"`, os.Args[0], above, pod)
	}
	n.list("v ttl: 5m,") // nobody waits for that
	n.start("--guard")
	n.ready(200)

	early, user := inPod(), inPod()
	inView := func(name string) string { return filepath.Join(pod, "view", name) }
	fd := user.Open(inView("f"), unix.O_WRONLY|unix.O_CREAT)
	user.Must(lab.Call{Op: "write", FD: fd, Data: "before\n"})
	// It tries to write all the time, whatever is there.
	early.Start(lab.Call{Op: "repeat", N: -1, Calls: []lab.Call{
		{Op: "open", Path: inView("g"), Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_APPEND}, {Op: "write", FD: lab.Opened, Data: "line\n"}, {Op: "close", FD: lab.Opened}}})
	for range 3 {
		n.Kill()
		user.Fails(lab.Call{Op: "write", FD: fd, Data: "lost\n"}, unix.ENOTCONN)
		user.Fails(lab.Call{Op: "open", Path: inView("f"), Flags: unix.O_WRONLY | unix.O_CREAT}, unix.ENOTCONN)
		n.start("--guard")
		n.ready(200)
		user.Fails(lab.Call{Op: "write", FD: fd, Data: "lost\n"}, unix.ENOTCONN)
		fd = user.Open(inView("f"), unix.O_WRONLY|unix.O_APPEND) // the dead daemon's lock is no more
		user.Must(lab.Call{Op: "write", FD: fd, Data: "after\n"})
	}
	if b, err := os.ReadFile(filepath.Join(n.source("v"), "f")); err != nil || string(b) != "before\nafter\nafter\nafter\n" {
		t.Errorf("the file holds %q, %v", b, err)
	}
	if status := n.Stop(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	user.Fails(lab.Call{Op: "open", Path: inView("h"), Flags: unix.O_WRONLY | unix.O_CREAT}, unix.EPERM)
	if strings.Contains(n.Log.String(), "mount namespace only") {
		t.Errorf("a shared mount is taken for a private one:\n%s", n.Log)
	}
	left, err := os.ReadDir(n.view("v"))
	if err != nil || len(left) > 0 {
		t.Errorf("the bare directory has %v, %v", left, err)
	}
}

// A volume that is taken out of the file while a write to it hangs goes; the
// lock stays until the write has ended, and no other volume waits.
func TestServeKeepsTheLockOfAHangingWrite(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.makeSources("good")
	below, hanging := n.freezable("hanging")
	n.list("good", hanging)
	n.start()
	n.ready(200, `\[\+\] default/good: ok`, `\[\+\] default/hanging: ok`)

	p := lab.NewAgent(t)
	fd := p.Open(filepath.Join(n.view("hanging"), "f"), unix.O_WRONLY|unix.O_CREAT)
	lab.Freeze(t, below.Cmd.Process.Pid)
	write := p.Start(lab.Call{Op: "write", FD: fd, Data: "late"})
	lab.Eventually(t, "the daemon writes", func() bool { return lab.IsWithin(t, n.Cmd.Process.Pid, unix.SYS_PWRITE64) })
	n.list("good")
	if r := lab.Await(t, "a write to a volume that hangs", write); r.Errno != unix.ECONNABORTED {
		t.Errorf("the program got %v", r.Errno)
	}
	lab.Eventually(t, "the daemon waits for the write", func() bool { return strings.Contains(n.Log.String(), "writes are still under way") })
	held := func() bool { return len(n.Vol.LSOf("--endpoints", n.endpoint(), "--name", "hanging", "/f")) > 0 }
	if lab.FSType(n.view("hanging")) == unix.FUSE_SUPER_MAGIC || !held() {
		t.Errorf("it is mounted, or its lock is gone")
	}
	n.ready(200, `\[\+\] default/good: ok`, `\[!\] default/hanging: it is not mounted`)
	if err := below.Cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the lock is free", func() bool { return !held() })
	if b, err := os.ReadFile(below.Path("source/f")); err != nil || string(b) != "late" {
		t.Errorf("the file holds %q, %v", b, err)
	}
	n.ready(200, `\[\+\] default/good: ok`)
}

// A volume whose source hangs keeps no other waiting, and is no more once it is
// taken out of the file.
func TestServeBesideASourceThatHangs(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.makeSources("good")
	below, hanging := n.freezable("hanging")
	lab.Freeze(t, below.Cmd.Process.Pid)
	n.list("good", hanging)
	n.start()
	n.ready(200, `\[\+\] default/good: ok`, `\[!\] default/hanging: it is not mounted`)
	n.list("good")
	n.ready(200, `\[\+\] default/good: ok`)
	if err := below.Cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if status := n.Stop(); status != 0 {
		t.Errorf("exit status %d", status)
	}
}

// freezable makes a volume whose source is served by a process, and returns
// that and what list is to be told.
func (n *node) freezable(name string) (below *lab.Mount, item string) {
	n.T.Helper()
	below = lab.NewVolume(n.T, "--rule", "** nolock").Mount("below")
	if err := os.Mkdir(below.Path("source"), 0o755); err != nil {
		n.T.Fatal(err)
	}
	n.T.Cleanup(func() { _ = unix.Unmount(n.view(name), unix.MNT_DETACH) })
	n.T.Cleanup(func() { _ = below.Cmd.Process.Signal(unix.SIGCONT) })
	return below, fmt.Sprintf("%s source: %s,", name, below.Path("source"))
}

// What a mounted Secret has gets a volume to an etcd that asks for it.
func TestServeCredentials(t *testing.T) {
	t.Parallel()
	keys := lab.NewPKI(t)
	endpoint := lab.NewSecureEtcd(t, keys)
	n := newNode(t)
	n.makeSources("v", "w")
	credentials := filepath.Join(n.Vol.Dir, "credentials")
	team := filepath.Join(credentials, "team")
	if err := os.MkdirAll(team, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]string{"ca.crt": keys.CA, "tls.crt": keys.Cert, "tls.key": keys.Key} {
		if err := os.Symlink(file, filepath.Join(team, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"username": "team\n", "password": "secret\n"} {
		if err := os.WriteFile(filepath.Join(team, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	etcd := fmt.Sprintf(" namespace: team, endpoints: [%q], credentials: ", endpoint)
	n.list("v"+etcd+"team", "w"+etcd+"nobody")
	n.start("--credentials-dir", credentials)
	n.ready(200, `\[\+\] team/v: ok`, `\[!\] team/w: it is not mounted: credentials: .*/nobody: no such file or directory`)
	p := lab.NewAgent(t)
	p.Must(lab.Call{Op: "close", FD: p.Open(filepath.Join(n.view("v"), "f"), unix.O_WRONLY|unix.O_CREAT)})
}

// All mistakes of a file are named before anything is served.
func TestServeRefusesAFile(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.write("volumes:\n- name: a\n  source: relative\n  mountpoint: /m\n  endpoint: x\n")
	cmd := n.Vol.Command("serve", "--config", n.config)
	status, _, stderr := lab.Outcome(t, cmd)
	want := []string{
		"lockfs: " + n.config + ":2: endpoints: name those of the etcd",
		n.config + `:3: source: "relative" is not an absolute path`,
		n.config + `:5: a volume has no field "endpoint"`,
	}
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	if status != 2 || !slices.EqualFunc(lines, want, strings.HasPrefix) {
		t.Errorf("exit status %d, %s", status, stderr)
	}
	for args, says := range map[string]string{"": "--config is required", "--config " + n.config + ".missing": "no such file", "--state-dir x --config " + n.config: "absolute"} {
		status, _, stderr := lab.Outcome(t, n.Vol.Command(append([]string{"serve"}, strings.Fields(args)...)...))
		if status != 2 || !strings.Contains(stderr, says) {
			t.Errorf("%s: exit status %d, %s", args, status, stderr)
		}
	}
}

// A session that is suspended is the volume's trouble: /readyz shows it, and the
// daemon is ready and alive.
func TestReadyWhileSuspended(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.makeSources("v")
	n.list("v ttl: 3s, suspendWait: 1h,")
	n.start()
	n.ready(200)
	etcd := n.Vol.EtcdPID()
	lab.Freeze(t, etcd)
	n.ready(200, `\[!\] default/v: its lock session is suspended`)
	lab.Eventually(t, "/healthz is 200", func() bool { status, _ := n.get("/healthz"); return status == 200 })
	if err := unix.Kill(etcd, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	n.ready(200)
}

// A daemon of several volumes that dies goes on with each of them. One that was taken out of its file
// meanwhile is let go.
func TestServeOutlivesADeath(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.makeSources("one", "two", "gone")
	const patient = " ttl: 60s," // or a death on a busy machine costs a lease
	n.list("one"+patient, "two"+patient, "gone"+patient)
	n.start("--supervise")
	n.ready(200, `\[\+\] default/one: ok`, `\[\+\] default/two: ok`, `\[\+\] default/gone: ok`)
	s := lab.Supervise(n.Mount)
	s.Views = 3
	one, two, three := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	a := one.Open(filepath.Join(n.view("one"), "f"), unix.O_WRONLY|unix.O_CREAT)
	b := two.Open(filepath.Join(n.view("two"), "f"), unix.O_WRONLY|unix.O_CREAT)
	c := three.Open(filepath.Join(n.view("gone"), "f"), unix.O_WRONLY|unix.O_CREAT)
	locks := n.held("one", "f") + n.held("two", "f")
	s.KillWorker()
	goOn := func() {
		t.Helper()
		one.Must(lab.Call{Op: "write", FD: a, Data: "1"})
		two.Must(lab.Call{Op: "write", FD: b, Data: "2"})
		if now := n.held("one", "f") + n.held("two", "f"); now != locks {
			t.Errorf("the locks are %q, and were %q", now, locks)
		}
	}
	goOn()
	three.Must(lab.Call{Op: "write", FD: c, Data: "3"})
	s.BecomesSteady()
	s.Dies(func() { // while the file is wrong
		n.write("volumes: no list")
		if err := unix.Kill(s.Serving(), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	})
	goOn()
	n.list("one"+patient, "two"+patient)
	lab.Eventually(t, "the volume that is not listed any more is unmounted", func() bool {
		return three.Do(lab.Call{Op: "write", FD: c, Data: "3"}).Errno != 0
	})
	goOn()
	n.ready(200, `\[\+\] default/one: ok`, `\[\+\] default/two: ok`)
	one.Must(lab.Call{Op: "close", FD: a})
	two.Must(lab.Call{Op: "close", FD: b})
}

// A worker that goes on with one view, and still tries to with another, hands the first one on, and dies.
// The next worker does not take that view from what the worker before has left: the other daemon has it.
func TestServeHandsOnAfterADeath(t *testing.T) {
	t.Parallel()
	for range 5 {
		if handsOnAfterADeath(t) {
			return
		}
		t.Log("the second death would come too late: once again")
	}
	t.Fatal("the second death always comes too late")
}

// handsOnAfterADeath returns false if the worker before the last may have nothing to leave any more, after 30 s.
func handsOnAfterADeath(t *testing.T) bool {
	t.Helper()
	n := newNode(t)
	n.makeSources("one", "two")
	away := lab.NewVolume(t)
	away.Mount("etcd")
	n.list("one ttl: 60s,", fmt.Sprintf("two ttl: 60s, endpoints: [%q]", "unix://"+away.StateFile("client.sock")))
	n.start("--supervise")
	n.ready(200, `\[\+\] default/one: ok`, `\[\+\] default/two: ok`)
	s := lab.Supervise(n.Mount)
	s.BecomesSteady()
	etcd := away.EtcdPID()
	t.Cleanup(func() { _ = unix.Kill(etcd, unix.SIGCONT) })
	lab.Freeze(t, etcd)
	dies := func() {
		t.Helper()
		was := s.Serving()
		if err := unix.Kill(was, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		lab.Eventually(t, "another worker begins", func() bool {
			now := s.Worker()
			return now != 0 && now != was
		})
	}
	died := time.Now()
	dies()
	const took = "took the mount over"
	lab.Eventually(t, "the worker goes on with one view", func() bool { return n.Said(took) })
	next := &node{config: n.config + ".next"}
	next.Mount = &lab.Mount{T: t, Vol: n.Vol, Name: "next", Dir: n.Dir}
	next.list("one ttl: 60s,")
	next.start()
	lab.Eventually(t, "the next daemon has the view", func() bool { return next.Said(took) })
	p := lab.NewAgent(t)
	fd := p.Open(filepath.Join(n.view("one"), "f"), unix.O_WRONLY|unix.O_CREAT)
	lock := n.held("one", "f")
	if time.Since(died) > 25*time.Second {
		return false
	}
	dies()
	lab.Eventually(t, "a daemon has the view", func() bool { return strings.Count(n.Log.String(), took) > 1 })
	p.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
	if now := n.held("one", "f"); now != lock || lock == "" {
		t.Errorf("the session of the lock is %q, and was %q", now, lock)
	}
	p.Must(lab.Call{Op: "close", FD: fd})
	if strings.Count(n.Log.String(), took+" from the daemon that served it\" namespace=default name=one died=") > 1 {
		t.Errorf("the view was taken from a daemon that had none:\n%s", n.Log)
	}
	return true
}

// A daemon that has handed its view on leaves it to the other daemon, also when its file changes and
// when it ends. It serves the view again when the other one has ended.
func TestServeLeavesWhatItHandedOn(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.makeSources("v")
	n.list("v")
	n.start()
	n.ready(200, `\[\+\] default/v: ok`)
	next := &node{config: n.config + ".next"}
	next.Mount = &lab.Mount{T: t, Vol: n.Vol, Name: "next", Dir: n.Dir}
	next.list("v wait: 40s,")
	takeOver := func() {
		t.Helper()
		next.start()
		lab.Eventually(t, "the next daemon has the view", func() bool { return next.Said("took the mount over") })
		n.ready(200, `\[!\] default/v: .*handed on to another daemon`)
	}
	takeOver()
	next.Stop()
	n.ready(200, `\[\+\] default/v: ok`)
	takeOver()

	p := lab.NewAgent(t)
	fd := p.Open(filepath.Join(n.view("v"), "f"), unix.O_WRONLY|unix.O_CREAT)
	lock := n.held("v", "f")
	for i, wait := range []string{"30s", "40s"} {
		n.list("v wait: " + wait + ",")
		lab.Eventually(t, "the daemon has read its file", func() bool {
			return strings.Count(n.Log.String(), "the configuration has changed") > i
		})
	}
	if status := n.Stop(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	p.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
	if now := n.held("v", "f"); now != lock || lock == "" {
		t.Errorf("the session of the lock is %q, and was %q", now, lock)
	}
	p.Must(lab.Call{Op: "close", FD: fd})
	next.ready(200, `\[\+\] default/v: ok`)
}

// A daemon that has taken one view over is not ready while the former one keeps another: Kubernetes would
// end that one, and its programs would lose their open files.
func TestServeIsNotReadyBesideARefusal(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.makeSources("one", "two")
	n.list("one", "two")
	n.start()
	n.ready(200, `\[\+\] default/one: ok`, `\[\+\] default/two: ok`)
	next := &node{config: n.config + ".next"}
	next.Mount = &lab.Mount{T: t, Vol: n.Vol, Name: "next", Dir: n.Dir}
	next.list("one", "two scope: node,")
	next.start()
	lab.Eventually(t, "the next daemon is refused a view", func() bool {
		_, body := next.get("/readyz")
		return strings.Contains(body, "[+] default/one: ok") && strings.Contains(body, "another scope")
	})
	for range 20 { // also while it tries again
		if status, body := next.get("/readyz"); status != 503 {
			t.Fatalf("/readyz: %d %s", status, body)
		}
		time.Sleep(100 * time.Millisecond)
	}
	n.list("one", "two scope: node,")
	next.ready(200, `\[\+\] default/one: ok`, `\[\+\] default/two: ok`)
}

// Nor is it ready when the former one keeps a view and cannot offer it, because its socket is gone.
func TestServeIsNotReadyBesideALostSocket(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.makeSources("one", "two")
	n.list("one", "two")
	n.start()
	n.ready(200, `\[\+\] default/one: ok`, `\[\+\] default/two: ok`)
	view, err := filepath.EvalSymlinks(n.view("two"))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(view))
	if err := os.Remove(filepath.Join(n.Vol.State, "handover", hex.EncodeToString(sum[:8]))); err != nil {
		t.Fatal(err)
	}
	next := &node{config: n.config + ".next"}
	next.Mount = &lab.Mount{T: t, Vol: n.Vol, Name: "next", Dir: n.Dir}
	next.list("one", "two")
	next.start()
	lab.Eventually(t, "the next daemon has one view, and not the other", func() bool {
		status, body := next.get("/readyz")
		if status == 200 {
			t.Fatalf("/readyz: %s", body)
		}
		return strings.Contains(body, "[+] default/one: ok") && strings.Contains(body, "already a lockfs view")
	})
	for range 20 { // also while it tries again
		if status, body := next.get("/readyz"); status != 503 {
			t.Fatalf("/readyz: %d %s", status, body)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err := n.Cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	next.ready(200, `\[\+\] default/one: ok`, `\[\+\] default/two: ok`)
}
