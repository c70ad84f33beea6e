package mounts

import "strings"

// networkTypes are file systems that other machines may write to: over a network, from a virtual
// machine's host, or on a shared disk.
var networkTypes = map[string]bool{
	"9p": true, "acfs": true, "afs": true, "beegfs": true, "ceph": true,
	"cifs": true, "coda": true, "gfs": true, "gfs2": true, "glusterfs": true,
	"gpfs": true, "lustre": true, "mmfs": true, "nfs": true, "nfs4": true,
	"ocfs2": true, "orangefs": true, "panfs": true, "prl_fs": true, "pvfs2": true,
	"smb2": true, "smb3": true, "smbfs": true, "vboxsf": true, "virtiofs": true,
	"vmhgfs": true, "wekafs": true,
}

// NetworkFS returns the file system type of path, and whether other machines may write to it. FUSE
// counts as network, except fuseblk, a local disk. A bind mount has the type of what it shows. An
// overlay is local: writes go to its own upper directory.
func NetworkFS(path string) (fstype string, network bool, err error) {
	l, err := open(path)
	if err != nil {
		return "", false, err
	}
	defer l.close()
	m, err := l.mount()
	if err != nil {
		return "", false, err
	}
	return m.FSType, isNetwork(m.FSType), nil
}

// Network reports whether other machines may write to the mount, as NetworkFS does.
func (m Mount) Network() bool { return isNetwork(m.FSType) }

func isNetwork(fstype string) bool {
	return fstype == "fuse" || strings.HasPrefix(fstype, "fuse.") || networkTypes[fstype]
}
