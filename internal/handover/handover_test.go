package handover

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const mountpoint = "/mnt/shared"

// long is what takes no time unless the machine is slow.
const long = 3 * time.Minute

// hasty makes takeTime what it is for users, until restore is called.
func hasty() (restore func()) {
	takeTime = TakeTime
	return func() { takeTime = long }
}

// mount is what an Offer of the tests offers.
type mount struct {
	dir           string
	paused, going atomic.Int64
	gone          chan struct{}
	err           error
	fds           []int
}

func offer(t *testing.T, settings map[string]string) *mount {
	t.Helper()
	m := &mount{dir: t.TempDir(), gone: make(chan struct{})}
	stop, err := Listen(m.dir, mountpoint, Offer{
		Settings: func() map[string]string { return settings },
		Pause: func() ([]byte, []int, error) {
			m.paused.Add(1)
			return []byte("state"), m.fds, m.err
		},
		Resume: func() { m.going.Add(1) },
		Gone:   func() { close(m.gone) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return m
}

func (m *mount) dial(t *testing.T) *Peer {
	t.Helper()
	p, err := Dial(t.Context(), m.dir, mountpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// eventually fails the test if done does not become true.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(long); !done(); time.Sleep(time.Millisecond) { // on an overloaded machine
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// More descriptors than one message has arrive in order.
func TestHandedOn(t *testing.T) {
	m := offer(t, map[string]string{"name": "a"})
	const n = 3*maxFDs + 7
	file := filepath.Join(t.TempDir(), "f")
	for range n {
		fd, err := unix.Open(file, unix.O_CREAT|unix.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		m.fds = append(m.fds, fd)
	}
	defer CloseAll(m.fds)
	if _, err := unix.Seek(m.fds[n-1], 42, unix.SEEK_SET); err != nil {
		t.Fatal(err)
	}
	p := m.dial(t)
	state, fds, err := p.Ask("1", map[string]string{"name": "a"})
	if err != nil || string(state) != "state" || len(fds) != n {
		t.Fatalf("Ask: %q, %d descriptors, %v", state, len(fds), err)
	}
	defer CloseAll(fds)
	if at, err := unix.Seek(fds[n-1], 0, unix.SEEK_CUR); at != 42 || err != nil {
		t.Errorf("the last descriptor is at %d, %v", at, err)
	}
	if flags, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GETFD, 0); flags&unix.FD_CLOEXEC == 0 || err != nil {
		t.Errorf("programs that are started inherit it: %v", err)
	}
	if err := p.Take(); err != nil {
		t.Fatal(err)
	}
	<-m.gone
	if m.going.Load() != 0 {
		t.Error("the old daemon goes on too")
	}
	if _, _, err := m.dial(t).Ask("1", map[string]string{"name": "a"}); !errors.As(err, new(*RefusedError)) {
		t.Errorf("handed on twice: %v", err)
	}
}

// Who refuses says why, and is not paused.
func TestRefused(t *testing.T) {
	own := map[string]string{"name": "a", "policy": "x"}
	for want, settings := range map[string]map[string]string{
		`another policy: "y" instead of "x"`: {"name": "a", "policy": "y"},
		`another policy: "" instead of "x"`:  {"name": "a"},
		"a colour, which this one does not":  {"name": "a", "policy": "x", "colour": "red"},
	} {
		m := offer(t, own)
		_, _, err := m.dial(t).Ask("1", settings)
		if refusal := new(RefusedError); !errors.As(err, &refusal) || !strings.Contains(refusal.Why, want) || refusal.PID != os.Getpid() {
			t.Errorf("%v: %v, want %q", settings, err, want)
		}
		if m.paused.Load() != 0 {
			t.Errorf("%v: it was paused", settings)
		}
	}
	m := offer(t, own)
	p := m.dial(t)
	if err := send(p.c, hello{Format: Format + 1, Version: "2", Settings: own}); err != nil {
		t.Fatal(err)
	}
	var a answer
	if err := receive(p.c, &a, maxState); err != nil || !strings.Contains(a.Refused, fmt.Sprint("state of format ", Format+1)) || m.paused.Load() != 0 {
		t.Errorf("another format: %+v, %v", a, err)
	}
	m = offer(t, own)
	m.err = errors.New("busy")
	if _, _, err := m.dial(t).Ask("1", own); err == nil || !strings.Contains(err.Error(), "busy") {
		t.Errorf("a mount that cannot be paused: %v", err)
	}
}

// A new daemon that ends, or says nothing, leaves the mount to the old one.
func TestGoesOn(t *testing.T) {
	for name, end := range map[string]func(p *Peer){
		"before it has the state": func(p *Peer) {
			_ = send(p.c, hello{Format: Format})
			p.Close()
		},
		"with the state": func(p *Peer) {
			_, _, _ = p.Ask("1", nil)
			p.Close()
		},
		"with another word": func(p *Peer) {
			_, _, _ = p.Ask("1", nil)
			_ = send(p.c, word{"later"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := offer(t, nil)
			end(m.dial(t))
			eventually(t, "the old daemon does not go on", func() bool { return m.going.Load() == m.paused.Load() && m.going.Load() > 0 })
			var p *Peer
			eventually(t, "it cannot be tried again", func() bool {
				p = m.dial(t)
				_, _, err := p.Ask("1", nil)
				return err == nil
			})
			if err := p.Take(); err != nil {
				t.Fatal(err)
			}
			<-m.gone
		})
	}
}

// Who takes too late, does not take.
func TestWithdrawn(t *testing.T) {
	t.Cleanup(hasty())
	m := offer(t, nil)
	p := m.dial(t)
	if _, _, err := p.Ask("1", nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the old daemon waits for ever", func() bool { return m.going.Load() == m.paused.Load() }) // Ask may have tried twice
	if err := p.Take(); err == nil {
		t.Error("both have the mount")
	}
	select {
	case <-m.gone:
		t.Error("nobody has the mount")
	default:
	}
}

// A daemon that has died is asked: its socket is its shadow's, and nobody answers there. The next one is
// asked then. If there is none, the error says so.
func TestAskedWhileItDies(t *testing.T) {
	inTime := successorTime
	defer func() { successorTime = inTime }()
	for _, goesOn := range []bool{true, false} {
		if successorTime = inTime; goesOn {
			successorTime = long
		}
		dir := t.TempDir()
		if err := os.MkdirAll(socketsIn(dir), 0o700); err != nil {
			t.Fatal(err)
		}
		dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: socketOf(dir, mountpoint), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		dead.SetUnlinkOnClose(false)
		p, err := Dial(t.Context(), dir, mountpoint)
		if err != nil {
			t.Fatal(err)
		}
		asked := make(chan error, 1)
		go func() {
			state, _, err := p.Ask("1", nil)
			if err == nil && string(state) != "the next one's" {
				err = fmt.Errorf("the state is %q", state)
			}
			asked <- err
		}()
		dead.Close() // with the connection, if it was not accepted
		if goesOn {
			stop, err := Listen(dir, mountpoint, Offer{
				Settings: func() map[string]string { return nil },
				Pause:    func() ([]byte, []int, error) { return []byte("the next one's"), nil, nil },
				Resume:   func() {}, Gone: func() {},
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(stop)
		}
		t.Cleanup(p.Close) // before stop, which waits for it
		if err := <-asked; goesOn && err != nil || !goesOn && !errors.Is(err, errSilent) {
			t.Errorf("goes on: %v; %v", goesOn, err)
		}
	}
}

func TestNone(t *testing.T) {
	dir := t.TempDir()
	if _, err := Dial(t.Context(), dir, mountpoint); !errors.Is(err, ErrNone) {
		t.Errorf("no socket: %v", err)
	}
	stop, err := Listen(dir, mountpoint, Offer{})
	if err != nil {
		t.Fatal(err)
	}
	stop()
	if _, err := Dial(t.Context(), dir, mountpoint); !errors.Is(err, ErrNone) {
		t.Errorf("after stop: %v", err)
	}
	// A daemon that was killed has left its socket.
	if err := os.MkdirAll(filepath.Dir(socketOf(dir, mountpoint)), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socketOf(dir, mountpoint), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if _, err := Dial(t.Context(), dir, mountpoint); !errors.Is(err, ErrNone) {
		t.Errorf("a dead daemon: %v", err)
	}
}

const (
	askEnv   = "LOCKFS_TEST_ASK"
	offerEnv = "LOCKFS_TEST_OFFER"
	takeEnv  = "LOCKFS_TEST_TAKE_TIME"
)

// In a state directory with a long path there are no sockets, and so no daemons to ask.
func TestLongStateDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	if _, err := Listen(dir, mountpoint, Offer{}); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("listen: %v", err)
	}
	if _, err := Dial(t.Context(), dir, mountpoint); !errors.Is(err, ErrNone) {
		t.Errorf("dial: %v", err)
	}
}

func TestMain(m *testing.M) {
	takeTime = long
	if dir := os.Getenv(offerEnv); dir != "" {
		var err error
		if takeTime, err = time.ParseDuration(os.Getenv(takeEnv)); err != nil {
			panic(err)
		}
		_, err = Listen(dir, mountpoint, Offer{
			Settings: func() map[string]string { return nil },
			Pause:    func() ([]byte, []int, error) { return []byte("state"), nil, nil },
			Resume:   func() { os.Stdout.WriteString("goes on\n") },
			Gone:     func() { os.Stdout.WriteString("handed on\n") },
		})
		if err != nil {
			panic(err)
		}
		os.Stdout.WriteString("offers\n")
		select {}
	}
	if dir := os.Getenv(askEnv); dir != "" {
		p, err := Dial(context.Background(), dir, mountpoint)
		if err == nil {
			_, _, err = p.Ask("1", nil)
		}
		if err != nil {
			os.Stdout.WriteString(err.Error())
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Another user who can reach the socket is refused.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	m := offer(t, nil)
	socket := socketOf(m.dir, mountpoint)
	for _, path := range []string{filepath.Dir(filepath.Dir(m.dir)), filepath.Dir(m.dir), m.dir, filepath.Dir(socket), socket} {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(m.dir, "ask")
	if err := os.WriteFile(program, self, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = []string{askEnv + "=" + m.dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "user 65534 is not the daemon's") || m.paused.Load() != 0 {
		t.Errorf("another user: %s, %v", out, err)
	}
}

// daemon offers a mount in a process of its own.
type daemon struct {
	mount
	cmd  *exec.Cmd
	says *bufio.Reader
}

func startDaemon(t *testing.T) *daemon {
	t.Helper()
	d := &daemon{mount: mount{dir: t.TempDir()}, cmd: exec.Command(os.Args[0])}
	d.cmd.Env = append(os.Environ(), offerEnv+"="+d.dir, takeEnv+"="+takeTime.String())
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		_ = d.cmd.Wait()
	})
	d.says = bufio.NewReader(out)
	d.hears(t, "offers")
	return d
}

func (d *daemon) hears(t *testing.T, want string) {
	t.Helper()
	if line, err := d.says.ReadString('\n'); line != want+"\n" {
		t.Fatalf("the old daemon says %q, %v, want %q", line, err, want)
	}
}

func (d *daemon) asked(t *testing.T) *Peer {
	t.Helper()
	var p *Peer
	eventually(t, "the old daemon does not hand its mount on", func() bool { // it may not have ended the last try
		p = d.dial(t)
		_, _, err := p.Ask("1", nil)
		return err == nil
	})
	return p
}

func (d *daemon) signal(t *testing.T, sig os.Signal) {
	t.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// stop returns when all threads have stopped.
func (d *daemon) stop(t *testing.T) {
	t.Helper()
	d.signal(t, unix.SIGSTOP)
	eventually(t, "the old daemon does not stop", func() bool {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", d.cmd.Process.Pid))
		return err == nil && !slices.ContainsFunc(stats, func(stat string) bool {
			b, err := os.ReadFile(stat)
			return err == nil && !strings.Contains(string(b), ") T ")
		})
	})
}

// A daemon that dies with its mount paused has handed it on: the new one has all of it.
func TestDiesPaused(t *testing.T) {
	d := startDaemon(t)
	p := d.asked(t)
	d.signal(t, unix.SIGKILL)
	if err := p.Take(); err != nil {
		t.Errorf("nobody has the mount: %v", err)
	}
}

// A daemon that has gone on and dies then has answered requests that the state does not know.
func TestDiesAfterItHasGoneOn(t *testing.T) {
	t.Cleanup(hasty())
	d := startDaemon(t)
	p := d.asked(t)
	d.hears(t, "goes on")
	for !hasGoneOn(t, p) { // it was after a try before
		d.hears(t, "goes on")
	}
	d.signal(t, unix.SIGKILL)
	_ = d.cmd.Wait()
	if p.Take() == nil {
		t.Error("a mount was taken in an old state")
	}
}

// hasGoneOn reports whether the old daemon has said that it goes on after this try.
func hasGoneOn(t *testing.T, p *Peer) bool {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(p.life), Events: unix.POLLIN}}
	if _, err := unix.Poll(fds, 0); err != nil {
		t.Fatal(err)
	}
	return fds[0].Revents&unix.POLLIN != 0
}

// A daemon that is stopped before it says who has the mount goes on when it is thawed, and the new
// one does not wait for that.
func TestStoppedBeforeItSaysYours(t *testing.T) {
	d := startDaemon(t)
	p := d.asked(t)
	d.stop(t)
	restore := hasty()
	err := p.Take()
	restore()
	if err == nil {
		t.Error("the mount was taken from a daemon that is stopped")
	}
	d.signal(t, unix.SIGCONT)
	d.hears(t, "goes on")
	p = d.asked(t)
	if err := p.Take(); err != nil {
		t.Errorf("the next try: %v", err)
	}
	d.hears(t, "handed on")
}

// A new daemon that is told to end while it takes the mount does not lose the answer.
func TestEndsWhileItTakes(t *testing.T) {
	d := startDaemon(t)
	ctx, cancel := context.WithCancel(t.Context())
	p, err := Dial(ctx, d.dir, mountpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, _, err := p.Ask("1", nil); err != nil {
		t.Fatal(err)
	}
	d.stop(t)
	took := make(chan error)
	go func() { took <- p.Take() }()
	eventually(t, "'taken' is not sent", func() bool {
		// What was sent and not read.
		var unread int
		raw, err := p.c.SyscallConn()
		if err == nil {
			_ = raw.Control(func(fd uintptr) { unread, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		}
		return err == nil && unread > 0
	})
	cancel()
	d.signal(t, unix.SIGCONT)
	if err := <-took; err != nil {
		t.Errorf("nobody has the mount: %v", err)
	}
	d.hears(t, "handed on")
}

// A message that cannot be one is not read.
func TestHugeMessage(t *testing.T) {
	m := offer(t, nil)
	p := m.dial(t)
	if _, err := p.c.Write([]byte{0x3f, 0xff, 0xff, 0xff, 'x'}); err != nil {
		t.Fatal(err)
	}
	// The kernel resets a connection that is closed with something unread. One that waits for the rest
	// has read what there is.
	if _, err := p.c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("a hello of a gigabyte is awaited: %v", err)
	}
}

// If the process dies before Leaving, nobody else has its mount. So Leaving comes after the state, and
// before the other process has all that it needs.
func TestLeavingComesLast(t *testing.T) {
	dir, asked, early := t.TempDir(), make(chan struct{}), make(chan bool, 1)
	stop, err := Listen(dir, mountpoint, Offer{
		Settings: func() map[string]string { return nil },
		Pause:    func() ([]byte, []int, error) { return []byte("state"), []int{0, 1, 2}, nil },
		Leaving: func() {
			select {
			case <-asked:
				early <- true
			case <-time.After(100 * time.Millisecond):
				early <- false
			}
		},
		Resume: func() {}, Gone: func() {},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	p, err := Dial(t.Context(), dir, mountpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	_, fds, err := p.Ask("test", nil)
	close(asked)
	if err != nil || len(fds) != 3 {
		t.Fatalf("%v, %v", fds, err)
	}
	CloseAll(fds)
	if <-early {
		t.Error("the mount could be taken before Leaving")
	}
}

// told is a log that tells of each line.
type told chan struct{}

func (c told) Write(line []byte) (int, error) {
	select {
	case c <- struct{}{}:
	default:
	}
	return len(line), nil
}

// A daemon that was out of descriptors when another one came hands its mount on when it has some
// again.
func TestOutOfDescriptors(t *testing.T) {
	dir, warned := t.TempDir(), make(told, 1)
	stop, err := Listen(dir, mountpoint, Offer{
		Settings: func() map[string]string { return nil },
		Pause:    func() ([]byte, []int, error) { return []byte("state"), nil, nil },
		Resume:   func() {},
		Gone:     func() {},
		Logger:   slog.New(slog.NewTextHandler(warned, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	var spare []int
	free := func() {
		for _, fd := range spare {
			_ = unix.Close(fd)
		}
		spare = nil
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &was)
	}
	defer free()
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			break
		}
		spare = append(spare, fd)
	}
	if len(spare) == 0 {
		t.Fatal("64 descriptors are open before the test")
	}
	// One is for the connection, and none for the daemon that is to accept it.
	last := len(spare) - 1
	_ = unix.Close(spare[last])
	spare = spare[:last]
	peer, err := Dial(t.Context(), dir, mountpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	select {
	case <-warned:
	case <-time.After(long):
		t.Fatal("the daemon does not say that it has no descriptor")
	}
	free()
	if _, _, err := peer.Ask("1", nil); err != nil {
		t.Errorf("Ask, after the daemon had descriptors again: %v", err)
	}
}

// A mount with many descriptors has more time.
func TestTimeForDescriptors(t *testing.T) {
	takeTime, descriptorTime = time.Millisecond, long/3
	defer func() { takeTime, descriptorTime = long, DescriptorTime }()
	m := offer(t, nil)
	for range 3 {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		m.fds = append(m.fds, fd)
	}
	p := m.dial(t)
	_, fds, err := p.Ask("1", nil)
	if err != nil || len(fds) != 3 {
		t.Fatalf("Ask: %d descriptors, %v", len(fds), err)
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
	time.Sleep(100 * time.Millisecond) // longer than takeTime
	takeTime = long                    // for the answer
	if err := p.Take(); err != nil {
		t.Errorf("Take: %v", err)
	}
}
