package handover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/history"
	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
)

// steady is longer than a worker has to live to be replaced any number of times.
const steady = 2100 * time.Millisecond

// supervised is a mount whose daemon is started again when it dies.
type supervised struct {
	*lab.Mount
	deaths int
	began  time.Time // when the worker had begun for certain
}

func supervise(m *lab.Mount) *supervised { return &supervised{Mount: m, began: time.Now()} }

// worker returns the pid of the process that serves.
func (s *supervised) worker() int {
	s.T.Helper()
	for pid, name := range children(s.T, s.Cmd.Process.Pid) {
		if name != "lockfs-shadow" && name != "lockfs-etcd" {
			return pid
		}
	}
	s.T.Fatalf("%s has no worker:\n%s", s.Name, s.Log)
	return 0
}

// children returns the names of a process's children, except those that have ended.
func children(t *testing.T, pid int) map[int]string {
	t.Helper()
	found := make(map[int]string)
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		list, _ := os.ReadFile(task) // the thread may have ended
		for _, word := range strings.Fields(string(list)) {
			child, _ := strconv.Atoi(word)
			command, _ := os.ReadFile("/proc/" + word + "/cmdline")
			name, err := os.ReadFile("/proc/" + word + "/comm")
			if err != nil || len(command) == 0 {
				continue
			}
			found[child] = strings.TrimSpace(string(name))
			if strings.HasPrefix(string(command), "lockfs-etcd") {
				found[child] = "lockfs-etcd"
			}
		}
	}
	return found
}

// kill kills the worker, which has lived for long enough, and returns when another one serves.
func (s *supervised) kill() {
	s.T.Helper()
	time.Sleep(time.Until(s.began.Add(steady)))
	s.dies(func() {
		if err := unix.Kill(s.worker(), unix.SIGKILL); err != nil {
			s.T.Fatal(err)
		}
	})
}

// dies makes the worker die, and returns when another one serves.
func (s *supervised) dies(by func()) {
	s.T.Helper()
	by()
	s.deaths++
	lab.Eventually(s.T, "another worker serves "+s.Name, func() bool {
		if s.Ended() {
			s.T.Fatalf("%s has ended: %v\n%s", s.Name, s.Err, s.Log)
		}
		return strings.Count(s.Log.String(), `msg="took the mount over`) >= s.deaths
	})
	s.began = time.Now()
}

// Programs that write, wait, try, rotate and hold on two mounts notice no death of a daemon but a
// pause. (docs/SEMANTICS.md, rule 27.)
func TestDeathsUnderLoad(t *testing.T) {
	tr := history.New(t, lab.Local.NewService(t), "--wait", "-1", "--supervise")
	a, b := supervise(tr.Mount("a")), supervise(tr.Mount("b"))
	tr.Load(a.Mount)
	tr.Load(b.Mount)
	tr.WorkAlone(a.Mount, b.Mount)
	tr.WorkBelow(b.Mount, a.Mount)
	tr.GoesOn("before the deaths")
	began := history.Monotonic()
	for i := range longtest.Seeds(t, 4, 60) {
		if i%2 == 0 {
			a.kill()
		} else {
			b.kill()
		}
		tr.GoesOn("after a death")
	}
	tr.Finish()
	tr.Spared()
	for _, w := range tr.Writers {
		for _, o := range w.History() {
			// Opens and renames of names that others use and replace are refused now and then, as ever.
			asEver := o.Kind != history.Wrote && o.Kind != history.Closed && slices.Contains([]syscall.Errno{unix.EAGAIN, unix.EBUSY, unix.ESTALE}, o.Errno)
			if o.Return >= began && o.Errno != 0 && !asEver {
				t.Errorf("%s of %s: %v", o.Kind, o.Hold, o.Errno)
			}
		}
	}
}

// deadly kills who makes a symbolic link of that name.
type deadly struct{ lab.Below }

const deadlyName = "deadly"

func (d deadly) Symlink(ctx context.Context, target, name string, out *fuse.EntryOut) (*gofs.Inode, syscall.Errno) {
	if name != deadlyName {
		return d.LoopbackNode.Symlink(ctx, target, name, out)
	}
	if caller, ok := fuse.FromContext(ctx); ok {
		_ = unix.Kill(int(caller.Pid), unix.SIGKILL)
	}
	return nil, syscall.EINTR
}

// A request that kills each daemon that serves it is refused in time, and spares all others.
func TestDeadlyRequest(t *testing.T) {
	v := lab.NewVolume(t)
	v.Under(func(b lab.Below) gofs.InodeEmbedder { return deadly{b} })
	s := supervise(v.Mount("a", "--supervise", "--embedded"))
	file, err := os.OpenFile(s.Path("f"), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	time.Sleep(time.Until(s.began.Add(steady)))
	if err := os.Symlink("x", s.Path(deadlyName)); !errors.Is(err, unix.EIO) {
		t.Errorf("the deadly call: %v, want EIO", err)
	}
	if n := strings.Count(s.Log.String(), `msg="the worker has died; another one goes on`); n != 2 {
		t.Errorf("%d workers have died, want 2:\n%s", n, s.Log)
	}
	if !s.Said("a request is refused: daemons have died while they served it") {
		t.Errorf("the log does not say why:\n%s", s.Log)
	}
	if _, err := file.WriteString("x"); err != nil {
		t.Errorf("a file that was open: %v", err)
	}
	if err := file.Close(); err != nil || !is(v.Source+"/f", "x") {
		t.Errorf("it is closed (%v), and has lost what was written", err)
	}
}

// A daemon that dies at each start is given up: ENOTCONN, and not a view that hangs.
func TestDiesAtEachStart(t *testing.T) {
	v := lab.NewVolume(t)
	s := supervise(v.Mount("a", "--supervise"))
	file, err := os.OpenFile(s.Path("f"), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	// A daemon under load lives for longer than it should before it dies here.
	lab.Eventually(t, "it is given up", func() bool {
		if !s.Ended() {
			for pid, name := range children(t, s.Cmd.Process.Pid) {
				if name != "lockfs-shadow" && name != "lockfs-etcd" {
					_ = unix.Kill(pid, unix.SIGKILL)
				}
			}
		}
		return s.Ended()
	})
	if _, err := file.WriteString("x"); !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("a file that was open: %v, want ENOTCONN", err)
	}
	if !s.Said("the worker has died too often") && !s.Said("the worker has died, and has left nothing") {
		t.Errorf("the log does not say why:\n%s", s.Log)
	}
}

// The embedded etcd outlives the daemon that has started it, and ends with the last one.
func TestDeathSparesTheEmbeddedEtcd(t *testing.T) {
	v := lab.NewVolume(t)
	s := supervise(v.Mount("a", "--supervise"))
	etcd := func() (pid int) {
		for _, of := range []int{s.Cmd.Process.Pid, s.worker()} {
			for child, name := range children(t, of) {
				if name == "lockfs-etcd" {
					pid = child
				}
			}
		}
		return pid
	}
	was := etcd()
	if was == 0 {
		t.Fatal("there is no etcd")
	}
	for range 2 {
		s.kill()
		if err := os.WriteFile(s.Path("f"), []byte("x"), 0o644); err != nil {
			t.Error(err)
		}
	}
	if now := etcd(); now != was {
		t.Errorf("etcd is process %d, and was %d", now, was)
	}
	if status := s.Stop(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	lab.Eventually(t, "etcd ends", func() bool { return unix.Kill(was, 0) == unix.ESRCH })
}
