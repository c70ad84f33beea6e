package mounts

import "strings"

// networkTypes are the file systems to which other machines may write at the same time:
// over a network, from the host of a virtual machine, or on a shared disk.
var networkTypes = map[string]bool{
	"9p": true, "acfs": true, "afs": true, "beegfs": true, "ceph": true,
	"cifs": true, "coda": true, "gfs": true, "gfs2": true, "glusterfs": true,
	"gpfs": true, "lustre": true, "mmfs": true, "nfs": true, "nfs4": true,
	"ocfs2": true, "orangefs": true, "panfs": true, "prl_fs": true, "pvfs2": true,
	"smb2": true, "smb3": true, "smbfs": true, "vboxsf": true, "virtiofs": true,
	"vmhgfs": true, "wekafs": true,
}

// NetworkFS returns the type of the file system of the directory path, and whether other
// machines may write to it. Locks that are kept on this machine exclude nobody there. FUSE
// counts as network, except fuseblk, which is a local disk.
//
// A bind mount has the type of what it shows. An overlay is local even over a network file
// system: what is written through it goes to its own upper directory, to which no other
// machine writes through its own overlay.
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
