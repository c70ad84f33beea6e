package procid

import (
	"bytes"
	"os"
)

// ContainerName returns the name of a process's container in its pod; "" if unseen. The container
// mounts the kubelet's file pods/<uid>/containers/<name> for its termination message. The API
// learns its id only later.
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
