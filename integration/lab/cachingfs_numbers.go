package lab

import (
	"strconv"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// number has the file's number in place of its inode's, freed that which is to be used
// again, in the volume's root.
const (
	number = "trusted.lockfs-test.number"
	freed  = "trusted.lockfs-test.freed"
)

// numbered is st as programs see it.
func numbered(path string, st unix.Stat_t) *unix.Stat_t {
	var buf [32]byte
	if n, err := unix.Getxattr(path, number, buf[:]); err == nil {
		st.Ino, _ = strconv.ParseUint(string(buf[:n]), 10, 64)
	}
	return &st
}

// free notes the number of a file that has lost its last name.
func (c *cachingFS) free(was *unix.Stat_t) {
	if c.config.Reuse && (was.Nlink == 1 || was.Mode&unix.S_IFMT == unix.S_IFDIR) {
		_ = unix.Setxattr(c.node(fuse.FUSE_ROOT_ID).path(), freed, strconv.AppendUint(nil, was.Ino, 10), 0)
	}
}

// reuseFor gives a new file the number.
func (c *cachingFS) reuseFor(dir *cachedNode, name string) {
	root, buf := c.node(fuse.FUSE_ROOT_ID).path(), [32]byte{}
	n, err := unix.Getxattr(root, freed, buf[:])
	if !c.config.Reuse || err != nil || unix.Removexattr(root, freed) != nil {
		return
	}
	_ = unix.Setxattr(dir.path()+"/"+name, number, buf[:n], 0)
}
