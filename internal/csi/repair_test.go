package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/config"
	"github.com/lockfs/lockfs/internal/mounts"
)

// mountView mounts a view of a volume, with a directory sub; one that is mute hangs whoever asks it.
func mountView(t *testing.T, id, dir string, mute bool) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if !mute {
		root := &fs.Inode{}
		opts := fs.Options{
			MountOptions: fuse.MountOptions{Name: "lockfs", FsName: id, DirectMount: true},
			OnAdd: func(ctx context.Context) {
				root.AddChild("sub", root.NewPersistentInode(ctx, &fs.Inode{}, fs.StableAttr{Mode: unix.S_IFDIR}), false)
			},
		}
		if _, err := fs.Mount(dir, root, &opts); err != nil {
			t.Fatal(err)
		}
	} else {
		conn, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() }) // after this, nobody hangs
		if err := unix.Mount(id, dir, "fuse.lockfs", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", conn.Fd())); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for unix.Unmount(dir, unix.MNT_DETACH) == nil { // what has replaced it, too
		}
	})
}

// device returns the device number of what is mounted at a path, without asking it.
func device(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, 0, &st); err != nil {
		t.Fatal(err)
	}
	return unix.Mkdev(st.Dev_major, st.Dev_minor)
}

// A view that hangs while its mounts are repaired keeps no other volume's from being repaired, nor a
// driver from ending that cannot serve any more.
func TestRepairBesideAHungView(t *testing.T) {
	dir := t.TempDir()
	kubelet := filepath.Join(dir, "kubelet")
	var volumes []config.Volume
	for _, name := range []string{"hung", "well"} {
		v := config.Volume{Namespace: "a", Name: name, Mountpoint: filepath.Join(dir, name)}
		mountView(t, v.ID(), filepath.Join(kubelet, name), name == "hung")
		mountView(t, v.ID(), v.Mountpoint, name == "hung")
		volumes = append(volumes, v)
	}
	d := New(Config{KubeletDir: kubelet, Volumes: func() []config.Volume { return volumes }, Logger: slog.New(slog.DiscardHandler)})
	l, err := listen("unix://" + filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- d.serve(t.Context(), l) }()
	for device(t, filepath.Join(kubelet, "well")) != device(t, volumes[1].Mountpoint) {
		if t.Context().Err() != nil {
			t.Fatal("not repaired")
		}
		time.Sleep(time.Millisecond)
	}
	d.mu.Lock()
	problem := d.reported["a/hung"]
	d.mu.Unlock()
	if problem != "" {
		t.Errorf("the other volume was repaired after %q", problem)
	}
	for hangs := false; !hangs; time.Sleep(time.Millisecond) {
		d.mu.Lock()
		hangs = d.busy[repairOf("a/hung")]
		d.mu.Unlock()
	}
	l.Close()
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v, want %v", err, net.ErrClosed)
	}
}

// published is a volume with a view, which is published at target.
type published struct {
	t      *testing.T
	d      *Driver
	v      config.Volume
	target string
}

func publishView(t *testing.T) *published {
	t.Helper()
	dir := t.TempDir()
	p := &published{t: t, v: config.Volume{Namespace: "a", Name: "v", Mountpoint: filepath.Join(dir, "v")}, target: filepath.Join(dir, "kubelet/target")}
	p.d = New(Config{KubeletDir: filepath.Join(dir, "kubelet"), Volumes: func() []config.Volume { return []config.Volume{p.v} }, Logger: slog.New(slog.DiscardHandler)})
	p.d.waitContainer = time.Hour // a machine can be slow
	mountView(t, p.v.ID(), p.v.Mountpoint, false)
	if err := errors.Join(os.MkdirAll(p.target, 0o755), unix.Mount(p.v.Mountpoint, p.target, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for mounts.Detach(p.target) == nil {
			continue
		}
	})
	return p
}

// newView has another view in the place of the present one.
func (p *published) newView() {
	p.t.Helper()
	if err := mounts.Detach(p.v.Mountpoint); err != nil {
		p.t.Fatal(err)
	}
	mountView(p.t, p.v.ID(), p.v.Mountpoint, false)
}

// shows fails the test if a path does not show the present view.
func (p *published) shows(what, path string) {
	p.t.Helper()
	if device(p.t, path) != device(p.t, p.v.Mountpoint) {
		p.t.Errorf("%s does not show the view", what)
	}
}

