package fs

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// clearing changes an open file's bytes with the caller's rights, so that the backing clears
// set-id bits: for root it would keep them.
func (f *FS) clearing(n *node, fd int, in *fuse.InHeader, change func() error) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&(unix.S_ISUID|unix.S_ISGID) == 0 {
		return change()
	}
	defer f.dropAttrs(n) // the kernel expects the old mode
	return f.asExactly(in, 0, change)
}
