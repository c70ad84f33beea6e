package fs

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
	"github.com/lockfs/lockfs/renew"
)

// An open that arrives behind a rename may mean the name of before: the kernel
// learns of a rename with the answer, and looks names up until then. The caller
// is sent to look, once, and does not get what was put away for what has the name.
func TestOpenBehindRename(t *testing.T) {
	source := t.TempDir()
	if err := os.WriteFile(filepath.Join(source, "f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	locks, err := lockmgr.New(t.Context(), lockmgr.Config{Backend: lockmgrtest.NewMemory(), Renew: renew.Config{TTL: 15 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Close(t.Context())
	b, err := openBacking(source)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(b.root)
	f := &FS{
		RawFileSystem: fuse.NewDefaultRawFileSystem(), locks: locks, scope: ScopeHandle,
		log: slog.New(slog.DiscardHandler), backing: b, nodes: newNodes(b.root, b.inode, NewPool()),
	}
	in := fuse.InHeader{NodeId: rootID, Caller: fuse.Caller{Pid: uint32(os.Getpid())}}
	var found fuse.EntryOut
	if s := f.Lookup(nil, &in, "f", &found); !s.Ok() {
		t.Fatal(s)
	}
	if s := f.Rename(nil, &fuse.RenameIn{InHeader: in, Newdir: rootID}, "f", "old"); !s.Ok() {
		t.Fatal(s)
	}
	open := fuse.OpenIn{InHeader: in, Flags: unix.O_WRONLY}
	open.NodeId = found.NodeId
	var out fuse.OpenOut
	if s := f.Open(nil, &open, &out); s != stale {
		t.Fatalf("an open right behind the rename got %v", s)
	}
	if s := f.Lookup(nil, &in, "old", &found); !s.Ok() {
		t.Fatal(s)
	}
	if s := f.Open(nil, &open, &out); !s.Ok() {
		t.Fatalf("an open by the new name got %v", s)
	}
	f.Release(nil, &fuse.ReleaseIn{InHeader: open.InHeader, Fh: out.Fh})
}
