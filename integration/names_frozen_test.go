package integration

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// onExt4 puts the volume on a file system of its own, which can be frozen. It
// returns how.
func (v *volume) onExt4() (freeze, thaw func()) {
	v.t.Helper()
	image := filepath.Join(v.dir, "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		v.t.Fatal(err)
	}
	if err := os.Truncate(image, 16<<20); err != nil {
		v.t.Fatal(err)
	}
	run(v.t, "mkfs.ext4", "-q", image)
	run(v.t, "mount", "-o", "loop", image, v.source)
	v.t.Cleanup(func() { run(v.t, "umount", v.source) })
	root, err := os.Open(v.source)
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { root.Close() })
	const fiFreeze, fiThaw = 0xc0045877, 0xc0045878 // of linux/fs.h
	frozen := false
	set := func(cmd uint) {
		v.t.Helper()
		if err := unix.IoctlSetInt(int(root.Fd()), cmd, 0); err != nil {
			v.t.Fatal(err)
		}
		frozen = cmd == fiFreeze
	}
	v.t.Cleanup(func() {
		if frozen {
			set(fiThaw)
		}
	})
	return func() { set(fiFreeze) }, func() { set(fiThaw) }
}

// A local volume stands still during a rename until the deadline has passed, and
// makes it then: the handle that was open goes on with the new name's lock.
func TestDeadlineOnAFrozenVolume(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("root can mount and freeze a volume")
	}
	v := newVolume(t)
	stop, goOn := v.onExt4()
	b, s := v.mount("b"), v.staged("s")
	r := v.namesRun(t, namesCases[0], s.mount, b)
	stop()
	pending := r.caller.start(r.call())
	eventually(t, "the volume is asked to rename", func() bool { return isWithin(t, s.cmd.Process.Pid, unix.SYS_RENAMEAT2) })
	etcd := v.etcdPID()
	freeze(t, etcd)
	t.Cleanup(func() { _ = unix.Kill(etcd, unix.SIGCONT) })
	s.ahead.Add(int64(12 * time.Second)) // of a TTL of 15 s, with a guard of 5 s
	goOn()
	if got := await(t, r.op, pending); got.Errno != unix.EIO {
		t.Errorf("rename past the deadline: %v, want EIO", got.Err())
	}
	_ = unix.Kill(etcd, unix.SIGCONT)
	for _, fd := range r.fds { // the session has recovered
		r.caller.must(call{Op: "write", FD: fd, Data: "x"})
	}
	r.checkHeld(r.held...)
	r.checkFree(r.free...)
	r.checkHeld(r.held...)
	r.finish()
	v.nothingLocked()
}
