package procid

import (
	"bytes"
	"os"
)

// ContainerName returns the name, in its pod, of the container in which a process runs; ""
// if it cannot be seen. The container mounts a file of the kubelet's for its termination
// message, below pods/<uid>/containers/<name>, from the beginning. The API learns the
// container's id only after it has started.
func (p Proc) ContainerName(pid int) string {
	b, err := os.ReadFile(p.path(pid, "mountinfo"))
	if err != nil {
		return ""
	}
	for line := range bytes.Lines(b) {
		// id parent major:minor root mountpoint …; what is mounted there is root.
		fields := bytes.SplitN(line, []byte{' '}, 5)
		if len(fields) < 5 {
			continue
		}
		parts := bytes.Split(fields[3], []byte{'/'})
		if n := len(parts) - 5; n >= 0 && string(parts[n]) == "pods" && isUID(parts[n+1]) && string(parts[n+2]) == "containers" {
			return string(parts[n+3])
		}
	}
	return ""
}
