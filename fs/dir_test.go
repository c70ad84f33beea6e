package fs

import (
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// An error of the volume's does not take back the entries that were added to the
// reply before: the kernel would never forget what it was not told of.
func TestReadDirFailsHalfway(t *testing.T) {
	path := t.TempDir()
	if err := os.WriteFile(filepath.Join(path, "f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	broken, err := unix.Open(filepath.Join(path, "f"), unix.O_RDONLY|unix.O_CLOEXEC, 0) // no directory
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(broken)
	f := &FS{locker: locker{files: files{backing: backing{device: new(atomic.Uint64)}, nodes: newNodes(-1, inode{}, NewPool())}}}
	d := &dirHandle{fd: fd, node: &node{}, buf: new([dirBuffer]byte)}
	in := &fuse.ReadIn{}
	in.Fh, _ = f.dirs.add(d)
	added := 0
	add := func(*node, *dirEntry) bool {
		added++
		d.fd = broken
		return true
	}
	if s := f.readDir(in, add); !s.Ok() || added == 0 {
		t.Errorf("%d entries were added to a reply of %v", added, s)
	}
	in.Offset = d.next
	if s := f.readDir(in, add); s != fuse.ENOTDIR {
		t.Errorf("then: %v, want ENOTDIR", s)
	}
}

// A directory with a file is not empty, whatever signals the thread gets meanwhile: getdents returns
// fewer entries then.
func TestHasEntriesUnderSignals(t *testing.T) {
	path := t.TempDir()
	if err := os.MkdirAll(filepath.Join(path, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "d", "f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	asks, over := unix.Gettid(), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
				_ = unix.Tgkill(unix.Getpid(), asks, unix.SIGURG) // as the runtime does to preempt
			}
		}
	})
	for n := range 50_000 {
		if !hasEntries(&node{fd: fd}, "d") {
			t.Errorf("it was empty at look %d", n)
			break
		}
	}
	close(over)
	wg.Wait()
}
