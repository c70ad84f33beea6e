package fs

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// clearing makes a change. If kill, the change has the caller's rights, so that the backing clears
// set-id bits; for root it keeps them.
func (f *FS) clearing(n *node, fd int, kill bool, in *fuse.InHeader, change func() error) error {
	if !kill {
		return change()
	}
	var st unix.Stat_t
	if err := fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&(unix.S_ISUID|unix.S_ISGID) == 0 {
		return change()
	}
	defer f.dropAttrs(n) // the kernel expects the old mode
	return f.asExactly(in, 0, change)
}