// await waits until a path shows the present view.
func (p *published) await(path string) {
	p.t.Helper()
	for device(p.t, path) != device(p.t, p.v.Mountpoint) {
		time.Sleep(time.Millisecond)
	}
}

// container is a process with a copy of what is published, at a path of its own.
type container struct {
	pid  int
	at   string       // the copy's path, from here
	next func() error // lets its script go on, to where it reads a line again
}

// container starts one that runs a script with the copy's path as $1.
func (p *published) container(script string) *container {
	p.t.Helper()
	return p.containerAt(p.t.TempDir(), script)
}

func (p *published) containerAt(at, script string) *container {
	p.t.Helper()
	cmd := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-c", `mount --bind "$0" "$1" && `+script, p.target, at)
	in, err := cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	ready := func() error {
		_, err := out.Read(make([]byte, 1))
		return err
	}
	if err := ready(); err != nil {
		p.t.Fatal(err)
	}
	return &container{cmd.Process.Pid, fmt.Sprintf("/proc/%d/root%s", cmd.Process.Pid, at), func() error {
		_, err := in.Write([]byte("\n"))
		return errors.Join(err, ready())
	}}
}

// The view ends again when containers have the new one, and the kubelet's directory does not have it.
func TestRepairAfterAnInterruptedOne(t *testing.T) {
	p := publishView(t)
	c := p.container("echo; read _")
	nested := filepath.Join(p.target, "sub")
	if err := unix.Mount("none", nested, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	p.newView()
	if err := p.d.repairVolume(p.v); err == nil {
		t.Error("the kubelet's mount was replaced, though another is in it")
	}
	p.shows("the container", c.at)
	if err := mounts.Detach(nested); err != nil {
		t.Fatal(err)
	}
	p.newView()
	if err := p.d.repairVolume(p.v); err != nil {
		t.Error(err)
	}
	p.shows("the container", c.at)
	p.shows("the kubelet's directory", p.target)
	if left, _ := p.d.unrepaired(p.v); left {
		t.Error("the former views are remembered for ever")
	}
}

// A container that cannot be repaired keeps no other from starting with the new view. It is tried again.
func TestRepairOfAContainerIsTriedAgain(t *testing.T) {
	p := publishView(t)
	c := p.container(`mount -t tmpfs none "$1/sub" && echo && read _ && umount "$1/sub" && echo && read _`)
	p.newView()
	before := time.Now()
	if err := p.d.repairVolume(p.v); err == nil {
		t.Error("the container's mount was replaced, though another is in it")
	}
	p.shows("another container", p.container("echo; read _").at)
	if err := c.next(); err != nil {
		t.Fatal(err)
	}
	given := p.d.given[p.v.ID()]
	if given == nil {
		t.Fatal("no container is left")
	}
	if given.again.Before(before.Add(repairAgain)) {
		t.Error("it is tried again at once")
	}
	given.again = time.Time{} // it is time
	go p.d.keepRepairing(t.Context())
	p.await(c.at)
}

// A program of a container has covered the way to its copy. Nobody reaches the copy by its path, so
// nothing is left to repair.
func TestRepairOfACoveredMount(t *testing.T) {
	for name, cover := range map[string]string{
		"a directory above":       `mount -t tmpfs none "${1%/*}"`,
		"the mount that it is on": `mount -t tmpfs none "$2"`,
		"farther above":           `mount -t tmpfs none "${2%/*}"`,
		"itself":                  `mount -t tmpfs none "$1"`,
	} {
		t.Run(name, func(t *testing.T) {
			p := publishView(t)
			at := filepath.Join(p.t.TempDir(), "a/b/c/d")
			if err := os.MkdirAll(at, 0o755); err != nil {
				t.Fatal(err)
			}
			on := filepath.Dir(filepath.Dir(at))
			p.containerAt(at, fmt.Sprintf(`umount "$1" && mount -t tmpfs none %[1]q && mkdir -p "$1" && mount --bind "$0" "$1" && set -- "$1" %[1]q && `, on)+cover+` && echo && read _`)
			p.newView()
			if err := p.d.repairVolume(p.v); err != nil {
				t.Error(err)
			}
			p.shows("the kubelet's directory", p.target)
		})
	}
}

// What is remembered of a volume that left the configuration is forgotten, but not under a repair.
func TestRepairOfAVolumeThatIsGone(t *testing.T) {
	p := publishView(t)
	p.container(`mount -t tmpfs none "$1/sub" && echo && read _`)
	p.newView()
	p.d.report(p.v, p.d.repairVolume(p.v))
	if left, _ := p.d.unrepaired(p.v); !left {
		t.Fatal("the container was repaired")
	}
	known := func() (n int) {
		p.d.mu.Lock()
		defer p.d.mu.Unlock()
		return len(p.d.given) + len(p.d.reported)
	}
	p.d.forgetOthers([]config.Volume{p.v})
	if n := known(); n != 2 {
		t.Errorf("%d are left of a volume that is there", n)
	}
	if err := p.d.begin(t.Context(), repairOf(p.v.ID()), ""); err != nil {
		t.Fatal(err)
	}
	p.d.forgetOthers(nil)
	if left, _ := p.d.unrepaired(p.v); !left {
		t.Error("the views were forgotten under a repair")
	}
	p.d.end(repairOf(p.v.ID()), "")
	var root *os.File
	for _, root = range p.d.given[p.v.ID()].roots {
		break
	}
	p.d.cfg.Volumes = func() []config.Volume { return nil }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.d.keepRepairing(ctx) // looks once
	if n := known(); n != 0 {
		t.Errorf("%d are left of a volume that is gone", n)
	}
	if err := root.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a descriptor of its view is open: %v", err)
	}
}

