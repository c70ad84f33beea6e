package integration

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
)

// heldReads is a volume on which the file "slow" is not opened for read while the
// turnstile is shut.
type heldReads struct {
	below
	at *turnstile
}

func (n *heldReads) Open(ctx context.Context, flags uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	if !writable(flags) && n.Path(nil) == "slow" {
		n.at.pass()
	}
	return n.LoopbackNode.Open(ctx, flags)
}

// A volume hangs under a thousand requests of one user. The daemon has threads for
// some of them, and the others wait; another user works on in that volume, and all
// on others. Who waits can be killed; when the volume answers again, everything
// goes on. (docs/SEMANTICS.md, rule 28.)
func TestHungVolume(t *testing.T) {
	const requests = 1000
	n := newNode(t)
	n.makeSources("good", "hung")
	bare := filepath.Join(n.vol.dir, "bare")
	if err := errors.Join(os.Mkdir(bare, 0o755), os.Chmod(n.vol.dir, 0o755)); err != nil { // for other users
		t.Fatal(err)
	}
	at := newTurnstile(t)
	layOver(t, bare, n.source("hung"), func(b below) gofs.InodeEmbedder { return &heldReads{b, at} })
	for _, name := range []string{"slow", "quick"} {
		if err := errors.Join(os.WriteFile(filepath.Join(bare, name), []byte("text"), 0o666), os.Chmod(filepath.Join(bare, name), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	n.list("good", "hung")
	n.start()
	n.ready(200)

	users := []*agent{newAgent(t), newAgent(t)}
	other := newAgent(t)
	answer := sync.OnceFunc(at.end)
	t.Cleanup(answer) // ahead of the end of its users
	other.must(call{Op: "become", N: 1000})
	work := func(volume, name string) {
		t.Helper()
		fd := other.open(filepath.Join(n.view(volume), name), rdwr)
		other.must(call{Op: "pwrite", FD: fd, Data: "next"})
		other.must(call{Op: "close", FD: fd})
	}
	if err := errors.Join(os.WriteFile(filepath.Join(n.source("good"), "f"), nil, 0o666), os.Chmod(filepath.Join(n.source("good"), "f"), 0o666)); err != nil {
		t.Fatal(err)
	}
	work("hung", "quick")
	work("good", "f")

	at.shut.Store(true)
	for _, u := range users {
		u.must(call{Op: "flood", N: requests / 2, Calls: []call{{Op: "open", Path: filepath.Join(n.view("hung"), "slow")}}})
		eventually(t, "its requests are on their way", func() bool { return u.threadsWithin(unix.SYS_OPENAT) == requests/2 })
	}
	if threads := n.threads(); threads > 400 {
		t.Fatalf("%d requests to a volume that hangs take %d threads of the daemon's", requests, threads)
	}
	work("hung", "quick")
	work("good", "f")
	eventually(t, "/metrics tells of those that wait", func() bool {
		_, body := n.get("/metrics")
		return strings.Contains(body, `lockfs_fs_requests_waiting{name="hung",namespace="default"} 8`)
	})
	eventually(t, "the log says so", func() bool { return strings.Contains(n.log.String(), "requests wait for others") })

	// All of the second user's wait.
	users[1].kill()
	answer()
	if r := users[0].do(call{Op: "flooded"}); len(r.Failed) > 0 || r.N != requests/2 {
		t.Errorf("of %d requests %d have ended, and failed %v", requests/2, r.N, r.Failed)
	}
	eventually(t, "none waits any more", func() bool {
		_, body := n.get("/metrics")
		return strings.Contains(body, `lockfs_fs_requests_waiting{name="hung",namespace="default"} 0`)
	})
	work("hung", "quick")
}

// heldBytes is a volume on which the file "slow" cannot be read while the turnstile
// is shut.
type heldBytes struct {
	below
	at *turnstile
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
	at *turnstile
}

// PassthroughFd keeps the kernel from reading by itself.
func (h *slowFile) PassthroughFd() (int, bool) { return 0, false }

func (h *slowFile) Read(ctx context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	h.at.pass()
	return h.LoopbackFile.Read(ctx, dest, off)
}

// A closed file's lock goes to the next writer, however many programs read what
// does not come. The kernel says that a file is closed behind what it reads ahead,
// and once sent no more than 64 of these requests at a time.
func TestCloseBesideReadsThatHang(t *testing.T) {
	const reads = 100
	v := newVolume(t, "--embedded")
	at := newTurnstile(t)
	v.under(func(b below) gofs.InodeEmbedder { return &heldBytes{b, at} })
	a, b := v.mount("a"), v.mount("b")
	v.write("f", "")
	v.write("slow", "")
	if err := os.Truncate(v.inSource("slow"), reads<<20); err != nil {
		t.Fatal(err)
	}
	reader, writer, next := newAgent(t), newAgent(t), newAgent(t)
	answer := sync.OnceFunc(at.end)
	t.Cleanup(answer) // ahead of the end of the reader
	fd := reader.open(a.path("slow"), rdonly)
	at.shut.Store(true)
	for i := range reads { // not from the file's begin on, or some of them would not be reads ahead
		reader.must(call{Op: "flood", N: 1, Calls: []call{{Op: "pread", FD: fd, N: 1, Off: int64(i+1)<<20 - 1}}})
	}
	eventually(t, "all reads are under way", func() bool { return reader.threadsWithin(unix.SYS_PREAD64) == reads })
	writer.must(call{Op: "close", FD: writer.open(a.path("f"), wronly)})
	eventually(t, "another mount has the lock", func() bool {
		r := next.do(call{Op: "open", Path: b.path("f"), Flags: wronly | nonblock})
		return r.Errno == 0
	})
	answer()
	if r := reader.do(call{Op: "flooded"}); len(r.Failed) > 0 || r.N != reads {
		t.Errorf("of %d reads %d have ended, and failed %v", reads, r.N, r.Failed)
	}
}

// threads counts the daemon's.
func (n *node) threads() int {
	n.t.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", n.cmd.Process.Pid))
	if err != nil {
		n.t.Fatal(err)
	}
	return len(tasks)
}

// threadsWithin counts the agent's threads that are in a system call.
func (a *agent) threadsWithin(number int) (count int) {
	a.t.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", a.pid()))
	if err != nil {
		a.t.Fatal(err)
	}
	for _, task := range tasks {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/syscall", a.pid(), task.Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			a.t.Fatal(err)
		}
		if strings.HasPrefix(string(b), fmt.Sprint(number, " ")) {
			count++
		}
	}
	return count
}
