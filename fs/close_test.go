package fs

import (
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// While a view is being closed, each call on a file that was open says that the view has ended: for
// as long as a write of another program hangs, the kernel's connection still stands.
func TestOpenFilesOfAClosingView(t *testing.T) {
	v := newStateView(t)
	f := v.fs
	for _, h := range f.handles.drain() {
		h.leave()
	}
	const fh = 2 // open for reading and writing
	in := fuse.InHeader{NodeId: 2}
	for name, call := range map[string]func() fuse.Status{
		"read": func() fuse.Status { _, s := f.Read(nil, &fuse.ReadIn{InHeader: in, Fh: fh}, nil); return s },
		"write": func() fuse.Status {
			_, s := f.Write(nil, &fuse.WriteIn{InHeader: in, Fh: fh}, []byte("x"))
			return s
		},
		"fallocate": func() fuse.Status { return f.Fallocate(nil, &fuse.FallocateIn{InHeader: in, Fh: fh, Length: 1}) },
		"copy": func() fuse.Status {
			_, s := f.CopyFileRange(nil, &fuse.CopyFileRangeIn{InHeader: in, FhIn: fh, FhOut: fh})
			return s
		},
		"lseek":   func() fuse.Status { return f.Lseek(nil, &fuse.LseekIn{InHeader: in, Fh: fh}, &fuse.LseekOut{}) },
		"flush":   func() fuse.Status { return f.Flush(nil, &fuse.FlushIn{InHeader: in, Fh: fh}) },
		"fsync":   func() fuse.Status { return f.Fsync(nil, &fuse.FsyncIn{InHeader: in, Fh: fh}) },
		"getlk":   func() fuse.Status { return f.GetLk(nil, &fuse.LkIn{InHeader: in, Fh: fh}, &fuse.LkOut{}) },
		"setlk":   func() fuse.Status { return f.SetLk(nil, &fuse.LkIn{InHeader: in, Fh: fh}) },
		"readdir": func() fuse.Status { return f.ReadDir(nil, &fuse.ReadIn{InHeader: in, Fh: 99}, nil) },
		"fsyncdir": func() fuse.Status {
			return f.FsyncDir(nil, &fuse.FsyncIn{InHeader: in, Fh: 99})
		},
	} {
		if s := call(); s != fuse.Status(unix.ENOTCONN) {
			t.Errorf("%s: %v, want ENOTCONN", name, s)
		}
	}
}
