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
	if !n.isDir() {
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
func (f *FS) maySetQuota(in *fuse.InHeader, n *node) error {
	if err := f.hasQuota(n); err != nil || !f.actor.root {
		return err
	}
	r, err := callerRights(in)
	if err == nil && r.caps&(1<<unix.CAP_LINUX_IMMUTABLE) == 0 {
		err = unix.EPERM
	}
	return err
}

func (n *node) isDir() bool { return n.dir || n.id == rootID }

// withinQuota makes the figures of a file system those of a directory with a quota, as a client of
// CephFS does for the directory that it has mounted.
func withinQuota(fd int, out *fuse.StatfsOut) {
	limit, _ := attrNumber(fd, quotaBytes)
	if limit == 0 {
		return
	}
	used, ok := attrNumber(fd, treeBytes)
	if !ok {
		return
	}
	left := limit - min(limit, used)
	available := min(out.Bavail*uint64(out.Frsize), left)
	// Many programs multiply by Bsize.
	out.Bsize, out.Frsize = quotaBlock, quotaBlock
	out.Blocks, out.Bfree, out.Bavail = max(limit/quotaBlock, 1), left/quotaBlock, available/quotaBlock
}

// quotaBlock is the unit of these figures, in bytes: the blocks of CephFS have 4 MiB.
const quotaBlock = 4096

// attrNumber is the value of an attribute that is a number.
func attrNumber(fd int, attr string) (n uint64, ok bool) {
	var value [32]byte
	size, err := unix.Getxattr(procPath(fd), attr, value[:])
	if err != nil {
		return 0, false
	}
	n, err = strconv.ParseUint(strings.TrimRight(string(value[:size]), "\x00\n"), 10, 64)
	return n, err == nil
}
