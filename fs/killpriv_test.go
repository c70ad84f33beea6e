package fs

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Anybody can be root in a user namespace of his own, and is nobody here.
func TestCapabilityOfUserNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	child := exec.Command("sleep", "1000")
	child.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1000, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1000, Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer child.Process.Kill()
	for _, c := range []struct {
		pid  int
		want bool
	}{{os.Getpid(), true}, {child.Process.Pid, false}, {0, false}} {
		in := &fuse.InHeader{Caller: fuse.Caller{Pid: uint32(c.pid)}}
		if got := hasCapability(in, unix.CAP_SYS_ADMIN); got != c.want {
			t.Errorf("process %d: %v, want %v", c.pid, got, c.want)
		}
	}
}
