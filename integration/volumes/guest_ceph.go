package main

// cephPackages are those of the servers.
var cephPackages = []string{"ceph-mon", "ceph-osd", "ceph-mds", "ceph-common"}

// cephKernel is a file system of Ceph's, and two of the kernel's clients.
func cephKernel(l *lab) ([]string, error) {
	if _, err := l.cephServers(); err != nil {
		return nil, err
	}
	if err := l.run("modprobe", "ceph"); err != nil {
		return nil, err
	}
	return l.guestClients(func(_ int, _, dir string) []string {
		// The servers have no passwords, and a mount helper would look for one.
		return []string{"mount", "-i", "-t", "ceph", "-o", "name=admin,ms_mode=crc,noshare", address + ":3300:/", dir}
	})
}