// slow is a file system with two directories, which can be slow to answer.
type slow struct {
	fs.Inode
	dir     string
	hangs   atomic.Pointer[chan struct{}] // closed when it hangs no more; nil: it does not
	waiting atomic.Int32
}

// await waits until that many requests hang.
func (s *slow) await(n int32) {
	for s.waiting.Load() < n {
		time.Sleep(time.Millisecond)
	}
}

func mountSlow(t *testing.T, name, source string) *slow {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount")
	}
	s := &slow{dir: t.TempDir()}
	if _, err := fs.Mount(s.dir, s, &fs.Options{MountOptions: fuse.MountOptions{Name: name, FsName: source, DirectMount: true}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mounts.Detach(s.dir) })
	return s
}

func (s *slow) OnAdd(ctx context.Context) {
	for _, name := range []string{"dir", "sub"} {
		s.AddChild(name, s.NewPersistentInode(ctx, &fs.Inode{}, fs.StableAttr{Mode: unix.S_IFDIR}), false)
	}
}

// hang has it hang until the function that it returns is called.
func (s *slow) hang(t *testing.T) (goOn func()) {
	hangs := make(chan struct{})
	s.hangs.Store(&hangs)
	goOn = sync.OnceFunc(func() {
		s.hangs.Store(nil)
		close(hangs)
	})
	t.Cleanup(goOn)
	return goOn
}

func (s *slow) wait() {
	if hangs := s.hangs.Load(); hangs != nil {
		s.waiting.Add(1)
		<-*hangs
	}
}

func (s *slow) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	s.wait()
	out.Mode = unix.S_IFDIR | 0o755
	return 0
}

func (s *slow) Lookup(_ context.Context, name string, _ *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	s.wait()
	if dir := s.GetChild(name); dir != nil {
		return dir, 0
	}
	return nil, syscall.ENOENT
}

// A container whose path hangs keeps no other from being repaired, and has one thread hang.
func TestRepairBesideAHungContainer(t *testing.T) {
	p := publishView(t)
	p.d.waitContainer = time.Second
	s := mountSlow(t, "slow", "slow")
	hung := p.containerAt(filepath.Join(s.dir, "dir"), "echo; read _")
	well := p.container("echo; read _")
	p.newView()
	goOn := s.hang(t)
	for range 2 {
		if err := p.d.repairVolume(p.v); err == nil {
			t.Error("no error tells of the container that hangs")
		} else {
			t.Log(err)
		}
		p.shows("the kubelet's directory", p.target)
		p.await(well.at) // it may have taken longer than that second
		s.await(1)
		if n := s.waiting.Load(); n != 1 {
			t.Errorf("%d threads hang", n)
		}
	}
	goOn()
	for p.d.repairVolume(p.v) != nil {
		time.Sleep(time.Millisecond)
	}
	p.shows("the container that hung", hung.at)
}

