package fs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/policy"
)

// inMappedView opens a file of 4096 zeros to map it, has a page of the mapping written back, and opens the
// file for writing only. stores writes the page back, by the mapping.
func inMappedView(t *testing.T, do func(v *movedView, one thread, node, mapped, writer uint64, stores func(page []byte))) {
	t.Helper()
	inMovedView(t, func(v *movedView) {
		if err := os.WriteFile(filepath.Join(v.source, "f"), make([]byte, 4096), 0o644); err != nil {
			t.Fatal(err)
		}
		v.fs.rules.scope = policy.ScopeNode
		one := thread{v, 1}
		node := one.look("f")
		mapped, _ := one.opened(node, unix.O_RDWR)
		writer, how := one.opened(node, unix.O_WRONLY)
		if how&fuse.FOPEN_DIRECT_IO == 0 {
			t.Fatal("a write goes by the kernel's cache")
		}
		stores := func(page []byte) {
			t.Helper()
			in := fuse.WriteIn{InHeader: one.header(node), Fh: mapped, Size: uint32(len(page)), WriteFlags: fuse.WRITE_CACHE}
			if _, s := v.fs.Write(nil, &in, page); !s.Ok() {
				t.Errorf("write back: %v", s)
			}
		}
		stores(make([]byte, 4096))
		do(v, one, node, mapped, writer, stores)
		for _, fh := range []uint64{mapped, writer} {
			v.fs.Release(nil, &fuse.ReleaseIn{InHeader: one.header(node), Fh: fh})
		}
	})
}

// A page that a mapping has read before a write, and stored in since, does not undo the write when it is
// written back. What the mapping has stored stays.
func TestMappingDoesNotUndoAWrite(t *testing.T) {
	inMappedView(t, func(v *movedView, one thread, node, _, writer uint64, stores func([]byte)) {
		page := make([]byte, 4096) // as it was before the write
		copy(page, "stored")
		page[2001] = 'S'
		v.fs.invalidate = func(_ uint64, off, _ int64) fuse.Status {
			if off >= 0 {
				stores(bytes.Clone(page))
			}
			return fuse.OK
		}
		in := fuse.WriteIn{InHeader: one.header(node), Fh: writer, Offset: 2000, Size: 3, Flags: unix.O_WRONLY}
		if _, s := v.fs.Write(nil, &in, []byte("abc")); !s.Ok() {
			t.Fatalf("write: %v", s)
		}
		got, err := os.ReadFile(filepath.Join(v.source, "f"))
		if err != nil {
			t.Fatal(err)
		}
		if copy(page[2000:], "aSc"); !bytes.Equal(got, page) {
			t.Errorf("the file begins with %q, and has %q where it was written", got[:6], got[2000:2003])
		}
		stores(make([]byte, 4096)) // later, by a program that has seen the write
		if got, err = os.ReadFile(filepath.Join(v.source, "f")); err != nil || !bytes.Equal(got, make([]byte, 4096)) {
			t.Errorf("then %q, %v", got[2000:2003], err)
		}
	})
}

// A mapping that has read what a write has written may put the old bytes back, before the write returns.
func TestMappingAnswersAWrite(t *testing.T) {
	inMappedView(t, func(v *movedView, one thread, node, mapped, writer uint64, stores func([]byte)) {
		v.fs.handles.get(mapped).node.paged.Store(true)
		v.fs.invalidate = func(_ uint64, off, _ int64) fuse.Status {
			if off < 0 {
				return fuse.OK
			}
			page := make([]byte, 4096)
			if _, s := v.fs.Read(nil, &fuse.ReadIn{InHeader: one.header(node), Fh: mapped, Size: 4096}, page); !s.Ok() || string(page[2000:2003]) != "abc" {
				t.Errorf("read %q, %v", page[2000:2003], s)
			}
			page[2001] = 0
			stores(page)
			return fuse.OK
		}
		in := fuse.WriteIn{InHeader: one.header(node), Fh: writer, Offset: 2000, Size: 3, Flags: unix.O_WRONLY}
		if _, s := v.fs.Write(nil, &in, []byte("abc")); !s.Ok() {
			t.Fatalf("write: %v", s)
		}
		if got, err := os.ReadFile(filepath.Join(v.source, "f")); err != nil || string(got[2000:2003]) != "a\x00c" {
			t.Errorf("the file has %q, %v", got[2000:2003], err)
		}
	})
}

// A write that is refused does not come into the file by a page that another handle may write back.
func TestMappingDoesNotMakeARefusedWrite(t *testing.T) {
	inMappedView(t, func(v *movedView, one thread, node, _, writer uint64, stores func([]byte)) {
		v.fs.invalidate = func(_ uint64, off, _ int64) fuse.Status {
			if off >= 0 {
				stores(make([]byte, 4096))
			}
			return fuse.OK
		}
		h := v.fs.handles.get(writer)
		h.lost.Store(true)
		h.node.paged.Store(true)
		in := fuse.WriteIn{InHeader: one.header(node), Fh: writer, Offset: 2000, Size: 3, Flags: unix.O_WRONLY}
		if _, s := v.fs.Write(nil, &in, []byte("abc")); s.Ok() {
			t.Error("a write without a lock is made")
		}
		h.lost.Store(false)
		if got, err := os.ReadFile(filepath.Join(v.source, "f")); err != nil || !bytes.Equal(got, make([]byte, 4096)) {
			t.Errorf("the file has %q, %v", got[2000:2003], err)
		}
	})
}

// Into a file in which a mapping stores, the kernel copies by itself: it would drop what is stored.
func TestCopyIntoAMapping(t *testing.T) {
	inMappedView(t, func(v *movedView, one thread, node, mapped, writer uint64, _ func([]byte)) {
		in := fuse.CopyFileRangeIn{InHeader: one.header(node), FhIn: mapped, NodeIdOut: node, FhOut: writer, OffOut: 2048, Len: 8}
		if n, s := v.fs.CopyFileRange(nil, &in); n != 0 || s != fuse.Status(unix.EOPNOTSUPP) {
			t.Errorf("%d, %v", n, s)
		}
	})
}

// What a mapping has stored is data for a program that looks for data, such as cp.
func TestSeekFindsWhatIsMapped(t *testing.T) {
	inMappedView(t, func(v *movedView, one thread, node, mapped, _ uint64, stores func([]byte)) {
		if err := os.Truncate(filepath.Join(v.source, "f"), 0); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(filepath.Join(v.source, "f"), 4096); err != nil {
			t.Fatal(err)
		}
		v.fs.invalidate = func(_ uint64, off, _ int64) fuse.Status {
			if off == 0 {
				stores([]byte("stored"))
			}
			return fuse.OK
		}
		in, out := fuse.LseekIn{InHeader: one.header(node), Fh: mapped, Whence: unix.SEEK_DATA}, fuse.LseekOut{}
		if s := v.fs.Lseek(nil, &in, &out); !s.Ok() || out.Offset != 0 {
			t.Errorf("%d, %v", out.Offset, s)
		}
	})
}
