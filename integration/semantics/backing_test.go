package semantics

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// staleOpens is a volume whose server has forgotten its files.
type staleOpens struct {
	lab.Below
	forgot *atomic.Bool
}

func (n *staleOpens) Open(ctx context.Context, flags uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	if lab.Writable(flags) && n.forgot.Load() {
		return nil, 0, unix.ESTALE
	}
	return n.LoopbackNode.Open(ctx, flags)
}

// heldOpens is a volume on which opens for write take their time.
type heldOpens struct {
	lab.Below
	at *lab.Turnstile
}

func (n *heldOpens) Open(ctx context.Context, flags uint32) (gofs.FileHandle, uint32, syscall.Errno) {
	if lab.Writable(flags) {
		n.at.Pass()
	}
	return n.LoopbackNode.Open(ctx, flags)
}

// heldStats is a volume on which the attributes of "f" take their time: they are old when they arrive.
// Each view asks for the root's by itself.
type heldStats struct {
	lab.Below
	at *lab.Turnstile
}

func (n *heldStats) Getattr(ctx context.Context, f gofs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	errno := n.LoopbackNode.Getattr(ctx, nil, out)
	if n.Path(nil) == "f" {
		n.at.Pass()
	}
	return errno
}

// heldWrites is a volume on which writes take their time.
type heldWrites struct {
	lab.Below
	at *lab.Turnstile
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
	at *lab.Turnstile
}

// PassthroughFd keeps the kernel from writing by itself.
func (f *heldFile) PassthroughFd() (int, bool) { return 0, false }

func (f *heldFile) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	f.at.Pass()
	return f.LoopbackFile.Write(ctx, data, off)
}

// guardedDirs is a volume whose server lets only members of group make
// directories, and goes by all groups of the caller.
type guardedDirs struct {
	lab.Below
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
