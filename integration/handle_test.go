package integration

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A file handle of an earlier mount leads to no file of this one: not to the one
// that its kernel happened to learn of as early.
func TestHandleOfAnEarlierMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("to open a handle takes CAP_DAC_READ_SEARCH")
	}
	v := newVolume(t)
	open := func(m *mount, h unix.FileHandle) (string, error) {
		dir, err := unix.Open(m.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(dir)
		fd, err := unix.OpenByHandleAt(dir, h, unix.O_RDONLY|unix.O_CLOEXEC)
		if err != nil {
			return "", err
		}
		defer unix.Close(fd)
		buf := make([]byte, 16)
		n, err := unix.Read(fd, buf)
		return string(buf[:max(n, 0)]), err
	}
	v.write("first", "first")
	v.write("second", "second")
	m := v.mount("a")
	kept, err := os.Open(m.path("first")) // so that the kernel remembers it
	if err != nil {
		t.Fatal(err)
	}
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, m.path("first"), 0)
	if err != nil {
		t.Skip("this kernel has no handles of FUSE files:", err)
	}
	if got, err := open(m, handle); got != "first" || err != nil {
		t.Errorf("on the same mount: %q, %v", got, err)
	}
	kept.Close()
	m.stop()

	m = v.mount("a")
	if kept, err = os.Open(m.path("second")); err != nil { // the first file that this mount knows
		t.Fatal(err)
	}
	defer kept.Close()
	if got, err := open(m, handle); err != unix.ESTALE {
		t.Errorf("on the next mount: %q, %v, want ESTALE", got, err)
	}
}
