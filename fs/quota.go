package fs

import (
	"strconv"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// CephFS keeps the limits of what is below a directory in attributes of the directory. It lets
// everybody who may write to the directory set them. Such a limit holds no program, so a view wants
// CAP_LINUX_IMMUTABLE, with which Linux lets a process lift a limit that a file's owner may not:
// see ADR 71.
const (
	quotaBytes = "ceph.quota.max_bytes"
	quotaFiles = "ceph.quota.max_files" // directories as well
	// treeBytes is how much is below a directory. A client knows it some seconds late.
	treeBytes = "ceph.dir.rbytes"
)

func isQuota(attr string) bool { return attr == quotaBytes || attr == quotaFiles }

// hasQuota fails with ENOTSUP unless a node is a directory that may have a quota. Other file systems
// than CephFS may keep any attribute, and it limits nothing.
func (f *files) hasQuota(n *node) error {
	if !n.dir {
		return unix.ENOTSUP
	}
	return f.with(n, func(fd int) error {
		_, err := unix.Getxattr(procPath(fd), treeBytes, nil)
		if err == unix.ENODATA {
			err = unix.ENOTSUP
		}
		return err
	})
}

// maySetQuota checks a caller before the volume does.
func (f *files) maySetQuota(in *fuse.InHeader, n *node) error {
	if err := f.hasQuota(n); err != nil {
		return err
	}
	r, err := callerRights(in)
	if err == nil && r.caps&(1<<unix.CAP_LINUX_IMMUTABLE) == 0 {
		err = unix.EPERM
	}
	return err
}

// withinQuota makes the figures of a file system those of the nearest directory with a quota, at n or
// above it: as a client of CephFS does below a directory that it has mounted.
func (f *files) withinQuota(n *node, out *fuse.StatfsOut) {
	for range quotaDepth {
		if f.backing.on(n.inode.dev).local {
			return
		}
		if n.dir {
			if err := f.with(n, func(fd int) error { return quotaOf(fd, out) }); err != unix.ENODATA {
				return
			}
		}
		above := f.nodes.nameOf(n).dir
		if above == nil || !above.enter() {
			return
		}
		defer above.leave()
		n = above
	}
}

// quotaOf fails with ENODATA if a directory has none.
func quotaOf(fd int, out *fuse.StatfsOut) error {
	limit, err := attrNumber(fd, quotaBytes)
	if err == nil && limit == 0 {
		err = unix.ENODATA
	}
	if err != nil {
		return err
	}
	used, err := attrNumber(fd, treeBytes)
	if err != nil {
		return err
	}
	left := limit - min(limit, used)
	available := min(out.Bavail*uint64(out.Frsize), left)
	// Many programs multiply by Bsize.
	out.Bsize, out.Frsize = quotaBlock, quotaBlock
	out.Blocks, out.Bfree, out.Bavail = max(limit/quotaBlock, 1), left/quotaBlock, available/quotaBlock
	return nil
}

// quotaDepth is how far up withinQuota looks. Each step asks the volume.
const quotaDepth = 64

// quotaBlock is the unit of these figures, in bytes: the blocks of CephFS have 4 MiB.
const quotaBlock = 4096

// attrNumber is the value of an attribute that is a number.
func attrNumber(fd int, attr string) (uint64, error) {
	var value [32]byte
	size, err := unix.Getxattr(procPath(fd), attr, value[:])
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimRight(string(value[:size]), "\x00\n"), 10, 64)
}
