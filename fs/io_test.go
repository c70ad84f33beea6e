package fs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// A signal interrupts a write, and the lock is lost: the second try writes nothing.
func TestInterruptedWriteIsCheckedAgain(t *testing.T) {
	var lost error
	calls := 0
	n, err := eachChecked(func() error { return lost }, func() (int, error) {
		calls++
		lost = lockmgr.ErrLockLost
		return -1, unix.EINTR
	})
	if n != 0 || err != lockmgr.ErrLockLost || calls != 1 {
		t.Errorf("%d, %v after %d calls", n, err, calls)
	}
}

// A copy within one file, after a lock on it, opens the file anew. That flushes the file, and must
// not wait for the copy itself.
func TestCopyWithinAFileThatIsRenewed(t *testing.T) {
	inMovedView(t, func(v *movedView) {
		v.onNetwork()
		v.fs.backing.kind, v.fs.sync = fuseKind, SyncClose
		if err := os.WriteFile(filepath.Join(v.source, "f"), []byte("abcdef"), 0o644); err != nil {
			t.Fatal(err)
		}
		one := thread{v, 1}
		node := one.look("f")
		fh, _ := one.opened(node, unix.O_RDWR)
		v.fs.nodes.get(node).grants.Add(1)
		in := fuse.CopyFileRangeIn{InHeader: one.header(node), FhIn: fh, NodeIdOut: node, FhOut: fh, OffOut: 3, Len: 3}
		if n, s := v.fs.CopyFileRange(nil, &in); n != 3 || !s.Ok() {
			t.Errorf("%d, %v", n, s)
		}
		v.fs.Release(nil, &fuse.ReleaseIn{InHeader: one.header(node), Fh: fh})
	})
}
