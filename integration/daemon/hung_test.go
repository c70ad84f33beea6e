package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/lifeline"
)

// A volume hangs under a thousand requests of one user. The daemon has threads for
// some of them, and the others wait; another user works on in that volume, and all
// on others. What waits can be killed. When the volume answers again, everything
// goes on. (docs/SEMANTICS.md, rule 28.)
func TestHungVolume(t *testing.T) {
	t.Parallel()
	const requests = 1000
	n := newNode(t)
	n.makeSources("good", "hung")
	bare := filepath.Join(n.Vol.Dir, "bare")
	if err := errors.Join(os.Mkdir(bare, 0o755), os.Chmod(n.Vol.Dir, 0o755)); err != nil { // for other users
		t.Fatal(err)
	}
	at := lab.NewTurnstile(t)
	lab.LayOver(t, bare, n.source("hung"), func(b lab.Below) gofs.InodeEmbedder { return &lab.HeldReads{Below: b, At: at} })
	for _, name := range []string{"slow", "quick"} {
		if err := errors.Join(os.WriteFile(filepath.Join(bare, name), []byte("text"), 0o666), os.Chmod(filepath.Join(bare, name), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	n.list("good", "hung")
	n.start()
	n.ready(200)

	users := []*lab.Agent{lab.NewAgent(t), lab.NewAgent(t)}
	other := lab.NewAgent(t)
	answer := sync.OnceFunc(at.End)
	t.Cleanup(answer) // ahead of the end of its users
	other.Must(lab.Call{Op: "become", N: 1000})
	work := func(volume, name string) {
		t.Helper()
		fd := other.Open(filepath.Join(n.view(volume), name), unix.O_RDWR)
		other.Must(lab.Call{Op: "pwrite", FD: fd, Data: "next"})
		other.Must(lab.Call{Op: "close", FD: fd})
	}
	if err := errors.Join(os.WriteFile(filepath.Join(n.source("good"), "f"), nil, 0o666), os.Chmod(filepath.Join(n.source("good"), "f"), 0o666)); err != nil {
		t.Fatal(err)
	}
	work("hung", "quick")
	work("good", "f")

	const places = 192 // that one user has in a volume
	waiting := func() (count int) {
		_, body := n.get("/metrics")
		_, value, _ := strings.Cut(body, `lockfs_fs_requests_waiting{name="hung",namespace="default"} `)
		if _, err := fmt.Sscan(value, &count); err != nil {
			return -1
		}
		return count
	}
	at.Shut.Store(true)
	for i, u := range users {
		u.Must(lab.Call{Op: "flood", N: requests / 2, Calls: []lab.Call{{Op: "open", Path: filepath.Join(n.view("hung"), "slow")}}})
		lab.Eventually(t, "its requests are on their way", func() bool { return threadsWithin(u, unix.SYS_OPENAT) == requests/2 })
		// All of the second user's come after those of the first that wait.
		lab.Eventually(t, "/metrics tells of those that wait", func() bool { return waiting() >= (i+1)*requests/2-places })
	}
	if threads := n.threads(); threads > 400 {
		t.Fatalf("%d requests to a volume that hangs take %d threads of the daemon's", requests, threads)
	}
	work("hung", "quick")
	work("good", "f")
	lab.Eventually(t, "the log says so", func() bool { return strings.Contains(n.Log.String(), "requests wait for others") })

	// All of the second user's wait.
	users[1].Kill()
	answer()
	if r := users[0].Do(lab.Call{Op: "flooded"}); len(r.Failed) > 0 || r.N != requests/2 {
		t.Errorf("of %d requests %d have ended, and failed %v", requests/2, r.N, r.Failed)
	}
	lab.Eventually(t, "none waits any more", func() bool { return waiting() == 0 })
	work("hung", "quick")
}

// heldBytes is a volume on which the file "slow" cannot be read or written while the
// turnstile is shut.
type heldBytes struct {
	lab.Below
	at *lab.Turnstile
}

func (n *heldBytes) Open(ctx context.Context, flags uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	h, fuseFlags, errno := n.LoopbackNode.Open(ctx, flags)
	if errno == 0 && n.Path(nil) == "slow" {
		return &slowFile{h.(*gofs.LoopbackFile), n.at}, fuse.FOPEN_DIRECT_IO, 0
	}
	return h, fuseFlags, errno
}

type slowFile struct {
	*gofs.LoopbackFile
	at *lab.Turnstile
}

// PassthroughFd keeps the kernel from reading by itself.
func (h *slowFile) PassthroughFd() (int, bool) { return 0, false }

func (h *slowFile) Read(ctx context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	h.at.Pass()
	return h.LoopbackFile.Read(ctx, dest, off)
}

func (h *slowFile) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	h.at.Pass()
	return h.LoopbackFile.Write(ctx, data, off)
}

// A mount that ends while a write of it hangs does not count as dead before the write has ended: until
// then it may still reach the volume.
func TestMountIsAliveWhileItsWriteHangs(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--embedded", "--ttl", "15s")
	at := lab.NewTurnstile(t)
	v.Under(func(b lab.Below) gofs.InodeEmbedder { return &heldBytes{b, at} })
	m := v.Mount("a")
	v.Write("slow", "")
	p := lab.NewAgent(t)
	answer := sync.OnceFunc(at.End)
	t.Cleanup(answer) // ahead of the end of the mount
	fd := p.Open(m.Path("slow"), unix.O_WRONLY)
	at.Shut.Store(true)
	write := p.Start(lab.Call{Op: "write", FD: fd, Data: "late"})
	lab.Eventually(t, "the daemon writes", func() bool { return lab.IsWithin(t, m.Cmd.Process.Pid, unix.SYS_PWRITE64) })
	if err := m.Cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the daemon ends without the write", func() bool { return strings.Contains(m.Log.String(), "writes are still under way after") })
	lines, err := filepath.Glob(filepath.Join(v.State, "alive", "*", "*"))
	if err != nil || len(lines) != 1 {
		t.Fatalf("lifelines: %v, %v", lines, err)
	}
	claim := func() error {
		l, err := lifeline.Claim(filepath.Dir(lines[0]), filepath.Base(lines[0]))
		if err == nil {
			l.Leave()
		}
		return err
	}
	if err := claim(); !errors.Is(err, lifeline.ErrAlive) {
		t.Errorf("the mount counts as dead: %v", err)
	}
	answer()
	_ = lab.Await(t, "the write", write)
	lab.Eventually(t, "the mount is dead", func() bool { return claim() == nil })
}

// A closed file's lock goes to the next writer, however many programs read what
// does not come. The kernel says that a file is closed behind what it reads ahead,
// and once sent no more than 64 of these requests at a time.
func TestCloseBesideReadsThatHang(t *testing.T) {
	t.Parallel()
	const reads = 100
	v := lab.NewVolume(t, "--embedded")
	at := lab.NewTurnstile(t)
	v.Under(func(b lab.Below) gofs.InodeEmbedder { return &heldBytes{b, at} })
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", "")
	v.Write("slow", "")
	if err := os.Truncate(v.InSource("slow"), reads<<20); err != nil {
		t.Fatal(err)
	}
	reader, writer, next := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	answer := sync.OnceFunc(at.End)
	t.Cleanup(answer) // ahead of the end of the reader
	fd := reader.Open(a.Path("slow"), unix.O_RDONLY)
	at.Shut.Store(true)
	for i := range reads { // not from the file's begin on, or some of them would not be reads ahead
		reader.Must(lab.Call{Op: "flood", N: 1, Calls: []lab.Call{{Op: "pread", FD: fd, N: 1, Off: int64(i+1)<<20 - 1}}})
	}
	lab.Eventually(t, "all reads are under way", func() bool { return threadsWithin(reader, unix.SYS_PREAD64) == reads })
	writer.Must(lab.Call{Op: "close", FD: writer.Open(a.Path("f"), unix.O_WRONLY)})
	lab.Eventually(t, "another mount has the lock", func() bool {
		r := next.Do(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY | unix.O_NONBLOCK})
		return r.Errno == 0
	})
	answer()
	if r := reader.Do(lab.Call{Op: "flooded"}); len(r.Failed) > 0 || r.N != reads {
		t.Errorf("of %d reads %d have ended, and failed %v", reads, r.N, r.Failed)
	}
}

// threads counts the daemon's.
func (n *node) threads() int {
	n.T.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", n.Cmd.Process.Pid))
	if err != nil {
		n.T.Fatal(err)
	}
	return len(tasks)
}

// threadsWithin counts the agent's threads that are in a system call.
func threadsWithin(a *lab.Agent, number int) (count int) {
	a.T.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", a.PID()))
	if err != nil {
		a.T.Fatal(err)
	}
	for _, task := range tasks {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/syscall", a.PID(), task.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			a.T.Fatal(err)
		}
		if strings.HasPrefix(string(b), fmt.Sprint(number, " ")) {
			count++
		}
	}
	return count
}
