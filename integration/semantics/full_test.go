package semantics

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// What a program has stored in a mapping and what then does not fit on the volume
// is an error of the next call that asks for it.
func TestMappingBeyondTheVolume(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	if err := unix.Mount("tmpfs", v.Source, "tmpfs", 0, "size=1m,mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // a program that another test is about to start may have our descriptors
		lab.Eventually(t, "the volume is unmounted", func() bool { return unix.Unmount(v.Source, 0) == nil })
	})
	a := v.Mount("a")
	v.Write("other", strings.Repeat("x", 600<<10))
	free := func() uint64 {
		t.Helper()
		var st unix.Statfs_t
		if err := unix.Statfs(v.Source, &st); err != nil {
			t.Fatal(err)
		}
		return st.Bfree
	}
	room := free()
	const size = 1 << 20
	for _, told := range []string{"msync", "fsync", "close"} {
		for name, flags := range map[string]int{"plain": unix.O_RDWR, "append": unix.O_RDWR | unix.O_APPEND, "direct": unix.O_RDWR | unix.O_DIRECT} {
			t.Run(told+"/"+name, func(t *testing.T) {
				v.Write("f", "")
				defer os.Remove(v.InSource("f"))
				if err := os.Truncate(v.InSource("f"), size); err != nil {
					t.Fatal(err)
				}
				p := lab.NewAgent(t)
				fd := p.Open(a.Path("f"), flags)
				p.Must(lab.Call{Op: "mmap", FD: fd, N: size})
				p.Must(lab.Call{Op: "store", FD: fd, Data: strings.Repeat("y", size)})
				if told == "close" {
					p.Must(lab.Call{Op: "munmap", FD: fd})
				}
				if r := p.Do(lab.Call{Op: told, FD: fd}); r.Errno != unix.ENOSPC {
					b, _ := os.ReadFile(v.InSource("f"))
					t.Errorf("%s: %v, and the volume has %d bytes of %d", told, r.Err(), bytes.Count(b, []byte("y")), size)
				}
				p.Kill()
			})
		}
	}
	lab.Eventually(t, "the last file's blocks are free", func() bool { return free() == room })
	// The writer is told how much is written.
	p := lab.NewAgent(t)
	fd := p.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	n := p.Must(lab.Call{Op: "write", FD: fd, Data: strings.Repeat("z", size)})
	if got := strings.Count(v.Read("f"), "z"); n == size || n != got {
		t.Errorf("write: %d bytes of %d, and the volume has %d", n, size, got)
	}
	p.Fails(lab.Call{Op: "write", FD: fd, Data: "z"}, unix.ENOSPC)
}

// What a network volume's client cannot store is an error of fsync also when a copy
// of the descriptor was closed before, and its close was told: a child that exits
// closes all that it has inherited.
func TestFsyncAfterACloseThatFailed(t *testing.T) {
	t.Parallel()
	v := lab.NewVolumeOverClients(t, lab.ClientConfig{WriteBack: true}, "--sync", "close")
	if err := unix.Mount("tmpfs", v.Source, "tmpfs", 0, "size=1m,mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(v.Source, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	a := v.Mount("a")
	p := lab.NewAgent(t)
	fd := p.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	if err := os.WriteFile(v.InSource("other"), make([]byte, 2<<20), 0o644); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	p.Must(lab.Call{Op: "write", FD: fd, Data: "lost"})
	p.Fails(lab.Call{Op: "close", FD: p.Must(lab.Call{Op: "dup", FD: fd})}, unix.ENOSPC)
	p.Fails(lab.Call{Op: "fsync", FD: fd}, unix.ENOSPC)
	p.Must(lab.Call{Op: "fsync", FD: fd}) // it is told once
	p.Must(lab.Call{Op: "close", FD: fd})
}
