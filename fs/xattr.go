package fs

import (
	"bytes"
	"errors"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const (
	aclPrefix = "system.posix_acl_"
	aclAccess = aclPrefix + "access"
	// capability is removed by the caller's kernel itself when a file is written, truncated or given
	// away, by whoever may do that. From programs that remove it, the kernel wants CAP_SETFCAP.
	capability = "security.capability"
)

// passes reports whether a view shows an attribute of the backing. Its kernel checks the caller's
// right, except for a network file system's own: as root we would set system.nfs4_acl for anybody.
func passes(attr string) bool {
	space, _, _ := strings.Cut(attr, ".")
	switch space {
	case "user", "trusted", "security":
		return true
	}
	return strings.HasPrefix(attr, aclPrefix) || isQuota(attr)
}

// GetXAttr answers getxattr, and the kernel's requests for the ACLs that it enforces.
func (f *FS) GetXAttr(cancel <-chan struct{}, in *fuse.InHeader, attr string, dest []byte) (uint32, fuse.Status) {
	n := f.nodes.get(in.NodeId)
	if n == nil {
		return 0, stale
	}
	if !passes(attr) {
		return 0, fuse.ENOTSUP
	}
	if isLockAttr(attr) {
		ctx, stop := f.killable(cancel, in.Pid)
		defer stop()
		var value []byte
		var err error
		givenUp := f.gates.volume.outside(ctx, in, func() { value, err = f.lockAttr(ctx, n, attr) })
		if err := errors.Join(givenUp, err); err != nil {
			return 0, errno(err)
		}
		size, err := attrReply(value, dest)
		return size, errno(err)
	}
	if isQuota(attr) {
		if err := f.hasQuota(n); err != nil {
			return 0, errno(err)
		}
	}
	size := 0
	err := f.with(n, func(fd int) error {
		get := func() (err error) {
			size, err = unix.Getxattr(procPath(fd), attr, dest)
			return err
		}
		if strings.HasPrefix(attr, "user.") || isQuota(attr) { // the others depend on the caller, not on the file's attributes
			return f.as(in, 0, get)
		}
		return get()
	})
	if err == unix.ENOTSUP && strings.HasPrefix(attr, aclPrefix) {
		err = unix.ENODATA // else the kernel, which only wants to know, refuses all access
	}
	return uint32(max(size, 0)), errno(err)
}

// ListXAttr answers listxattr. The backing shows root all names.
func (f *FS) ListXAttr(_ <-chan struct{}, in *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	n := f.nodes.get(in.NodeId)
	if n == nil {
		return 0, stale
	}
	var names []byte
	err := f.with(n, func(fd int) (err error) {
		names, err = listXAttr(procPath(fd))
		return err
	})
	if err != nil {
		return 0, errno(err)
	}
	names = visible(names, func() bool {
		r, err := callerRights(in)
		return err == nil && r.caps&(1<<unix.CAP_SYS_ADMIN) != 0
	})
	size, err := attrReply(names, dest)
	return size, errno(err)
}

func listXAttr(path string) ([]byte, error) {
	for {
		size, err := unix.Listxattr(path, nil)
		if err != nil || size == 0 {
			return nil, err
		}
		names := make([]byte, size)
		size, err = unix.Listxattr(path, names)
		if err != unix.ERANGE { // else there is a new one
			return names[:max(size, 0)], err
		}
	}
}

// visible leaves out what getxattr would not show: trusted attributes, except to administrators.
func visible(names []byte, admin func() bool) []byte {
	var seen []byte
	for name := range bytes.SplitAfterSeq(names, []byte{0}) {
		attr := string(bytes.TrimSuffix(name, []byte{0}))
		if passes(attr) && !isLockAttr(attr) && (!strings.HasPrefix(attr, "trusted.") || admin()) {
			seen = append(seen, name...)
		}
	}
	return seen
}

func (f *FS) mayAlterAttr(in *fuse.InHeader, attr string) (*node, fuse.Status) {
	n := f.nodes.get(in.NodeId)
	if n == nil {
		return nil, stale
	}
	if !passes(attr) {
		return nil, fuse.ENOTSUP
	}
	if err := f.mayAlter(n); err != nil {
		return nil, errno(err)
	}
	if isLockAttr(attr) {
		return nil, fuse.EPERM
	}
	if isQuota(attr) {
		return n, errno(f.maySetQuota(in, n))
	}
	return n, fuse.OK
}

// SetXAttr answers setxattr and setfacl.
func (f *FS) SetXAttr(_ <-chan struct{}, in *fuse.SetXAttrIn, attr string, data []byte) fuse.Status {
	n, status := f.mayAlterAttr(&in.InHeader, attr)
	if status != fuse.OK {
		return status
	}
	if in.Flags != 0 {
		if b := f.calls.again(&in.InHeader); b != nil && (b.Answered || f.hasAttr(n, attr, data)) {
			return fuse.Status(b.Status)
		}
		f.calls.begin(&in.InHeader, nil, callRecord{What: addingAttr})
	}
	as := f.as
	if attr == aclAccess { // it clears the set-group-id bit
		as = f.asExactly
	}
	return errno(f.with(n, func(fd int) error {
		return as(&in.InHeader, 0, func() error { return unix.Setxattr(procPath(fd), attr, data, int(in.Flags)) })
	}))
}

// RemoveXAttr answers removexattr.
func (f *FS) RemoveXAttr(_ <-chan struct{}, in *fuse.InHeader, attr string) fuse.Status {
	n, status := f.mayAlterAttr(in, attr)
	if status != fuse.OK {
		return status
	}
	b := f.calls.again(in)
	if b != nil && b.Answered {
		return fuse.Status(b.Status)
	}
	f.calls.begin(in, nil, callRecord{What: losingAttr})
	err := f.with(n, func(fd int) error {
		remove := func() error { return unix.Removexattr(procPath(fd), attr) }
		if attr == capability {
			return remove()
		}
		return f.as(in, 0, remove)
	})
	if b != nil && err == unix.ENODATA { // it was removed for the first time
		err = nil
	}
	return errno(err)
}

// hasAttr reports whether a file has an attribute with a value.
func (f *files) hasAttr(n *node, attr string, value []byte) bool {
	had := make([]byte, len(value)+1)
	return f.with(n, func(fd int) error {
		size, err := unix.Getxattr(procPath(fd), attr, had)
		if err == nil && !bytes.Equal(had[:size], value) {
			err = unix.ENODATA
		}
		return err
	}) == nil
}
