package semantics

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// A file handle of an earlier mount leads to no file of this one: not to the one
// that its kernel happened to learn of as early.
func TestHandleOfAnEarlierMount(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("to open a handle takes CAP_DAC_READ_SEARCH")
	}
	v := lab.NewVolume(t)
	open := func(m *lab.Mount, h unix.FileHandle) (string, error) {
		dir, err := unix.Open(m.Dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
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
	v.Write("first", "first")
	v.Write("second", "second")
	m := v.Mount("a")
	kept, err := os.Open(m.Path("first")) // so that the kernel remembers it
	if err != nil {
		t.Fatal(err)
	}
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, m.Path("first"), 0)
	if err != nil {
		t.Skip("this kernel has no handles of FUSE files:", err)
	}
	if got, err := open(m, handle); got != "first" || err != nil {
		t.Errorf("on the same mount: %q, %v", got, err)
	}
	kept.Close()
	m.Stop()

	m = v.Mount("a")
	if kept, err = os.Open(m.Path("second")); err != nil { // the first file that this mount knows
		t.Fatal(err)
	}
	defer kept.Close()
	if got, err := open(m, handle); err != unix.ESTALE {
		t.Errorf("on the next mount: %q, %v, want ESTALE", got, err)
	}
}
