package procid

import "bytes"

// podOf returns the UID of the Kubernetes pod that a /proc/<pid>/cgroup is
// of, in the form it has in the API; empty when it is of none. A pod run
// inside a pod's container is both UIDs, the outer one first, separated by a
// slash: so a container that may make cgroups can set parts of itself apart,
// but cannot pass for another pod. container is the runtime's id of the container
// in the pod, the outer one; empty when it is not to be seen.
//
// A user who is logged in may make any cgroups in those of systemd for users.
// What is below them is in no pod, a rootless Kubernetes's pods included.
//
// The kubelet names a pod's cgroup in one of two ways, below any other prefix:
//
//	cgroupfs  …/kubepods/burstable/pod<uid>/<container>
//	systemd   …/kubepods-burstable-pod<uid, _ for ->.slice/cri-containerd-<container>.scope
//
// The file has one line for cgroup v2 and one for each controller of v1; the
// first that names a pod counts.
func podOf(cgroup []byte) (pod, container string) {
	// Not bytes.Lines: an iterator would move every caller's buffer to the heap.
	for len(cgroup) > 0 {
		var line []byte
		line, cgroup, _ = bytes.Cut(cgroup, []byte{'\n'})
		// hierarchy:controllers:path
		_, rest, _ := bytes.Cut(line, []byte{':'})
		_, path, _ := bytes.Cut(rest, []byte{':'})
		path = bytes.TrimSuffix(path, []byte(" (deleted)"))
		if pod, container = podInPath(path); pod != "" {
			return pod, container
		}
	}
	return "", ""
}

func podInPath(path []byte) (pod, container string) {
	// In a cgroup namespace, the kubepods above may not be visible.
	below := bytes.HasPrefix(path, []byte("/.."))
	var pods, last, id []byte
	for len(path) > 0 {
		var part []byte
		part, path, _ = bytes.Cut(path, []byte{'/'})
		if isUsers(part) {
			break
		}
		below = below || bytes.Contains(part, []byte("kubepods"))
		if !below {
			continue
		}
		if uid := podInName(part); uid != nil && !bytes.Equal(uid, last) {
			if pods != nil {
				pods = append(pods, '/')
			}
			pods, last = append(pods, uid...), uid
		}
		if pods != nil && id == nil {
			id = containerInName(part)
		}
	}
	return string(pods), string(id)
}

// isUsers reports whether a cgroup is one of systemd's for users: user.slice, user@<id>.service.
func isUsers(name []byte) bool {
	return string(name) == "user.slice" || bytes.HasPrefix(name, []byte("user@")) && bytes.HasSuffix(name, []byte(".service"))
}

// podInName returns the pod UID in the name of a cgroup, or nil.
func podInName(name []byte) []byte {
	if uid, ok := bytes.CutPrefix(name, []byte("pod")); ok && isUID(uid) {
		return uid
	}
	// If containerd uses cgroupfs and the kubelet uses systemd, the directory is called
	// <slice>:cri-containerd:<container>.
	name, _, _ = bytes.Cut(name, []byte{':'})
	slice, ok := bytes.CutSuffix(name, []byte(".slice"))
	i := bytes.LastIndex(slice, []byte("-pod"))
	if !ok || i < 0 || !bytes.Contains(slice[:i], []byte("kubepods")) {
		return nil
	}
	uid := bytes.ReplaceAll(slice[i+len("-pod"):], []byte{'_'}, []byte{'-'})
	if !isUID(uid) {
		return nil
	}
	return uid
}

// containerInName returns the container id in a cgroup's name, alone or after the runtime's prefix
// (cri-containerd-, crio-, docker-), or nil, as for CRI-O's monitor process.
func containerInName(name []byte) []byte {
	name = bytes.TrimSuffix(name, []byte(".scope"))
	id := name[bytes.LastIndexAny(name, "-:")+1:]
	if len(id) != 64 || !isHex(id) || bytes.HasSuffix(name[:len(name)-len(id)], []byte("-conmon-")) {
		return nil
	}
	return id
}

// isUID: static pods have a hash of 32 hex digits.
func isUID(b []byte) bool {
	if len(b) != 36 && len(b) != 32 {
		return false
	}
	for i, c := range b {
		if len(b) == 36 && (i == 8 || i == 13 || i == 18 || i == 23) {
			if c != '-' {
				return false
			}
		} else if !isHexDigit(c) {
			return false
		}
	}
	return true
}

func isHex(b []byte) bool {
	for _, c := range b {
		if !isHexDigit(c) {
			return false
		}
	}
	return true
}

func isHexDigit(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' }