// Containers are waited for side by side.
func TestRepairWithManyHungContainers(t *testing.T) {
	p := publishView(t)
	s := mountSlow(t, "slow", "slow")
	var hung []*container
	for _, dir := range []string{"dir", "sub"} {
		hung = append(hung, p.containerAt(filepath.Join(s.dir, dir), "echo; read _"))
	}
	p.newView()
	goOn := s.hang(t)
	repaired := make(chan error)
	go func() { repaired <- p.d.repairVolume(p.v) }()
	s.await(2)
	goOn()
	if err := <-repaired; err != nil {
		t.Error(err)
	}
	for _, c := range hung {
		p.shows("a container that hung", c.at)
	}
}

// The kubelet's directories wait no longer if more containers hang than are waited for at once.
func TestRepairWithTooManyHungContainers(t *testing.T) {
	p := publishView(t)
	p.d.atOnce = 1
	p.d.waitContainer = time.Second
	s := mountSlow(t, "slow", "slow")
	for _, dir := range []string{"dir", "sub"} {
		p.containerAt(filepath.Join(s.dir, dir), "echo; read _")
	}
	p.newView()
	goOn := s.hang(t)
	repaired := make(chan error)
	go func() { repaired <- p.d.repairVolume(p.v) }()
	s.await(2) // one is left for later
	p.shows("the kubelet's directory", p.target)
	if err := <-repaired; err == nil {
		t.Error("no error tells of the containers that hang")
	}
	goOn()
}

// While the view hangs, the process by which a namespace was found goes into another, as one does that
// ends and whose id is used again. What is repaired is the namespace that was looked at.
func TestRepairOfANamespaceWithoutItsProcess(t *testing.T) {
	s := mountSlow(t, "lockfs", "a/v")
	dir := t.TempDir()
	p := &published{t: t, v: config.Volume{Namespace: "a", Name: "v", Mountpoint: s.dir}, target: filepath.Join(dir, "target")}
	p.d = New(Config{KubeletDir: filepath.Join(dir, "kubelet"), Logger: slog.New(slog.DiscardHandler)})
	mountView(t, p.v.ID(), p.target, false)
	former := device(t, p.target)
	c := p.container(`umount "$1" && mount --bind "$0/sub" "$1" && echo && read _ && exec unshare -m --propagation private sh -c 'echo; read _'`)
	there, err := os.Open(filepath.Dir(c.at))
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	ns, err := openNamespace(c.pid) // it stays when nobody is in it
	if err != nil {
		t.Fatal(err)
	}
	defer ns.close()
	view, err := openView(p.v)
	if err != nil {
		t.Fatal(err)
	}
	defer view.close()

	goOn := s.hang(t)
	var seen string
	repaired := make(chan error)
	go func() {
		devices := map[string]bool{fmt.Sprintf("%d:%d", unix.Major(former), unix.Minor(former)): true}
		name, put, err := p.d.prepareContainer(t.Context(), view, devices, c.pid, ns.name)
		seen = name
		repaired <- errors.Join(err, put())
	}()
	s.await(1)
	if err := c.next(); err != nil {
		t.Fatal(err)
	}
	goOn()
	if err := <-repaired; err != nil || seen != ns.name {
		t.Errorf("seen: %q, %v, want %s", seen, err, ns.name)
	}
	p.shows("the former namespace", fmt.Sprintf("/proc/self/fd/%d/%s", there.Fd(), filepath.Base(c.at)))
	if device(t, c.at) != former {
		t.Error("a mount of another namespace was replaced")
	}
}

// A process whose mounts cannot be read has not ended.
func TestRepairWithoutDescriptors(t *testing.T) {
	p := publishView(t)
	view, err := openView(p.v)
	if err != nil {
		t.Fatal(err)
	}
	defer view.close()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	seen, _, err := p.d.prepareContainer(t.Context(), view, nil, os.Getpid(), "ours")
	if again := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); again != nil {
		t.Fatal(again)
	}
	if seen != "" || !errors.Is(err, unix.EMFILE) {
		t.Errorf("seen: %q, %v, want EMFILE", seen, err)
	}
}

// Each change of the mount table is seen.
func TestEachChangeIsSeen(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount")
	}
	d := New(Config{Logger: slog.New(slog.DiscardHandler)})
	go d.watchMounts(t.Context())
	change := func() {
		t.Helper()
		dir := t.TempDir()
		if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	}
	for watches := false; !watches; {
		change()
		select {
		case <-d.look:
			watches = true
		case <-time.After(10 * time.Millisecond): // it has not begun yet
		}
	}
	for i := range 50 {
		change()
		select {
		case <-d.look:
		case <-time.After(time.Minute):
			t.Fatalf("change %d is not seen", i)
		}
	}
}
