package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Volumes of a test's own making: what lockfs lays its views over is another
// FUSE file system then, of this process, that can be slow or fail. They need
// --embedded, for they count as network volumes.

// below is a node of such a file system, to be embedded by what is wrong with it.
type below struct {
	*gofs.LoopbackNode
	wrap func(below) gofs.InodeEmbedder
}

// WrapChild makes the same of each new node.
func (b below) WrapChild(_ context.Context, ops gofs.InodeEmbedder) gofs.InodeEmbedder {
	return b.wrap(below{ops.(*gofs.LoopbackNode), b.wrap})
}

// under puts a file system below the volume until the test ends.
func (v *volume) under(wrap func(below) gofs.InodeEmbedder) {
	v.t.Helper()
	bare := filepath.Join(v.dir, "bare")
	if err := os.Mkdir(bare, 0o755); err != nil {
		v.t.Fatal(err)
	}
	layOver(v.t, bare, v.source, wrap)
}

// layOver mounts such a file system over bare until the test ends.
func layOver(t *testing.T, bare, mountpoint string, wrap func(below) gofs.InodeEmbedder) {
	t.Helper()
	root := &gofs.LoopbackNode{RootData: &gofs.LoopbackRoot{Path: bare}}
	server, err := gofs.Mount(mountpoint, wrap(below{root, wrap}), &gofs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "below", Name: "test"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Unmount(); err != nil {
			t.Error(err)
			_ = unix.Unmount(mountpoint, unix.MNT_DETACH)
		}
	})
}

// turnstile, while it is shut, holds requests until the test lets them go.
type turnstile struct {
	t    *testing.T
	shut atomic.Bool
	held chan chan struct{}
	done chan struct{}
}

// newTurnstile returns one that is not shut.
func newTurnstile(t *testing.T) *turnstile {
	return &turnstile{t: t, held: make(chan chan struct{}), done: make(chan struct{})}
}

// end lets all requests go, for good: ahead of the end of the volume's mounts.
func (s *turnstile) end() { close(s.done) }

// pass is where a request goes through.
func (s *turnstile) pass() {
	if !s.shut.Load() {
		return
	}
	let := make(chan struct{})
	select {
	case s.held <- let:
	case <-s.done:
		return
	}
	select {
	case <-let:
	case <-s.done:
	}
}

// next returns when a request is held, and how to let it go.
func (s *turnstile) next() (let func()) {
	s.t.Helper()
	select {
	case ch := <-s.held:
		return func() { close(ch) }
	case <-time.After(callTimeout):
		s.t.Fatal("no request reaches the volume")
	}
	return nil
}

func writable(flags uint32) bool { return flags&unix.O_ACCMODE != unix.O_RDONLY }

// staleOpens is a volume whose server has forgotten its files.
type staleOpens struct {
	below
	forgot *atomic.Bool
}

func (n *staleOpens) Open(ctx context.Context, flags uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	if writable(flags) && n.forgot.Load() {
		return nil, 0, unix.ESTALE
	}
	return n.LoopbackNode.Open(ctx, flags)
}

// heldOpens is a volume on which opens for write take their time.
type heldOpens struct {
	below
	at *turnstile
}

func (n *heldOpens) Open(ctx context.Context, flags uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	if writable(flags) {
		n.at.pass()
	}
	return n.LoopbackNode.Open(ctx, flags)
}

// heldStats is a volume on which attributes take their time: they are old when
// they arrive.
type heldStats struct {
	below
	at *turnstile
}

func (n *heldStats) Getattr(ctx context.Context, f gofs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	errno := n.LoopbackNode.Getattr(ctx, nil, out)
	n.at.pass()
	return errno
}

// heldWrites is a volume on which writes take their time.
type heldWrites struct {
	below
	at *turnstile
}

func (n *heldWrites) Open(ctx context.Context, flags uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	f, fl, errno := n.LoopbackNode.Open(ctx, flags)
	if errno == 0 {
		f = &heldFile{f.(*gofs.LoopbackFile), n.at}
	}
	return f, fl, errno
}

type heldFile struct {
	*gofs.LoopbackFile
	at *turnstile
}

// PassthroughFd keeps the kernel from writing by itself.
func (f *heldFile) PassthroughFd() (int, bool) { return 0, false }

func (f *heldFile) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	f.at.pass()
	return f.LoopbackFile.Write(ctx, data, off)
}

// guardedDirs is a volume whose server lets only members of group make
// directories, and goes by all groups of who asks.
type guardedDirs struct {
	below
	group string
}

func (n *guardedDirs) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*gofs.Inode, syscall.Errno) {
	caller, _ := fuse.FromContext(ctx)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", caller.Pid))
	if err != nil {
		return nil, gofs.ToErrno(err)
	}
	_, groups, _ := strings.Cut(string(status), "\nGroups:")
	groups, _, _ = strings.Cut(groups, "\n")
	if caller.Uid != 0 && !slices.Contains(strings.Fields(groups), n.group) {
		return nil, unix.EACCES
	}
	return n.LoopbackNode.Mkdir(ctx, name, mode, out)
}
