package fs

import (
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// invalidate makes the kernel drop what it has of an inode: its attributes, and its pages unless off
// is negative. It does not depend on the present server.
func (c *connection) invalidate(node uint64, off, length int64) fuse.Status {
	if c.device < 0 {
		return c.serving.Load().server.InodeNotify(node, off, length)
	}
	notice := struct {
		fuse.OutHeader
		fuse.NotifyInvalInodeOut
	}{
		fuse.OutHeader{Status: -fuse.NOTIFY_INVAL_INODE},
		fuse.NotifyInvalInodeOut{Ino: node, Off: off, Length: length},
	}
	notice.OutHeader.Length = uint32(unsafe.Sizeof(notice))
	_, err := ignoringEINTR(func() (int, error) {
		return unix.Write(c.device, unsafe.Slice((*byte)(unsafe.Pointer(&notice)), unsafe.Sizeof(notice)))
	})
	if err == unix.EINVAL {
		err = unix.ENOSYS
	}
	return fuse.ToStatus(err)
}

// prune asks the kernel to forget unused nodes (Linux 6.18).
func (c *connection) prune(ids []uint64) fuse.Status {
	return c.serving.Load().server.PruneNotify(ids)
}

// dropName makes the kernel forget a name, used or not. It waits for the directory.
func (c *connection) dropName(parent uint64, name string) fuse.Status {
	return c.serving.Load().server.EntryNotify(parent, name)
}

// canResend reports whether the kernel can send requests again (Linux 6.9).
func (c *connection) canResend() bool {
	const hasResend = 1 << (39 - 32) // FUSE_HAS_RESEND
	return c.init != nil && c.init.Flags2&hasResend != 0
}

// resend makes the kernel send what was read and not answered once more.
func (c *connection) resend() error {
	const resend = 7 // FUSE_NOTIFY_RESEND
	notice := fuse.OutHeader{Length: uint32(unsafe.Sizeof(fuse.OutHeader{})), Status: resend}
	_, err := ignoringEINTR(func() (int, error) { return unix.Write(c.device, raw(&notice)) })
	return err
}
