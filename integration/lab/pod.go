package lab

import (
	"bufio"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// NewPod returns the cgroup of a pod, as a kubelet makes it. It skips the test where there is none
// to be had.
func NewPod(t *testing.T) (cgroup string) {
	t.Helper()
	top := cgroups(t)
	if top == "" || unix.Access(top, unix.W_OK) != nil {
		t.Skip("no cgroup can be made")
	}
	above := filepath.Join(top, "kubepods-"+uuid.NewString())
	pod := filepath.Join(above, "pod"+uuid.NewString())
	if err := os.MkdirAll(pod, 0o755); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { // after its programs' end
		for _, dir := range []string{pod, above} {
			Eventually(t, "the cgroup is removed", func() bool { return unix.Rmdir(dir) == nil })
		}
	})
	return pod
}

// cgroups is where a hierarchy is mounted, "" if none is.
func cgroups(t *testing.T) string {
	t.Helper()
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// what, where, type, options
		fields := strings.Fields(lines.Text())
		if len(fields) > 3 && (fields[2] == "cgroup2" || fields[2] == "cgroup" && strings.Contains(fields[3], "pids")) {
			return fields[1]
		}
	}
	return ""
}

// NewAgentIn starts a program in a pod.
func NewAgentIn(t *testing.T, pod string) *Agent {
	t.Helper()
	a := NewAgent(t)
	if err := os.WriteFile(filepath.Join(pod, "cgroup.procs"), []byte(strconv.Itoa(a.PID())), 0o644); err != nil {
		t.Fatal(err)
	}
	return a
}
