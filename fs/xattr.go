package fs

import (
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// aclPrefix: an ACL that nobody enforces must not seem to be set.
const aclPrefix = "system.posix_acl_"

// GetXAttr answers getxattr.
func (f *FS) GetXAttr(_ <-chan struct{}, in *fuse.InHeader, attr string, dest []byte) (uint32, fuse.Status) {
	n := f.nodes.get(in.NodeId)
	if n == nil {
		return 0, stale
	}
	if strings.HasPrefix(attr, aclPrefix) {
		return 0, fuse.ENOTSUP
	}
	size, err := unix.Getxattr(procPath(n.fd), attr, dest)
	return uint32(max(size, 0)), errno(err)
}

// ListXAttr answers listxattr.
func (f *FS) ListXAttr(_ <-chan struct{}, in *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	n := f.nodes.get(in.NodeId)
	if n == nil {
		return 0, stale
	}
	size, err := unix.Listxattr(procPath(n.fd), dest)
	return uint32(max(size, 0)), errno(err)
}

// SetXAttr answers setxattr.
func (f *FS) SetXAttr(_ <-chan struct{}, in *fuse.SetXAttrIn, attr string, data []byte) fuse.Status {
	n := f.nodes.get(in.NodeId)
	if n == nil {
		return stale
	}
	if strings.HasPrefix(attr, aclPrefix) {
		return fuse.ENOTSUP
	}
	return errno(unix.Setxattr(procPath(n.fd), attr, data, int(in.Flags)))
}

// RemoveXAttr answers removexattr.
func (f *FS) RemoveXAttr(_ <-chan struct{}, in *fuse.InHeader, attr string) fuse.Status {
	n := f.nodes.get(in.NodeId)
	if n == nil {
		return stale
	}
	return errno(unix.Removexattr(procPath(n.fd), attr))
}
