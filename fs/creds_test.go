package fs

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// threadHas returns what the kernel says of a thread's rights.
func threadHas(t *testing.T, tid int) rights {
	t.Helper()
	status, err := readStatus(uint32(tid))
	if err != nil {
		return rights{uid: -1} // it has ended
	}
	caps, err := strconv.ParseUint(string(statusField(status, "CapEff")[1:]), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	ids := fsIDs(status)
	return rights{uid: int(ids[0]), gid: int(ids[1]), groups: statusIDs(status, "Groups"), caps: caps}
}

// child runs a program that does nothing, and is a caller with an id.
func child(t *testing.T, id int, attr syscall.SysProcAttr) *fuse.InHeader {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &attr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return header(cmd.Process.Pid, id)
}

func header(pid, id int) *fuse.InHeader {
	return &fuse.InHeader{Caller: fuse.Caller{Pid: uint32(pid), Owner: fuse.Owner{Uid: uint32(id), Gid: uint32(id)}}}
}

// A call is tried with little, and repeated with all that the caller has, and
// no thread keeps anything of it.
func TestAs(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	groups := make([]uint32, 2000) // more than one read of /proc tells
	for i := range groups {
		groups[i] = uint32(10_000 + i)
	}
	root := child(t, 0, syscall.SysProcAttr{})
	user := child(t, 1000, syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000, Groups: groups}})
	own := threadHas(t, os.Getpid())
	a := actor{root: true}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			var seen []rights
			try := func() error {
				seen = append(seen, threadHas(t, unix.Gettid()))
				return unix.EACCES
			}
			if err := a.as(user, 0o22, try); err != unix.EACCES {
				t.Errorf("as: %v", err)
			}
			if len(seen) != 2 || seen[0].uid != 1000 || seen[0].gid != 1000 || len(seen[0].groups) != 0 || seen[0].caps != 0 {
				t.Errorf("at first the call has %+v", seen)
			} else if seen[1].uid != 1000 || !slices.Equal(seen[1].groups, groups) || seen[1].caps != 0 {
				t.Errorf("then it has %+v", seen[1])
			}
			if err := a.as(root, 0, func() error {
				seen = append(seen, threadHas(t, unix.Gettid()))
				return unix.EPERM
			}); err != unix.EPERM {
				t.Errorf("as root: %v", err)
			}
			if last := seen[len(seen)-1]; last.caps != own.caps || last.uid != 0 {
				t.Errorf("root has %+v, want %+v", last, own)
			}
		})
	}
	all.Wait()
	tasks, err := filepath.Glob("/proc/self/task/*")
	if err != nil || len(tasks) == 0 {
		t.Fatal(err)
	}
	for _, task := range tasks {
		tid, _ := strconv.Atoi(filepath.Base(task))
		if is := threadHas(t, tid); is.uid >= 0 && (is.uid != own.uid || is.gid != own.gid || is.caps != own.caps || !slices.Equal(is.groups, own.groups)) {
			t.Errorf("a thread is left with %+v, want %+v", is, own)
		}
	}
}

// Anybody can be root in a user namespace of his own, and is nobody here. Nor
// has a request the rights of a thread that is not its caller.
func TestCapabilityOfUserNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	in := child(t, 1000, syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1000, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 1000, Size: 1}},
	})
	rightsOf := func(in *fuse.InHeader) rights {
		r, err := callerRights(in)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := rightsOf(in); r.caps != 0 {
		t.Errorf("root of a user namespace has capabilities %x", r.caps)
	}
	if r := rightsOf(header(os.Getpid(), 0)); r.caps == 0 {
		t.Error("root has no capabilities")
	}
	for _, in := range []*fuse.InHeader{header(0, 0), header(os.Getpid(), 1000)} {
		if r := rightsOf(in); r.caps != 0 || len(r.groups) != 0 {
			t.Errorf("process %d as user %d has %+v", in.Pid, in.Uid, r)
		}
	}
}

// A caller that cannot be looked at for want of descriptors gets that error, and not the one of a
// caller without rights.
func TestRightsWithoutDescriptors(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	a := actor{root: true}
	in := header(os.Getpid(), 0)
	withoutDescriptors(t, func() {
		if err := a.as(in, 0, func() error { return unix.EACCES }); err != unix.EMFILE {
			t.Errorf("refused first: %v", err)
		}
		if err := a.asExactly(in, 0, func() error { return nil }); err != unix.EMFILE {
			t.Errorf("all rights at once: %v", err)
		}
	})
}
