package semantics

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// onExt4 puts the volume on a file system of its own, which can be frozen. It
// returns how.
func onExt4(v *lab.Volume) (freeze, thaw func()) {
	v.T.Helper()
	image := filepath.Join(v.Dir, "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		v.T.Fatal(err)
	}
	if err := os.Truncate(image, 16<<20); err != nil {
		v.T.Fatal(err)
	}
	lab.Run(v.T, "mkfs.ext4", "-q", image)
	lab.Run(v.T, "mount", "-o", "loop", image, v.Source)
	v.T.Cleanup(func() {
		// A program that another test is about to start has the descriptors of this one until it begins.
		lab.Eventually(v.T, "the volume is unmounted", func() bool { return unix.Unmount(v.Source, 0) == nil })
	})
	root, err := os.Open(v.Source)
	if err != nil {
		v.T.Fatal(err)
	}
	v.T.Cleanup(func() { root.Close() })
	const fiFreeze, fiThaw = 0xc0045877, 0xc0045878 // of linux/fs.h
	frozen := false
	set := func(cmd uint) {
		v.T.Helper()
		if err := unix.IoctlSetInt(int(root.Fd()), cmd, 0); err != nil {
			v.T.Fatal(err)
		}
		frozen = cmd == fiFreeze
	}
	v.T.Cleanup(func() {
		if frozen {
			set(fiThaw)
		}
	})
	return func() { set(fiFreeze) }, func() { set(fiThaw) }
}

// A local volume stands still during a rename until the deadline has passed, and
// makes it then: the handle that was open goes on with the new name's lock.
func TestDeadlineOnAFrozenVolume(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("root can mount and freeze a volume")
	}
	v := lab.NewVolume(t)
	stop, goOn := onExt4(v)
	b, s := v.Mount("b"), v.Staged("s", 0)
	r := newNamesRun(v, t, namesCases[0], s.Mount, b)
	stop()
	pending := r.caller.StartUntil(r.call(), "the volume is asked to rename", func() bool { return lab.IsWithin(t, s.Cmd.Process.Pid, unix.SYS_RENAMEAT2) })
	etcd := v.EtcdPID()
	lab.Freeze(t, etcd)
	t.Cleanup(func() { _ = unix.Kill(etcd, unix.SIGCONT) })
	s.Ahead.Add(int64(12 * time.Second)) // of a TTL of 15 s, with a margin of 5 s
	goOn()
	if got := lab.Await(t, r.op, pending); got.Errno != unix.EIO {
		t.Errorf("rename past the deadline: %v, want EIO", got.Err())
	}
	_ = unix.Kill(etcd, unix.SIGCONT)
	for _, fd := range r.fds { // the session has recovered
		r.caller.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
	}
	r.checkHeld(r.held...)
	r.checkFree(r.free...)
	r.checkHeld(r.held...)
	r.finish()
	nothingLocked(v)
}
