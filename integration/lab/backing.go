package lab

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Views here lie over another FUSE file system, of this process, that can be slow or fail. It
// counts as a network volume, so it needs --embedded.

// Below is a node of such a file system, to be embedded by what is wrong with it.
type Below struct {
	*gofs.LoopbackNode
	wrap func(Below) gofs.InodeEmbedder
}

// WrapChild makes the same of each new node.
func (b Below) WrapChild(_ context.Context, ops gofs.InodeEmbedder) gofs.InodeEmbedder {
	return b.wrap(Below{ops.(*gofs.LoopbackNode), b.wrap})
}

// Under puts a file system below the volume until the test ends.
func (v *Volume) Under(wrap func(Below) gofs.InodeEmbedder) {
	v.T.Helper()
	bare := filepath.Join(v.Dir, "bare")
	if err := os.Mkdir(bare, 0o755); err != nil {
		v.T.Fatal(err)
	}
	LayOver(v.T, bare, v.Source, wrap)
}

// LayOver mounts such a file system over bare until the test ends.
func LayOver(t *testing.T, bare, mountpoint string, wrap func(Below) gofs.InodeEmbedder) {
	t.Helper()
	root := &gofs.LoopbackNode{RootData: &gofs.LoopbackRoot{Path: bare}}
	server, err := gofs.Mount(mountpoint, wrap(Below{root, wrap}), &gofs.Options{
		MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "below", Name: "test"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { endServer(t, server, mountpoint) })
}

// endServer unmounts a file system of this process, whoever has it open, and ends its connection: another
// process may have a mount namespace with a copy of the mount, which would go on.
func endServer(t *testing.T, server *fuse.Server, mountpoint string) {
	if err := unix.Unmount(mountpoint, unix.MNT_FORCE|unix.MNT_DETACH); err != nil {
		t.Error(err)
		return
	}
	server.Wait()
}

// Turnstile, while it is shut, holds requests until the test lets them go.
type Turnstile struct {
	t    *testing.T
	Shut atomic.Bool
	held chan chan struct{}
	done chan struct{}
}

// NewTurnstile returns one that is not shut.
func NewTurnstile(t *testing.T) *Turnstile {
	return &Turnstile{t: t, held: make(chan chan struct{}), done: make(chan struct{})}
}

// End lets all requests go, for good: ahead of the end of the volume's mounts.
func (s *Turnstile) End() { close(s.done) }

// Pass is where a request goes through.
func (s *Turnstile) Pass() {
	if !s.Shut.Load() {
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

// Next returns when a request is held, and how to let it go.
func (s *Turnstile) Next() (let func()) {
	s.t.Helper()
	select {
	case ch := <-s.held:
		return func() { close(ch) }
	case <-time.After(CallTimeout):
		s.t.Fatal("no request reaches the volume")
	}
	return nil
}

// Hold begins a call that takes a lock. It returns when the request is held, and how to let it go.
func (s *Turnstile) Hold(p *Agent, c Call) (pending <-chan Result, let func()) {
	s.t.Helper()
	pending = p.StartUntil(c, "a request reaches the volume", func() bool {
		select {
		case ch := <-s.held:
			let = func() { close(ch) }
			return true
		default:
			return false
		}
	})
	return pending, let
}

func Writable(flags uint32) bool { return flags&unix.O_ACCMODE != unix.O_RDONLY }

// HeldReads is a volume on which "slow" is not opened for read while the turnstile is shut.
type HeldReads struct {
	Below
	At *Turnstile
}

func (n *HeldReads) Open(ctx context.Context, flags uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	if !Writable(flags) && n.Path(nil) == "slow" {
		n.At.Pass()
	}
	return n.LoopbackNode.Open(ctx, flags)
}
